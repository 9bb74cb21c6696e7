package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPackIsBounded(t *testing.T) {
	var files []file
	for _, name := range strings.Fields("a b c d e f g h i j k l m n o p q r s t") {
		files = append(files, file{name: name, data: bytes.Repeat([]byte("line\n"), maxFile/5+1)})
	}
	archive, err := pack(files, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	total, names := int64(0), ""
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Size > maxFile {
			t.Errorf("%s has %d bytes", h.Name, h.Size)
		}
		total, names = total+h.Size, names+h.Name+" "
	}
	if total > maxTotal+1024 || !strings.HasSuffix(names, "support/left-out.txt ") {
		t.Errorf("%d bytes: %s", total, names)
	}
}

func TestScrub(t *testing.T) {
	raw := [][]byte{[]byte(`{"agent_id":"agent-1","mbus":"nats://nats:pass-word@10.0.0.6:4222","key":"-----BEGIN KEY-----\nMIIEvQIBADANBg\n-----END KEY-----","x":"quo\"ted","cut":"half of a sec`)}
	s := newScrubber(raw, [][]byte{[]byte(`{"agent_id":"agent-1"}`)})
	got := string(s.clean([]byte("agent-1 at nats://nats:pass-word@10.0.0.6:4222 MIIEvQIBADANBg quo\"ted quo\\\"ted half of a sec mbus")))
	if want := "agent-1 at nats://nats:***@10.0.0.6:4222 *** *** *** *** mbus"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestPutOverwritesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.tgz")
	if err := put(path, []byte("1"), nil); err != nil {
		t.Fatal(err)
	}
	if err := put(path, []byte("2"), nil); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("got %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", info, err)
	}
}
