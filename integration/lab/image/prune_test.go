package image

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestPruneKeepsWhatIsUsed(t *testing.T) {
	cache := t.TempDir()
	base := filepath.Join(cache, "vm-0123")
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
	make("-agent-today", 7*time.Hour)
	make("-agent-morning", 8*time.Hour)
	make("-agent-old", 25*time.Hour)
	make("4567", 8*24*time.Hour)
	make("89ab-agent-x.new", 8*24*time.Hour)
	Cache{Dir: cache}.prune()
	for name, want := range map[string]bool{"": true, "-agent-new0": true, "-agent-new2": true, "-agent-today": true, "-agent-morning": false, "-agent-old": false, "4567": false,
		"89ab-agent-x.new": true} {
		if _, err := os.Stat(base + name); (err == nil) != want {
			t.Errorf("%q is kept: %v, want %v", name, err == nil, want)
		}
	}
}
