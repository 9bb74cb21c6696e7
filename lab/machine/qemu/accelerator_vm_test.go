//go:build vm

package qemu

import (
	"context"
	"testing"
	"time"

	"cambium/internal/looptest"
	"cambium/lab/image"
	"cambium/lab/tree"
)

// TestVMTrial boots what shows whether KVM works, emulated: it answers, but not if it hangs.
func TestVMTrial(t *testing.T) {
	looptest.Needs(t, "qemu-system-x86_64")
	img, err := image.Cache{Dir: tree.DefaultDir(), Progress: t.Logf}.Trial(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	works := func(limit time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return probe(ctx, img, emulated)
	}
	passed := works(2 * time.Minute)
	if !passed { // an emulated kernel may hang on a busy host
		passed = works(2 * time.Minute)
	}
	if !passed {
		t.Error("the trial fails where virtual machines run")
	}
	if works(100 * time.Millisecond) {
		t.Error("a machine that does not answer in time passes the trial")
	}
}
