package timeline

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"cambium/internal/status"
)

// FuzzChart draws whatever a status file may hold, also of another version or damaged, in every form. A picture is XML.
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
		c := From(d, d.Age())
		Text(io.Discard, c, int(width))
		Blame(io.Discard, c, int(width))
		compare(io.Discard, c, c, int(width))
		var picture strings.Builder
		if err := SVG(&picture, c); err != nil {
			t.Fatal(err)
		}
		for decoder := xml.NewDecoder(strings.NewReader(picture.String())); ; {
			if _, err := decoder.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%v in %s", err, picture.String())
			}
		}
	})
}
