//go:build root

package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/platform/mount"
)

// counted sets the count of free inodes of an unmounted ext4, as files do that come and go.
func counted(t *testing.T, part string, n int) {
	t.Helper()
	looptest.Needs(t, "debugfs")
	tool(t, part, "debugfs", "-w", "-R", fmt.Sprintf("set_super_value free_inodes_count %d", n), part)
}

// touched creates files on an unmounted ext4 until it has so many free inodes.
func touched(t *testing.T, part string, free uint64) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "touch")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := mount.Device(ctx, part, dir, "ext4", nil); err != nil {
		t.Fatal(err)
	}
	var have unix.Statfs_t
	if err := unix.Statfs(dir, &have); err != nil || have.Ffree < free {
		t.Fatalf("%d free inodes, %v; want more than %d", have.Ffree, err, free)
	}
	for n := range have.Ffree - free {
		write(t, filepath.Join(dir, fmt.Sprint(n)), "")
	}
	if err := mount.Unmount(ctx, dir); err != nil {
		t.Fatal(err)
	}
}

// What a store counts or what a file of it holds may look like anything: the store is mounted, and formatted neither by
// a setting nor at a reboot.
func TestRootStoreThatLooksLikeSomethingElse(t *testing.T) {
	type look = func(t *testing.T, part string)
	cases := map[string]struct {
		kind string
		look look
	}{
		"touched until it looks like minix": {"ext4", func(t *testing.T, part string) { touched(t, part, 0x2478) }},
		"ZFS in a file of xfs": {"xfs", func(t *testing.T, part string) {
			poke(t, part, 128<<10, []byte(strings.Repeat("\x0c\xb1\xba"+strings.Repeat("\x00", 1021), 128)))
		}},
	}
	for _, n := range []int{0x137f, 0x138f, 0x2468, 0x2478} {
		cases[fmt.Sprintf("%#x free inodes", n)] = struct {
			kind string
			look look
		}{"ext4", func(t *testing.T, part string) { counted(t, part, n) }}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			size := map[string]int64{"ext4": 80 << 20, "xfs": 400 << 20}[c.kind]
			for _, foreign := range []string{"refuse", "format"} {
				b := newBench(t, Options{})
				b.Persistent.Foreign = func() string { return foreign }
				dev := b.disk(size, "vol-1")
				part := partitioned(t, dev, "label: gpt\nstart=2048, name=\"bosh-partition-0\"\n")
				filled(t, part, c.kind)
				c.look(t, part)
				for range 2 {
					b.ok(b.Mount(ctx, "vol-1"))
					if got := read(t, filepath.Join(b.Dirs.Store(), "data")); got != "precious" {
						t.Errorf("data is %q", got)
					}
					b.unmounted("vol-1", "Unmounted partition of vol-1")
					b.ok(boot(b.disks()))
					b.unmounted("vol-1", "Unmounted partition of vol-1")
					c.look(t, part)
				}
			}
		})
	}
	t.Run("ephemeral", func(t *testing.T) {
		for _, n := range []int{0x137f, 0x138f, 0x2468, 0x2478} {
			b := newBench(t, Options{})
			dev := b.disk(160<<20, "")
			b.ok(b.setupEphemeral(dev.Path, new(uint64)))
			write(t, filepath.Join(b.Dirs.Data(), "kept"), "x")
			b.ok(mount.Unmount(ctx, b.Dirs.Data()))
			counted(t, dev.Path+"p1", n)
			b.ok(b.setupEphemeral(dev.Path, new(uint64)))
			if got := read(t, filepath.Join(b.Dirs.Data(), "kept")); got != "x" {
				t.Errorf("%#x: data is %q", n, got)
			}
			b.ok(mount.Unmount(ctx, b.Dirs.Data()))
		}
	})
}
