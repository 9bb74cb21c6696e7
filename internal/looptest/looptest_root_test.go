//go:build root

package looptest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/blkdev"
	"cambium/internal/looptest"
)

func TestRootGuardRefusesEverythingElse(t *testing.T) {
	looptest.Require(t)
	disks, err := os.ReadDir("/sys/class/block")
	if err != nil {
		t.Fatal(err)
	}
	own := looptest.New(t, 8<<20)
	refused := 0
	for _, d := range disks {
		path := "/dev/" + strings.ReplaceAll(d.Name(), "!", "/")
		if strings.HasPrefix(d.Name(), "loop") {
			continue // another test may be using it
		}
		if err := looptest.Guard(path); err == nil {
			t.Errorf("Guard(%s) = nil, want a refusal", path)
		}
		refused++
	}
	if refused == 0 {
		t.Error("no disk of this machine was seen, so nothing was refused")
	}
	for _, path := range []string{"/dev/null", "/dev/there-is-none", own.Image, "/"} {
		if err := looptest.Guard(path); err == nil {
			t.Errorf("Guard(%s) = nil, want a refusal", path)
		}
	}
	if err := looptest.Guard(own.Path); err != nil {
		t.Errorf("Guard of an own device: %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/dev/vda", link); err != nil {
		t.Fatal(err)
	}
	if err := looptest.Guard(link); err == nil {
		t.Error("a link to another disk was let through")
	}
}

func TestRootCleanupLeavesNothing(t *testing.T) {
	var path, image string
	t.Run("use", func(t *testing.T) {
		d := looptest.New(t, 32<<20)
		path, image = d.Path, d.Image
		f, err := os.OpenFile(d.Path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := blkdev.AddPartition(f, 1, 1<<20, 8<<20); err != nil {
			t.Fatal(err)
		}
		if err := looptest.Guard(d.Path + "p1"); err != nil {
			t.Errorf("Guard of an own partition: %v", err)
		}
	})
	backing, err := os.ReadFile("/sys/class/block/" + filepath.Base(path) + "/loop/backing_file")
	if err == nil && strings.TrimSpace(string(backing)) == image {
		t.Errorf("%s still has %s", path, image)
	}
}
