package cpi

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cambium/lab/iaas"
	"cambium/lab/image"
)

// Contract C.1.
func TestReadRequest(t *testing.T) {
	for input, want := range map[string]string{
		`{"method":"info","arguments":[],"context":{"a":{"b":1}},"more":true}`: "",
		``:                                 "not a JSON object",
		`[]`:                               "not a JSON object",
		`{"arguments":[]}`:                 "names no method",
		`{"method":"info"} {}`:             "more than one",
		`{"method":"x","api_version":"2"}`: "not a JSON object",
	} {
		r, err := ReadRequest([]byte(input))
		if want == "" && (err != nil || r.APIVersion != 1) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %+v, %v; want error %q", input, r, err, want)
		}
	}
}

// The Director refuses replies in which one of these is missing or of another type.
// Contract C.2.
func TestRepliesHaveAllKeys(t *testing.T) {
	for _, r := range []Reply{{}, {Result: false}, info(), Failure(errors.New("x")), Failure(iaas.Failf(iaas.VMCreationFailed, "x"))} {
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var keys map[string]json.RawMessage
		if err := json.Unmarshal(data, &keys); err != nil || len(keys) != 3 || string(keys["log"]) != `""` || keys["result"] == nil || keys["error"] == nil {
			t.Errorf("got %s", data)
		}
		if r.Error != nil && !strings.Contains(string(keys["error"]), `"ok_to_retry":`) {
			t.Errorf("got %s", keys["error"])
		}
	}
	if r := Failure(iaas.Failf(iaas.DiskNotFound, "no %s", strings.Repeat("ä", maxMessage))); r.Error.Type != "Bosh::Clouds::DiskNotFound" || len(r.Error.Message) > maxMessage+8 || r.Error.OKToRetry {
		t.Errorf("got %+v", r.Error)
	}
}

// Contract C.3.
func TestLocal(t *testing.T) {
	for method, want := range map[string]string{"info": "", "ping": "", "configure_networks": "NotSupported", "current_vm_id": "NotImplemented", "x": "NotImplemented"} {
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

// The Director uploads a stemcell only if the CPI names one of its formats. That of cloudstack is compressed with bzip2, which is not
// unpacked.
func TestFormatsOfOurStemcells(t *testing.T) {
	for _, i := range image.Infrastructures {
		known := slices.ContainsFunc(i.Formats, func(format string) bool { return slices.Contains(formats, format) })
		if want := i.Name != "cloudstack"; known != want {
			t.Errorf("stemcell for %s: formats %v known %v, want %v", i.Name, i.Formats, known, want)
		}
	}
}

// Contract C.4.
func TestWhereNothingIs(t *testing.T) {
	c := Client{Dir: t.TempDir(), Name: "x"}
	for method, want := range map[string]any{"has_vm": false, "has_disk": false, "delete_vm": nil, "delete_disk": nil, "delete_stemcell": nil} {
		if r := c.Do(t.Context(), Envelope{Request: Request{Method: method, Arguments: []json.RawMessage{[]byte(`"a"`)}}}); r.Error != nil || r.Result != want {
			t.Errorf("%s: got %+v, want %v", method, r, want)
		}
	}
	if r := c.Do(t.Context(), Envelope{Request: Request{Method: "reboot_vm", Arguments: []json.RawMessage{[]byte(`"a"`)}}}); r.Error == nil {
		t.Error("reboot_vm without a holder is no error")
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
		"another call's":     {"b", func(_ *holder, confirm, hangUp func()) { confirm(); hangUp() }, false},
		"hung up":            {"a", func(_ *holder, _, hangUp func()) { hangUp() }, false},
		"the holder ends":    {"a", func(h *holder, _, _ func()) { close(h.closing) }, true},
		"without a delivery": {"", func(*holder, func(), func()) {}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := &holder{closing: make(chan struct{}), deliveries: map[string]chan struct{}{}}
			got := make(chan bool, 1)
			mux := h.calling()
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
