package jobs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/blob"
	"cambium/internal/vcap"
	"cambium/jobs/bundle"
)

func decode(t *testing.T, text string) Spec {
	t.Helper()
	var s Spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// emptyShape is the value of get_state, without its runtime members, before any apply.
const emptyShape = `{"properties":{"logging":{"max_log_file_size":""}},"job":{"name":null,"release":"","template":"","version":"","templates":null},` +
	`"packages":{},"configuration_hash":"","networks":{},"resource_pool":{},"deployment":"","name":"","index":null,"id":"","az":"","persistent_disk":0,"rendered_templates_archive":null}`

func TestSpecShapes(t *testing.T) {
	state := &SpecFile{Dirs: vcap.New(t.TempDir())}
	nothing, err := state.Spec()
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]Spec{"no file": nothing, "empty": decode(t, `{}`),
		"nulls": decode(t, `{"job":null,"packages":null,"networks":null,"resource_pool":null,"rendered_templates_archive":null}`)} {
		if got, _ := json.Marshal(s); string(got) != emptyShape {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, emptyShape)
		}
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	full := decode(t, `{"deployment":"cf","name":"router","index":0,"id":"6f0c","az":"z1",
	 "job":{"name":"router","template":"gorouter","version":"9ab1","templates":[{"name":"gorouter","version":"9ab1","sha1":"x","blobstore_id":"y","logs":[]}]},
	 "packages":{"gorouter":{"name":"gorouter","version":"77c0.1","sha1":"3ece","blobstore_id":"2b9a","signed_url":"https://h/x","blobstore_headers":{"k":"v"}}},
	 "networks":{"default":{"type":"dynamic","ip":"","big":18446744073709551615,"cloud_properties":{"a":[1]}}},
	 "configuration_hash":"32fa","persistent_disk":10,"template_hashes":{"gorouter":"z"},"rendered_templates_archive":{"blobstore_id":"2dd5","sha1":"0a0b"},"dns_domain_name":"bosh"}`)
	full.SetNetwork("default", "10.0.0.5", "255.255.255.0", "10.0.0.1")
	want := `{"properties":{"logging":{"max_log_file_size":""}},"job":{"name":"router","release":"","template":"gorouter","version":"9ab1","templates":[{"name":"gorouter","version":"9ab1"}]},` +
		`"packages":{"gorouter":{"name":"gorouter","version":"77c0.1","sha1":"3ece","blobstore_id":"2b9a","signed_url":"https://h/x","blobstore_headers":{"k":"v"}}},"configuration_hash":"32fa",` +
		`"networks":{"default":{"big":18446744073709551615,"cloud_properties":{"a":[1]},"gateway":"10.0.0.1","ip":"10.0.0.5","netmask":"255.255.255.0","type":"dynamic"}},"resource_pool":{},` +
		`"deployment":"cf","name":"router","index":0,"id":"6f0c","az":"z1","persistent_disk":10,"rendered_templates_archive":{"sha1":"0a0b","blobstore_id":"2dd5"}}`
	if got, _ := json.Marshal(full); string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := full.NetworkString("default", "ip"); got != "10.0.0.5" {
		t.Errorf("got %q", got)
	}
}

func TestValidate(t *testing.T) {
	job := func(name, version, digest string) string {
		return `{"job":{"templates":[{"name":"` + name + `","version":"` + version + `"}]},"rendered_templates_archive":{"blobstore_id":"b","sha1":"` + digest + `"}}`
	}
	pkg := func(name, version, digest string) string {
		return `{"packages":{"p":{"name":"` + name + `","version":"` + version + `","sha1":"` + digest + `","blobstore_id":"b"}}}`
	}
	for _, c := range []struct{ spec, want string }{
		{job("router", "1", "ab"), ""},
		{job("router", "1", ""), blob.ErrNoDigest.Error()},
		{job("router", "", "ab"), `job "router" has no version`},
		{job("", "1", "ab"), "a job has no name"},
		{job("../evil", "1", "ab"), "not a valid name"},
		{job(".x", "1", "ab"), "not a valid name"},
		{job("a/b", "1", "ab"), "not a valid name"},
		{job(`a\nb`, "1", "ab"), "not a valid name"},
		{job("packages", "1", "ab"), "reserved"},
		{job("sys", "1", "ab"), "reserved"},
		{job("sensitive_blobs", "1", "ab"), "reserved"},
		{`{"job":{"templates":[{"name":"a","version":"1"},{"name":"a","version":"1"}]},"rendered_templates_archive":{"sha1":"ab"}}`, "listed twice"},
		{`{"job":{"templates":[{"name":"../x","version":""}]}}`, ""}, // without an archive there are no jobs
		{`{"rendered_templates_archive":{"blobstore_id":"","sha1":""},"configuration_hash":"unused-configuration-hash"}`, ""},
		{pkg("p", "1", "ab"), ""},
		{pkg("p", "1", ""), blob.ErrNoDigest.Error()},
		{pkg("p", "", "ab"), "no version"},
		{pkg("..", "1", "ab"), "not a valid name"},
		{pkg("", "1", "ab"), "a package has no name"},
		{pkg("p", "1", "a b"), "letters and digits"},
	} {
		err := decode(t, c.spec).Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.spec, err, c.want)
		}
	}
	// Every directory of the agent below data is reserved.
	d := vcap.New("/b")
	for _, dir := range []string{d.DataJobs(), d.DataPackages(), d.Compile(), d.Tmp(), d.Blobs(), d.SensitiveBlobs(),
		d.DynamicDisks(), d.DataSys(), d.RootTmp(), d.RootLog(), d.RootOpt(), d.RootVarOpt()} {
		if decode(t, job(filepath.Base(dir), "1", "ab")).Validate() == nil {
			t.Errorf("a job may be called %s", filepath.Base(dir))
		}
	}
}

func TestStateSurvivesCorruption(t *testing.T) {
	dirs := vcap.New(t.TempDir())
	if err := os.MkdirAll(dirs.Bosh(), 0o755); err != nil {
		t.Fatal(err)
	}
	state := &SpecFile{Dirs: dirs}
	for _, text := range []string{"", "{", "null x", `{"index":"a"}`, `[]`} {
		if err := os.WriteFile(dirs.Spec(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := state.Spec(); err == nil || !strings.Contains(err.Error(), "corrupt") {
			t.Errorf("%q: got %v, want an error that says so", text, err)
		}
	}
	if err := state.Write(decode(t, `{"id":"a"}`), &bundle.Switch{}); err != nil {
		t.Fatal(err)
	}
	if s, err := state.Spec(); err != nil || s.ID != "a" {
		t.Errorf("got %q, %v", s.ID, err)
	}
	if info, err := os.Stat(dirs.Spec()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v; want mode 0600", info, err)
	}
}

func FuzzSpec(f *testing.F) {
	f.Add([]byte(emptyShape))
	f.Add([]byte(`{"job":{"templates":[{"name":"a","version":"1"}]},"rendered_templates_archive":{"sha1":"ab","blobstore_id":"x"},"packages":{"p":{"name":"p"}},"networks":{"n":null}}`))
	// A valid one, as a Director sends it, and names that must not become paths.
	const digest = "3ece2d7fde5d5b6e6c8b6f1c6d2b1a8a9f0e1d2c"
	f.Add([]byte(`{"deployment":"cf","name":"router","index":0,"id":"6f0c","az":"z1","properties":{"logging":{"max_log_file_size":"10M"}},` +
		`"job":{"name":"router","template":"gorouter","version":"9ab1","templates":[{"name":"gorouter","version":"9ab1"},{"name":"bpm","version":"2"}]},` +
		`"packages":{"gorouter":{"name":"gorouter","version":"77c0.1","sha1":"` + digest + `","blobstore_id":"2b9a","signed_url":"https://h/x","blobstore_headers":{"k":"v"}}},` +
		`"networks":{"default":{"type":"dynamic","ip":"10.0.0.5","cloud_properties":{"a":[1]}}},"configuration_hash":"32fa","persistent_disk":10,` +
		`"resource_pool":{"a":1},"rendered_templates_archive":{"blobstore_id":"2dd5","sha1":"sha256:` + strings.Repeat("0a",
		32) + `"}}`))
	for _, name := range []string{"..", "a/b", ".hidden", "sys", "tmp", "a\\u0000", strings.Repeat("n", 300)} {
		f.Add([]byte(`{"job":{"templates":[{"name":"` + name + `","version":"1"}]},"rendered_templates_archive":{"sha1":"` + digest + `"},"packages":{"x":{"name":"` + name + `","version":"1","sha1":"` + digest + `"}}}`))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var s Spec
		if json.Unmarshal(data, &s) != nil {
			return
		}
		valid := s.Validate() == nil
		jobs, packages, err := bundles(s)
		if valid && err != nil {
			t.Errorf("a valid spec has no bundles: %v", err)
		}
		for _, b := range append(jobs, packages...) {
			if valid && (b.Name != filepath.Base(b.Name) || !filepath.IsLocal(b.Name) || b.Hash != filepath.Base(b.Hash)) {
				t.Errorf("a valid spec has a bundle %+v", b)
			}
		}
		first, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var again Spec
		if err := json.Unmarshal(first, &again); err != nil {
			t.Fatalf("%s does not decode again: %v", first, err)
		}
		second, _ := json.Marshal(again)
		if string(first) != string(second) {
			t.Errorf("%s changes to %s", first, second)
		}
	})
}
