package cpi

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/lab/iaas"
	"cambium/lab/image"
	"cambium/lab/metadata"
	assets "cambium/stemcell-assets"
)

// Contract C.1.
func TestReadRequest(t *testing.T) {
	for input, want := range map[string]string{
		`{"method":"info","arguments":[],"context":{"a":{"b":1}},"more":true}`: "",
		``:                                 "does not have the form of the CPI contract",
		`[]`:                               "does not have the form of the CPI contract",
		`{"arguments":[]}`:                 "names no method",
		`{"method":"info"} {}`:             "more than one",
		`{"method":"x","api_version":"2"}`: "does not have the form of the CPI contract",
	} {
		r, err := ReadRequest([]byte(input))
		if want == "" && (err != nil || r.APIVersion != 1) ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %+v, %v; want error %q", input, r, err, want)
		}
	}
}

// The Director refuses replies in which one of these is missing or of another type.
// Contract C.2.
func TestRepliesHaveAllKeys(t *testing.T) {
	for _, r := range []Reply{{}, {Result: false}, info(), Failure(errors.New("x")),
		Failure(iaas.Failf(iaas.VMCreationFailed, "x"))} {
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var keys map[string]json.RawMessage
		if err := json.Unmarshal(data, &keys); err != nil || len(keys) != 3 || string(keys["log"]) != `""` ||
			keys["result"] == nil || keys["error"] == nil {
			t.Errorf("got %s", data)
		}
		if r.Error != nil && !strings.Contains(string(keys["error"]), `"ok_to_retry":`) {
			t.Errorf("got %s", keys["error"])
		}
	}
	if r := Failure(iaas.Failf(iaas.DiskNotFound, "no %s", strings.Repeat("ä",
		maxMessage))); r.Error.Type != "Bosh::Clouds::DiskNotFound" || len(r.Error.Message) > maxMessage+8 ||
		r.Error.OKToRetry {
		t.Errorf("got %+v", r.Error)
	}
}

// Contract C.3.
func TestLocal(t *testing.T) {
	for method, want := range map[string]string{"info": "", "ping": "", "configure_networks": "NotSupported",
		"current_vm_id": "NotImplemented", "x": "NotImplemented"} {
		r, ok := Local(Request{Method: method})
		got := ""
		if r.Error != nil {
			got = strings.TrimPrefix(r.Error.Type, typePrefix)
		}
		if !ok || got != want {
			t.Errorf("%s: got %v, error %q; want error %q", method, ok, got, want)
		}
	}
	for method := range methods {
		if _, ok := Local(Request{Method: method}); ok {
			t.Errorf("%s is answered without a holder", method)
		}
	}
}

// A Director uploads a stemcell only if the CPI names one of its formats: those of our stemcells whose agents look for
// settings where the IaaS puts them.
func TestFormatsOfOurStemcells(t *testing.T) {
	for _, i := range image.Infrastructures {
		data, err := assets.AgentJSON(i.Name)
		var agent struct {
			Infrastructure struct {
				Settings struct{ Sources []struct{ Type, URI string } }
			}
		}
		if err == nil {
			err = json.Unmarshal(data, &agent)
		}
		if err != nil {
			t.Fatal(err)
		}
		want := false
		for _, s := range agent.Infrastructure.Settings.Sources {
			want = want || s.Type == "ConfigDrive" || s.Type == "CDROM" || s.URI == "http://"+metadata.Address
		}
		known := slices.ContainsFunc(i.Formats, func(format string) bool { return slices.Contains(formats, format) })
		if known != want {
			t.Errorf("stemcell for %s: formats %v known %v, want %v", i.Name, i.Formats, known, want)
		}
	}
}

// The log of a reply, which a Director keeps with its task, names what was done and nothing else of the arguments.
func TestLogOfACall(t *testing.T) {
	const vm, disk = "vm-000000000000000000", "d-000000000000000000"
	var cid iaas.CID
	if err := cid.UnmarshalText([]byte(vm)); err != nil {
		t.Fatal(err)
	}
	took := 1234567 * time.Microsecond
	for _, c := range []struct {
		method, arguments string
		reply             Reply
		want              string
	}{
		{"create_vm", `["agent","sc-000000000000000000",{},{},[],{"password":"secret"}]`,
			Reply{Result: []any{cid, nil}}, "create_vm sc-000000000000000000: " + vm + " in 1.235s\n"},
		{"create_disk", `[1,{}]`, Reply{Result: cid}, "create_disk: " + vm + " in 1.235s\n"},
		{"attach_disk", `["` + vm + `","` + disk + `"]`, Reply{Result: "/dev/x"},
			"attach_disk " + vm + " " + disk + ": done in 1.235s\n"},
		{"delete_vm", `["a\u001b[2J"]`, Failure(errors.New("no")), "delete_vm: failed in 1.235s\n"},
	} {
		r := Request{Method: c.method}
		if err := json.Unmarshal([]byte(c.arguments), &r.Arguments); err != nil {
			t.Fatal(err)
		}
		if got := summary(r, c.reply, took); got != c.want {
			t.Errorf("%s: got %q, want %q", c.method, got, c.want)
		}
	}
}

// Contract C.4.
func TestWhereNothingIs(t *testing.T) {
	c := Client{Dir: t.TempDir(), Name: "x"}
	for method, want := range map[string]any{"has_vm": false, "has_disk": false, "delete_vm": nil, "delete_disk": nil,
		"delete_stemcell": nil} {
		if r := c.Do(t.Context(), Envelope{Request: Request{Method: method,
			Arguments: []json.RawMessage{[]byte(`"a"`)}}}); r.Error != nil || r.Result != want {
			t.Errorf("%s: got %+v, want %v", method, r, want)
		}
	}
	if r := c.Do(t.Context(), Envelope{Request: Request{Method: "reboot_vm",
		Arguments: []json.RawMessage{[]byte(`"a"`)}}}); r.Error == nil {
		t.Error("reboot_vm without a holder is not an error")
	}
}

// TestIdentitiesAreTheOperators: others on the host do not get the key that opens the IaaS to callers in VMs, and these
// make containers only with the operator's permission.
func TestIdentitiesAreTheOperators(t *testing.T) {
	dir := t.TempDir()
	create := Request{Method: "create_vm"}
	// The networks are not an object, so that a call that is not refused ends there.
	const arguments = `["agent","sc-000000000000000000",{"engine":"container"},"none",[],{}]`
	if err := json.Unmarshal([]byte(arguments), &create.Arguments); err != nil {
		t.Fatal(err)
	}
	for _, containers := range []bool{false, true} {
		if _, err := EnsureIdentity(dir, "x", containers); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(identitiesPath(dir, "x")); err != nil || info.Mode() != 0o600 {
			t.Errorf("got %v, %v; want a file for its owner alone", info, err)
		}
		r, _ := backend{refused: refused(dir, "x")}.do(t.Context(), create, iaas.AgentDefaults{}, nil)
		if r.Error == nil || strings.Contains(r.Error.Message, "lab cpi-tls --containers") == containers {
			t.Errorf("permission %v: got %+v", containers, r.Error)
		}
	}
}

// Contract C.5.
func TestNumberOfArguments(t *testing.T) {
	for name, m := range methods {
		for _, n := range []int{m.least - 1, m.most + 1} {
			if n < 0 {
				continue
			}
			r := Request{Method: name, Arguments: make([]json.RawMessage, n)}
			got, _ := (backend{}).do(t.Context(), r, iaas.AgentDefaults{}, nil)
			if got.Error == nil || !strings.Contains(got.Error.Message, "arguments") {
				t.Errorf("%s with %d arguments: got %+v", name, n, got)
			}
		}
	}
}

// A reply counts as delivered when the caller has confirmed that it passed it on, and not if it disconnects before.
func TestDeliveriesAreConfirmed(t *testing.T) {
	for name, c := range map[string]struct {
		delivery string
		then     func(h *holder, confirm, hangUp func())
		want     bool
	}{
		"confirmed":          {"a", func(_ *holder, confirm, _ func()) { confirm() }, true},
		"confirmed, hung up": {"a", func(_ *holder, confirm, hangUp func()) { confirm(); hangUp() }, true},
		"another call's":     {"b", func(_ *holder, confirm, hangUp func()) { confirm(); hangUp() }, false},
		"hung up":            {"a", func(_ *holder, _, hangUp func()) { hangUp() }, false},
		"the holder ends":    {"a", func(h *holder, _, _ func()) { close(h.closing) }, true},
		"without a delivery": {"", func(*holder, func(), func()) {}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := &holder{closing: make(chan struct{}), deliveries: map[string]chan struct{}{}}
			got := make(chan bool, 1)
			mux := h.calling(func() []string { return nil })
			mux.HandleFunc("POST /make", func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // only then does net/http notice that the caller has disconnected
				got <- h.deliver(w, r, c.delivery, Reply{Result: "x"})
			})
			server := httptest.NewServer(mux)
			defer server.Close()
			response, err := server.Client().Post(server.URL+"/make", "", nil)
			var reply Reply
			if err == nil {
				err = json.NewDecoder(response.Body).Decode(&reply)
			}
			if err != nil || reply.Result != "x" {
				t.Fatalf("got %+v, %v", reply, err)
			}
			c.then(h, func() {
				confirmed, err := http.Post(server.URL+deliveredPath+"a", "", nil)
				if err != nil {
					t.Fatal(err)
				}
				_ = confirmed.Body.Close()
			}, func() { _ = response.Body.Close() })
			if delivered := <-got; delivered != c.want || len(h.deliveries) > 0 {
				t.Errorf("delivered: %v, want %v; still waited for: %v", delivered, c.want, h.deliveries)
			}
			_ = response.Body.Close()
		})
	}
}

func TestReleaseNeedsTheProgram(t *testing.T) {
	if err := WriteRelease(filepath.Join(t.TempDir(), "r.tgz"), filepath.Join(t.TempDir(), "missing"), "1"); err == nil {
		t.Error("a release without its program")
	}
}
