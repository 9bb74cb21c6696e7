package image

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestPruneKeepsWhatIsUsed(t *testing.T) {
	base := filepath.Join(t.TempDir(), "vm-0123")
	make := func(name string, ago time.Duration) {
		dir := base + name
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-ago)
		if err := os.Chtimes(dir, then, then); err != nil {
			t.Fatal(err)
		}
	}
	make("", 48*time.Hour)
	for n := range 3 {
		make(fmt.Sprintf("-agent-new%d", n), time.Minute)
	}
	make("-agent-today", 2*time.Hour)
	make("-agent-morning", 3*time.Hour)
	make("-agent-old", 25*time.Hour)
	Cache{}.prune(base)
	for name, want := range map[string]bool{"": true, "-agent-new0": true, "-agent-new2": true, "-agent-today": true, "-agent-morning": false, "-agent-old": false} {
		if _, err := os.Stat(base + name); (err == nil) != want {
			t.Errorf("%q is kept: %v, want %v", name, err == nil, want)
		}
	}
}
