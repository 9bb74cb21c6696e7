package infrastructure

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/diskfs/go-diskfs/filesystem"
	"github.com/sirupsen/logrus"

	"cambium/infrastructure/internal/source"
	"cambium/internal/fattest"
	"cambium/internal/secret"
	"cambium/settings/agentjson"
)

// rig stores settings for one type of source, as a CPI does.
type rig struct {
	config agentjson.Source
	root   string
	// put leaves a document there; calling it again replaces it.
	put func(document string)
	// missing is the kind of failure while nothing was put.
	missing source.Kind
	// clears is true if the source is cleared once the settings are cached; cleared reports whether
	// it was.
	clears  bool
	cleared func() bool
}

// rigs has a rig for each type, which TestEveryTypeConforms checks.
var rigs = map[string]func(t *testing.T) rig{
	agentjson.File: func(t *testing.T) rig {
		path := filepath.Join(t.TempDir(), "settings.json")
		return rig{config: agentjson.Source{Type: agentjson.File, SettingsPath: path}, missing: source.Definite,
			put: func(document string) { writeFile(t, path, document) }}
	},
	agentjson.HTTP: func(t *testing.T) rig {
		url, put := metadataService(t, "/latest/user-data")
		return rig{config: agentjson.Source{Type: agentjson.HTTP, URI: secret.NewURL(url), UserDataPath: "/latest/user-data",
			TokenPath: "/latest/api/token"}, missing: source.NotYetThere, put: put}
	},
	agentjson.InstanceMetadata: func(t *testing.T) rig {
		url, put := metadataService(t, "/bosh_settings")
		return rig{config: agentjson.Source{Type: agentjson.InstanceMetadata, URI: secret.NewURL(url),
			SettingsPath: "/bosh_settings"}, missing: source.NotYetThere, put: put}
	},
	agentjson.ConfigDrive: func(t *testing.T) rig {
		root, put := mediumIn(t, "sdb", "config-2", "ec2/latest/user-data")
		return rig{config: agentjson.Source{Type: agentjson.ConfigDrive, DiskPaths: []string{"/dev/disk/by-label/config-2"},
			UserDataPath: "ec2/latest/user-data", MetaDataPath: "ec2/latest/meta-data.json"},
			root: root, missing: source.Definite, put: put}
	},
	agentjson.CDROM: func(t *testing.T) rig {
		root, put := mediumIn(t, "sr0", "cd", "env")
		return rig{config: agentjson.Source{Type: agentjson.CDROM, FileName: "env"}, root: root, missing: source.Definite,
			put: put, clears: true}
	},
	agentjson.VsphereGuestInfo: func(t *testing.T) rig {
		dir := t.TempDir()
		value, tool := filepath.Join(dir, "value"), filepath.Join(dir, "rpctool")
		writeFile(t, tool, "#!/bin/sh\ncase $1 in\n"+
			"'info-get guestinfo.userdata') exec cat '"+value+"' ;;\n"+
			"'info-set guestinfo.userdata ---') echo --- > '"+value+"' ;;\nesac\n")
		if err := os.Chmod(tool, 0o755); err != nil {
			t.Fatal(err)
		}
		return rig{config: agentjson.Source{Type: agentjson.VsphereGuestInfo, RpcToolPath: tool,
			VmToolsdPath: filepath.Join(dir, "none")}, missing: source.Definite, clears: true,
			put:     func(document string) { writeFile(t, value, base64.StdEncoding.EncodeToString([]byte(document))) },
			cleared: func() bool { content, _ := os.ReadFile(value); return string(content) == "---\n" }}
	},
}

func writeFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func metadataService(t *testing.T, path string) (url string, put func(string)) {
	var mu sync.Mutex
	document, there := "", false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path != path || !there {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprint(w, document)
	}))
	t.Cleanup(s.Close)
	return s.URL, func(d string) { mu.Lock(); document, there = d, true; mu.Unlock() }
}

// mediumIn returns a root directory with one device, which contains a FAT image once a document was put there.
func mediumIn(t *testing.T, device, label, file string) (root string, put func(string)) {
	root = t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	return root, func(document string) {
		t.Helper()
		writeFile(t, filepath.Join(root, "sys/class/block", device, "size"), "1")
		out := filepath.Join(root, "dev", device)
		os.Remove(out)
		fattest.Make(t, out, 16<<20, filesystem.TypeFat16, label,
			map[string]string{file: document, "ec2/latest/meta-data.json": `{"instance-id":"i-drive"}`})
	}
}

// configOf returns a configuration that names these sources.
func configOf(sources ...agentjson.Source) (config agentjson.Config) {
	config.Infrastructure.Settings.Sources = sources
	return config
}

func (r rig) sources(t *testing.T, o Options) *Sources {
	t.Helper()
	o.Root = r.root
	s, err := New(configOf(r.config), complete(o))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Contract S.15.
func TestEveryTypeConforms(t *testing.T) {
	for _, kind := range agentjson.Types() {
		if table[kind] == nil {
			t.Errorf("%s has no row in the table", kind)
			continue
		}
		make := rigs[kind]
		if make == nil {
			t.Errorf("%s has no rig", kind)
			continue
		}
		t.Run(kind, func(t *testing.T) { t.Parallel(); conforms(t, make) })
	}
}

func conforms(t *testing.T, make func(*testing.T) rig) {
	once := func(t *testing.T, r rig) (Answer, error) {
		return r.sources(t, Options{SideEffects: true}).settings(t.Context(), 0)
	}
	t.Run("answers", func(t *testing.T) {
		r := make(t)
		r.put(`{"agent_id":"a","x":[1,2]}`)
		answer, results, err := r.sources(t, Options{}).Settings(t.Context())
		if err != nil || string(answer.Raw.Reveal()) != `{"agent_id":"a","x":[1,2]}` {
			t.Fatalf("%s, %v", answer.Raw.Reveal(), err)
		}
		if !strings.HasPrefix(answer.From, r.config.Type+" ") {
			t.Errorf("from %q, want one that begins with the type", answer.From)
		}
		if len(results) != 1 || results[0].Outcome != Used || !strings.HasPrefix(results[0].Source, r.config.Type+" ") {
			t.Errorf("results %v", results)
		}
	})
	t.Run("sees what changed", func(t *testing.T) {
		r := make(t)
		s := r.sources(t, Options{})
		for _, id := range []string{"first", "second"} {
			r.put(good(id))
			if answer, _, err := s.Settings(t.Context()); err != nil || idOf(t, answer) != id {
				t.Errorf("%v, want the %s document", err, id)
			}
		}
	})
	t.Run("nothing there", func(t *testing.T) {
		r := make(t)
		_, err := once(t, r)
		if err == nil || source.KindOf(err) != r.missing {
			t.Errorf("error %v of kind %d, want kind %d", err, source.KindOf(err), r.missing)
		}
	})
	t.Run("comes later", func(t *testing.T) {
		r := make(t)
		var later sync.WaitGroup
		defer later.Wait()
		asked := sync.OnceFunc(func() { later.Go(func() { r.put(good("late")) }) })
		s := r.sources(t, Options{Status: func(_ context.Context, text string) {
			if strings.Contains(text, ": ") {
				asked()
			}
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if answer, _, err := s.Settings(ctx); err != nil || idOf(t, answer) != "late" {
			t.Errorf("%v, want the document that came later", err)
		}
	})
	for name, bad := range map[string]string{
		"bad json":      "{\"agent_id\":\"canary\",\n",
		"no agent_id":   `{"mbus":"nats://canary"}`,
		"not an object": `["canary"]`,
		"empty":         "",
		"too large":     `{"agent_id":"` + strings.Repeat("canary", source.MaxDocument/6) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			r := make(t)
			r.put(bad)
			_, err := once(t, r)
			if err == nil || strings.Contains(err.Error(), "canary") {
				t.Errorf("error %.200v, want one without content", err)
			}
		})
	}
	t.Run("the log shows no content", func(t *testing.T) {
		r := make(t)
		var out bytes.Buffer
		l := logrus.New()
		l.Out, l.Level = &out, logrus.TraceLevel
		r.put("{\"agent_id\":\"canary\",\n")
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, results, err := r.sources(t, Options{Log: logrus.NewEntry(l)}).Settings(ctx)
		if text := out.String() + fmt.Sprintf("%v %+v", err, results); strings.Contains(text, "canary") {
			t.Errorf("content in %s", text)
		}
	})
	t.Run("ends with its context", func(t *testing.T) {
		r := make(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := r.sources(t, Options{}).Settings(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want canceled", err)
		}
	})
	t.Run("cleared", func(t *testing.T) {
		r := make(t)
		r.put(good("a"))
		answer, err := once(t, r)
		if err != nil {
			t.Fatal(err)
		}
		if (answer.Clear != nil) != r.clears {
			t.Fatalf("something to do when cached: %v, want %v", answer.Clear != nil, r.clears)
		}
		if r.cleared == nil {
			return
		}
		if r.cleared() {
			t.Error("cleared before the settings were cached")
		}
		if err := answer.Clear(t.Context()); err != nil || !r.cleared() {
			t.Errorf("Clear: %v, cleared: %v", err, r.cleared())
		}
	})
	t.Run("a pointer is followed", func(t *testing.T) {
		r := make(t)
		registry := filepath.Join(t.TempDir(), "registry.json")
		r.put(fmt.Sprintf(`{"registry":{"endpoint":%q},"server":{"name":"vm"}}`, registry))
		if _, err := once(t, r); source.KindOf(err) != source.NotYetThere {
			t.Errorf("empty registry: error %v, want one that is asked again", err)
		}
		writeFile(t, registry, good("registered"))
		answer, err := once(t, r)
		if err != nil || idOf(t, answer) != "registered" ||
			!strings.HasPrefix(answer.From, "registry file "+registry+", named by "+r.config.Type) {
			t.Errorf("from %q, %v", answer.From, err)
		}
	})
	t.Run("a pointer beside an agent_id is not", func(t *testing.T) {
		r := make(t)
		asked := false
		registry := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
		defer registry.Close()
		r.put(fmt.Sprintf(`{"agent_id":"direct","registry":{"endpoint":%q},"server":{"name":"vm"}}`, registry.URL))
		if answer, err := once(t, r); err != nil || idOf(t, answer) != "direct" || asked {
			t.Errorf("%v, registry asked: %v", err, asked)
		}
	})
	t.Run("the key question does not wait", func(t *testing.T) {
		r := make(t)
		r.put(good("a"))
		s := r.sources(t, Options{})
		if key, _, err := s.PublicKey(t.Context()); key != "" || err != nil {
			t.Errorf("key %q, %v; want none", key, err)
		}
	})
}

// TestRegistryThroughEveryMetadataService follows a pointer as on machines of the registry era: by server name or
// instance id, with credentials, and after "not found" at first. Contract S.11.
func TestRegistryThroughEveryMetadataService(t *testing.T) {
	for _, c := range []struct {
		kind          string
		useServerName bool
		key           string
	}{
		{agentjson.HTTP, true, "vm-1"}, {agentjson.HTTP, false, "i-http"},
		{agentjson.ConfigDrive, true, "vm-1"}, {agentjson.ConfigDrive, false, "i-drive"},
		{agentjson.File, true, "vm-1"}, {agentjson.File, false, "i-file"},
	} {
		t.Run(fmt.Sprintf("%s by %s", c.kind, c.key), func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var asked, announced []string
			registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				user, password, _ := r.BasicAuth()
				asked = append(asked, r.URL.Path+" "+user+":"+password)
				if len(asked) == 1 {
					w.WriteHeader(http.StatusNotFound) // the CPI writes it after the machine exists
					return
				}
				fmt.Fprint(w, `{"status":"ok","settings":"{\"agent_id\":\"v1\"}"}`)
			}))
			defer registry.Close()
			r := rigs[c.kind](t)
			pointer := fmt.Sprintf(`{"registry":{"endpoint":%q},"server":{"name":"vm-1"}}`,
				strings.Replace(registry.URL, "http://", "http://reg:pw@", 1))
			switch c.kind {
			case agentjson.File:
				// The settings file says where the machine was made, the user data where to go.
				r.put(`{}`)
				dir := filepath.Dir(r.config.SettingsPath)
				r.config.UserDataPath, r.config.MetaDataPath = filepath.Join(dir, "user-data"), filepath.Join(dir, "meta-data")
				writeFile(t, r.config.UserDataPath, pointer)
				writeFile(t, r.config.MetaDataPath, `{"instance-id":"i-file"}`)
			case agentjson.HTTP:
				url, put := metadataServiceWithID(t)
				r.config.URI, r.config.InstanceIDPath = secret.NewURL(url), "/latest/meta-data/instance-id"
				put(pointer)
			default:
				r.put(pointer)
			}
			s, err := New(agentjson.Config{Infrastructure: agentjson.Infrastructure{Settings: agentjson.Settings{
				Sources: []agentjson.Source{r.config}, UseRegistry: true, UseServerName: c.useServerName}}},
				complete(Options{Root: r.root,
					Connecting: func(_ context.Context, server netip.AddrPort) {
						mu.Lock()
						defer mu.Unlock()
						announced = append(announced, "http://"+server.String())
					}}))
			if err != nil {
				t.Fatal(err)
			}
			answer, _, err := s.Settings(t.Context())
			if err != nil || idOf(t, answer) != "v1" {
				t.Fatalf("error %v", err)
			}
			for _, server := range []string{registry.URL, r.config.URI.Reveal()} {
				if server != "" && !slices.Contains(announced, server) {
					t.Errorf("announced %q, want %s among them", announced, server)
				}
			}
			if want := "/instances/" + c.key + "/settings reg:pw"; len(asked) != 2 || asked[1] != want {
				t.Errorf("asked %q, want twice %q", asked, want)
			}
			if strings.Contains(answer.From, "pw") {
				t.Errorf("from %q shows the password", answer.From)
			}
		})
	}
}

func metadataServiceWithID(t *testing.T) (string, func(string)) {
	var mu sync.Mutex
	document := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch r.URL.Path {
		case "/latest/user-data":
			fmt.Fprint(w, document)
		case "/latest/meta-data/instance-id":
			fmt.Fprint(w, "i-http")
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, func(d string) { mu.Lock(); document = d; mu.Unlock() }
}

func TestNewReportsEveryProblem(t *testing.T) {
	_, err := New(configOf(agentjson.Source{Type: "FTP"}, agentjson.Source{Type: "HTTP"},
		agentjson.Source{Type: "Gopher"}), Options{})
	if err == nil || !strings.Contains(err.Error(), `source 1: unknown type "FTP"`) ||
		!strings.Contains(err.Error(), `source 3: unknown type "Gopher"`) {
		t.Errorf("error %v, want both", err)
	}
	if _, err := New(agentjson.Config{}, Options{}); err == nil {
		t.Error("no source was accepted")
	}
}

// TestServiceInTroubleIsAskedAgain: a metadata service fails differently at each attempt.
func TestServiceInTroubleIsAskedAgain(t *testing.T) {
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		switch asked {
		case 1:
			w.WriteHeader(http.StatusInternalServerError)
		case 2:
			w.Header().Set("Content-Length", "1000") // and then less: the server cuts the connection
			fmt.Fprint(w, `{"agent_id":`)
		case 3:
			http.Redirect(w, r, "http://192.0.2.1/elsewhere", http.StatusFound)
		default:
			fmt.Fprint(w, good("at last"))
		}
	}))
	defer s.Close()
	r := rig{config: agentjson.Source{Type: agentjson.HTTP, URI: secret.NewURL(s.URL), UserDataPath: "/u"}}
	answer, results, err := r.sources(t, Options{}).Settings(t.Context())
	if err != nil || idOf(t, answer) != "at last" || results[0].Attempts != 4 {
		t.Errorf("%v after %d attempts, want the answer after 4", err, results[0].Attempts)
	}
}
