//go:build vm

package qemu

import (
	"context"
	"testing"
	"time"

	"cambium/integration/lab/image"
	"cambium/integration/lab/tree"
	"cambium/internal/looptest"
)

// TestVMTrial boots what shows whether KVM works, emulated: it answers, but not if it hangs.
func TestVMTrial(t *testing.T) {
	looptest.Needs(t, "qemu-system-x86_64")
	img, err := image.Cache{Dir: tree.DefaultDir(), Progress: t.Logf}.Trial(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if !probe(ctx, img, emulated) {
		t.Error("the trial fails where virtual machines run")
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if probe(short, img, emulated) {
		t.Error("a machine that does not answer in time passes the trial")
	}
}
