package disk

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"cambium/internal/looptest"
	"cambium/platform/disk/layout"
)

// TestSurveyLeavesTheTableOut: a partition table, complete or partially written, is not content. Anything else is.
func TestSurveyLeavesTheTableOut(t *testing.T) {
	const size = 64 << 20
	script := func(text string) func(*testing.T, string) {
		return func(t *testing.T, image string) {
			t.Helper()
			looptest.Needs(t, "sfdisk")
			cmd := exec.Command("sfdisk", "-q", "--no-tell-kernel", image)
			cmd.Stdin = strings.NewReader(text)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("sfdisk: %v: %s", err, out)
			}
		}
	}
	entry := func(name string) func(*testing.T, string) {
		return func(t *testing.T, image string) {
			data := make([]byte, 128)
			copy(data, strings.Repeat("\x55", 48))
			copy(data[gptNameOffset:], utf16Bytes(name))
			pokeImage(t, image, layout.UsableEnd(layout.GPT, size, 512), data)
		}
	}
	for _, c := range []struct {
		name  string
		make  func(*testing.T, string)
		blank bool
	}{
		{"no table", func(*testing.T, string) {}, true},
		{"empty GPT", script("label: gpt\n"), true},
		{"empty DOS", script("label: dos\n"), true},
		{"empty GPT, and a byte after it", func(t *testing.T, image string) {
			script("label: gpt\n")(t, image)
			pokeImage(t, image, 34*512, []byte("x"))
		}, false},
		{"a disk signature", func(t *testing.T, image string) { pokeImage(t, image, 440, []byte("sign")) }, true},
		{"the first entries of our unfinished table", entry("ours"), true},
		{"the first entries of another table", entry("others"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			image := looptest.Image(t, size)
			c.make(t, image)
			s, err := Inspect(image)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Survey(t.Context(), s, "ours")
			if err != nil || r.IsEmpty() != c.blank {
				t.Errorf("%+v, %v; want blank: %v", r, err, c.blank)
			}
		})
	}
}

func pokeImage(t *testing.T, image string, offset int64, data []byte) {
	t.Helper()
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(data, offset); err != nil {
		t.Fatal(err)
	}
}
