package guestinfo

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cambium/infrastructure/internal/source"
)

// hypervisor is a directory with a file for each guestinfo key, and the tools that read and write them.
type hypervisor struct{ dir string }

func newHypervisor(t *testing.T) hypervisor {
	t.Helper()
	h := hypervisor{t.TempDir()}
	// Both tools take one request, "info-get KEY" or "info-set KEY VALUE".
	script := `#!/bin/sh
[ "$1" = --cmd ] && shift
cd '` + h.dir + `' || exit 3
echo "$1" >> requests
set -- "${1%% *}" "${1#* }"
case $1 in
info-get) [ -f "$2" ] || { echo "No value found" >&2; exit 1; }; cat "$2" ;;
info-set) printf %s "${2#* }" > "${2%% *}" ;;
esac
`
	for _, tool := range []string{"rpctool", "vmtoolsd"} {
		if err := os.WriteFile(filepath.Join(h.dir, tool), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func (h hypervisor) set(t *testing.T, value string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, key), []byte(value), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (h hypervisor) get(name string) string {
	value, _ := os.ReadFile(filepath.Join(h.dir, name))
	return string(value)
}

func (h hypervisor) source() *Source {
	return New(Options{RPCToolPath: filepath.Join(h.dir, "rpctool"), VMToolsdPath: filepath.Join(h.dir, "vmtoolsd")})
}

func zip(t *testing.T, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSettings(t *testing.T) {
	document := `{"agent_id":"v"}`
	encoded := base64.StdEncoding.EncodeToString([]byte(document))
	large := `{"agent_id":"v","x":"` + strings.Repeat("y", 300<<10) + `"}`
	for _, c := range []struct {
		name, value, want, err string
		kind                   source.Kind
	}{
		{name: "base64", value: encoded, want: document},
		{name: "base64 with line breaks", value: encoded[:8] + "\n" + encoded[8:] + "\n", want: document},
		{name: "gzip", value: base64.StdEncoding.EncodeToString(zip(t, document)), want: document},
		{name: "plain", value: document, want: document},
		{name: "larger than a pipe", value: base64.StdEncoding.EncodeToString([]byte(large)), want: large},
		{name: "erased", value: "---", err: "erased", kind: source.Definite},
		{name: "empty", value: "\n", err: "empty", kind: source.Definite},
		{name: "not base64", value: "canary!", err: "not base64", kind: source.Definite},
		{name: "damaged gzip", value: base64.StdEncoding.EncodeToString(zip(t, document)[:14]), err: "gzip", kind: source.Definite},
		{name: "gzip bomb", value: base64.StdEncoding.EncodeToString(zip(t, strings.Repeat("x", source.MaxDocument+1))), err: "too large", kind: source.Definite},
		{name: "not a document", value: base64.StdEncoding.EncodeToString([]byte(`{"canary":`)), err: "not valid JSON", kind: source.NotYetThere},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHypervisor(t)
			h.set(t, c.value)
			answer, err := h.source().Settings(t.Context())
			if c.err == "" && (err != nil || string(answer.Raw.Reveal()) != c.want) {
				t.Errorf("%d bytes, %v", len(answer.Raw.Reveal()), err)
			}
			if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || source.KindOf(err) != c.kind ||
				strings.Contains(err.Error(), "canary")) {
				t.Errorf("error %v of kind %d, want %q of kind %d and no content", err, source.KindOf(err), c.err, c.kind)
			}
			if h.get(key) != c.value {
				t.Error("reading changed the value")
			}
		})
	}
}

// Contract S.12.
func TestErasedOnlyWhenCleared(t *testing.T) {
	h := newHypervisor(t)
	h.set(t, base64.StdEncoding.EncodeToString([]byte(`{"agent_id":"v"}`)))
	answer, err := h.source().Settings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(h.get("requests"), "info-set") {
		t.Fatal("erased before the settings were safe")
	}
	if err := answer.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := h.get(key); got != "---" {
		t.Errorf("value %q, want ---", got)
	}
	if got, err := os.ReadFile(filepath.Join(h.dir, encodingKey)); err != nil || len(got) != 0 {
		t.Errorf("encoding %q, %v; want empty", got, err)
	}
	if _, err := h.source().Settings(t.Context()); err == nil || source.KindOf(err) != source.Definite {
		t.Errorf("second read: error %v, want a final one", err)
	}
}

func TestSecondTool(t *testing.T) {
	h := newHypervisor(t)
	h.set(t, `{"agent_id":"v"}`)
	for name, first := range map[string]string{"missing": filepath.Join(h.dir, "nothing"), "failing": "/bin/false"} {
		s := New(Options{RPCToolPath: first, VMToolsdPath: filepath.Join(h.dir, "vmtoolsd")})
		if answer, err := s.Settings(t.Context()); err != nil || answer.Raw.Empty() {
			t.Errorf("%s: %v, want the answer of the second tool", name, err)
		}
	}
	_, err := New(Options{RPCToolPath: filepath.Join(h.dir, "nothing"),
		VMToolsdPath: filepath.Join(h.dir, "nothing")}).Settings(t.Context())
	if source.KindOf(err) != source.Definite || !strings.Contains(err.Error(), "not installed") {
		t.Errorf("no tool: error %v, want a final one", err)
	}
}

func TestNoValue(t *testing.T) {
	_, err := newHypervisor(t).source().Settings(t.Context())
	if source.KindOf(err) != source.Definite || !strings.Contains(err.Error(), "No value found") {
		t.Errorf("error %v, want a final one with the tool's output", err)
	}
}

func TestHangingToolIsEnded(t *testing.T) {
	h := newHypervisor(t)
	tool := filepath.Join(h.dir, "hangs")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	go func() {
		_, err := New(Options{RPCToolPath: tool, VMToolsdPath: tool}).Settings(ctx)
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil {
			t.Error("no error")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("still waiting for the tool")
	}
}

func FuzzInflate(f *testing.F) {
	f.Add([]byte{0x1f, 0x8b})
	f.Add([]byte(`{"agent_id":"v"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if out, err := inflate(body); err == nil && len(out) > source.MaxDocument {
			t.Errorf("%d bytes", len(out))
		}
	})
}
