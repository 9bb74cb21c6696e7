//go:build root

package vitals

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/skiptest"
)

// TestRootDeadFileSystem: a FUSE file system that hangs, like a network file system without its server, does not affect
// the vitals of others.
func TestRootDeadFileSystem(t *testing.T) {
	skiptest.WithoutRoot(t, "to mount FUSE")
	dir := t.TempDir()
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		skiptest.Skip(t, err)
	}
	defer server.Close()
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())
	if err := unix.Mount("dead", dir, "fuse", unix.MS_NODEV|unix.MS_NOSUID, options); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	g := New("/", "/proc", dir)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 3 {
			v, err := g.Measure(t.Context())
			if _, there := v.Disk["system"]; err != nil || !there {
				t.Errorf("got %+v, %v, want the system's disk", v, err)
			}
			if d, there := v.Disk["persistent"]; there {
				t.Errorf("got %+v of a file system that never answered", d)
			}
		}
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the vitals wait for a file system that does not answer")
	}
}
