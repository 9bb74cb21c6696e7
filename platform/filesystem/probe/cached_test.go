package probe

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
)

// broken is a device of which one byte cannot be read.
type broken struct {
	*bytes.Reader
	at    int64
	reads int
}

var errBroken = errors.New("input/output error")

func (b *broken) ReadAt(p []byte, offset int64) (int, error) {
	b.reads++
	if b.at >= offset && b.at < offset+int64(len(p)) {
		return int(b.at - offset), errBroken
	}
	return b.Reader.ReadAt(p, offset)
}

func TestCachedReadsWhatIsThere(t *testing.T) {
	data := make([]byte, 1<<20+777)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	device := &broken{Reader: bytes.NewReader(data), at: 500_000}
	c := NewCached(device, int64(len(data)))
	for range 20_000 {
		offset, length := random.Int64N(int64(len(data))+10), random.IntN(5000)
		got, want := make([]byte, length), make([]byte, length)
		gotN, gotErr := c.ReadAt(got, offset)
		wantN, wantErr := device.ReadAt(want, offset)
		if gotN != wantN || !errors.Is(gotErr, wantErr) || !bytes.Equal(got[:gotN], want[:wantN]) {
			t.Fatalf("%d bytes at %d: got %d, %v; want %d, %v", length, offset, gotN, gotErr, wantN, wantErr)
		}
	}
	if _, err := c.ReadAt(make([]byte, 1), -1); err == nil {
		t.Error("a negative offset is not an error")
	}
	if _, err := c.ReadAt(make([]byte, 1), int64(len(data))); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v, want EOF", err)
	}
}

func TestCachedReadsOnce(t *testing.T) {
	device := &broken{Reader: bytes.NewReader(make([]byte, 1<<20)), at: -1}
	c := NewCached(device, 1<<20)
	for offset := range int64(3 * cachedBlock / 8) {
		if _, err := c.ReadAt(make([]byte, 8), 8*offset); err != nil {
			t.Fatal(err)
		}
	}
	if device.reads != 3 {
		t.Errorf("%d reads, want 3", device.reads)
	}
}
