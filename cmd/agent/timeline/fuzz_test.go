package timeline

import (
	"encoding/json"
	"io"
	"testing"

	"cambium/internal/status"
)

// FuzzChart draws whatever a status file may hold, also of another version or damaged, in every form.
func FuzzChart(f *testing.F) {
	for _, d := range []status.Document{booted(), stuck(), {}} {
		data, err := json.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, uint8(80))
	}
	f.Fuzz(func(t *testing.T, data []byte, width uint8) {
		var d status.Document
		if json.Unmarshal(data, &d) != nil {
			return
		}
		c := NewChart(d, d.Age())
		Text(io.Discard, c, int(width))
		Blame(io.Discard, c, int(width))
		compare(io.Discard, c, c, int(width))
	})
}
