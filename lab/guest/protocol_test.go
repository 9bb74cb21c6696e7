package guest

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func TestFramesComeBack(t *testing.T) {
	var wire bytes.Buffer
	w := &Writer{W: &wire}
	long := strings.Repeat("0123456789", 10_000)
	if n, err := (Stream{To: w, Kind: Stdout, ID: 7}).Write([]byte(long)); n != len(long) || err != nil {
		t.Fatalf("%d bytes written, %v", n, err)
	}
	if err := w.JSON(Exit, 7, Result{Status: 3}); err != nil {
		t.Fatal(err)
	}
	if err := w.Frame(Stdin, 1, make([]byte, maxData+1)); err == nil {
		t.Error("a frame that is too long was written")
	}
	got := ""
	for {
		f, err := Read(&wire)
		if err != nil || f.ID != 7 {
			t.Fatalf("frame %+v, %v", f, err)
		}
		if f.Kind == Exit {
			if string(f.Data) != `{"status":3}` {
				t.Errorf("result %s", f.Data)
			}
			break
		}
		got += string(f.Data)
	}
	if got != long {
		t.Errorf("%d bytes came back, want %d", len(got), len(long))
	}
	if _, err := Read(&wire); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	var wire bytes.Buffer
	_ = (&Writer{W: &wire}).Frame(Run, 1, []byte(`{"op":"run"}`))
	f.Add(wire.Bytes())
	f.Add([]byte{1, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		for r := bytes.NewReader(data); ; {
			frame, err := Read(r)
			if err != nil {
				return
			}
			if len(frame.Data) > maxData {
				t.Errorf("frame of %d bytes", len(frame.Data))
			}
		}
	})
}
