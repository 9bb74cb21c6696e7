//go:build root

package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"cambium/internal/looptest"
	"cambium/platform/disk"
)

// The partitions of a device-mapper disk are made by kpartx, some time after the table was
// written. A device on which the kernel refuses partitions stands for the disk here.
func TestRootMapperPartitionsAreAwaited(t *testing.T) {
	looptest.Require(t)
	if err := os.MkdirAll("/dev/mapper", 0o755); err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/dev/mapper/cambium-test-%d", os.Getpid())
	link := func(dev, path string) error {
		t.Cleanup(func() { _ = os.Remove(path) })
		return os.Symlink(dev, path)
	}
	dev, part := looptest.NewPlain(t, 64<<20), looptest.NewPlain(t, 62<<20)
	if err := link(dev.Path, path); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("sh", "-c", "printf 'label: gpt\\nstart=2048\\n' | sfdisk -q --no-reread --no-tell-kernel "+dev.Path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	stopped, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	if err := disk.Announce(stopped, path); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), path+"-part1") {
		t.Fatalf("Announce = %v, want it to wait for the partition", err)
	}
	made := make(chan error, 1)
	time.AfterFunc(200*time.Millisecond, func() { made <- link(part.Path, path+"-part1") })
	if err := errors.Join(disk.Announce(ctx, path), <-made); err != nil {
		t.Fatal(err)
	}
}
