//go:build root

package storage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/looptest"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/decide"
)

func texts(changes []Change) string {
	var all []string
	for _, c := range changes {
		all = append(all, c.String())
	}
	return strings.Join(all, "\n")
}

// TestRootPlannedIsDone: a boot reports exactly the planned changes, and then the plan is empty.
func TestRootPlannedIsDone(t *testing.T) {
	zero := uint64(0)
	type step struct {
		plan func(b *bench) ([]Change, error)
		do   func(b *bench) ([]Change, error)
	}
	ephemeral := func(path string, swap *uint64) step {
		var hint *settings.DiskHint
		if path != "" {
			hint = &settings.DiskHint{Path: path}
		}
		return step{func(b *bench) ([]Change, error) { return b.Setup(ctx, hint, swap, "agent-1", false) },
			func(b *bench) ([]Change, error) { return b.Setup(ctx, hint, swap, "agent-1", true) }}
	}
	raw := func(path string) step {
		hints := []settings.DiskHint{{Path: path}}
		return step{func(b *bench) ([]Change, error) { return b.SetupRaw(ctx, hints, false) },
			func(b *bench) ([]Change, error) { return b.SetupRaw(ctx, hints, true) }}
	}
	last := step{func(b *bench) ([]Change, error) { changes, _, err := b.MountStore(ctx, false); return changes, err },
		func(b *bench) ([]Change, error) {
			changes, warning, err := b.MountStore(ctx, true)
			if warning != "" {
				t.Errorf("warning %q", warning)
			}
			return changes, err
		}}
	links := []settings.DiskAssociation{{Name: "db", CID: "vol-1"}}
	for _, c := range []struct {
		name    string
		options Options
		prepare func(t *testing.T, b *bench) step
		want    []string // parts of the changes, one each
	}{
		{"blank ephemeral disk", Options{}, func(t *testing.T, b *bench) step { return ephemeral(b.disk(512<<20, "").Path, nil) },
			[]string{"create GPT, swap", "p1: new partition: make swap", "p2: new partition: make ext4", "enable swap",
				"mount on "}},
		{"ephemeral disk with a file system", Options{}, func(t *testing.T, b *bench) step {
			dev := b.disk(256<<20, "")
			tool(t, dev.Path, "mkfs.ext4", "-qF", dev.Path)
			return ephemeral(dev.Path, &zero)
		}, []string{"ext4, 256.0 MiB, not in use, not a persistent disk, holds ephemeral data only: create GPT, data",
			"make ext4", "mount on "}},
		{"ephemeral disk after a reboot", Options{}, func(t *testing.T, b *bench) step {
			dev := b.disk(512<<20, "")
			b.ok(b.setupEphemeral(dev.Path, nil))
			b.ok(mount.Unmount(ctx, b.Dirs.Data()))
			b.ok(looptest.SwapOff(dev.Path + "p1"))
			return ephemeral(dev.Path, nil)
		}, []string{"enable swap", "p2: ext4: mount on "}},
		{"ephemeral data on the root disk", Options{CreatePartitionIfNoEphemeralDisk: true}, func(t *testing.T, b *bench) step {
			fakeRoot(t, b, 2*gib, "label: gpt\nstart=2048, size=262144\n")
			return ephemeral("", nil)
		}, []string{"nothing after root partition 1: append GPT, swap", "make swap", "make ext4", "enable swap",
			"mount on "}},
		{"a named ephemeral disk that is missing, and the root disk instead", Options{CreatePartitionIfNoEphemeralDisk: true, MissingEphemeralDisk: "root"},
			func(t *testing.T, b *bench) step {
				fakeRoot(t, b, 2*gib, "label: gpt\nstart=2048, size=262144\n")
				s := ephemeral("/dev/missing", nil)
				return step{func(b *bench) ([]Change, error) {
					planned, err := s.plan(b)
					if len(planned) == 0 || planned[0].Op != decide.Await {
						t.Errorf("planned\n%s\nwant a wait for the disk first", texts(planned))
					}
					return planned[1:], err
				}, s.do}
			}, []string{"nothing after root partition 1: append GPT, swap", "make swap", "make ext4",
				"enable swap", "mount on "}},
		{"raw disk", Options{}, func(t *testing.T, b *bench) step { return raw(b.disk(8<<20, "").Path) }, []string{"create GPT with partition raw-ephemeral-0"}},
		{"persistent disk after a reboot", Options{}, func(t *testing.T, b *bench) step {
			b.disk(128<<20, "vol-1")
			b.ok(b.Mount(ctx, "vol-1"))
			b.unmounted("vol-1", "Unmounted partition of vol-1")
			return last
		}, []string{"p1: ext4: mount on "}},
		{"persistent disk that grew, and that has errors on record", Options{}, func(t *testing.T, b *bench) step {
			dev := b.disk(400<<20, "vol-1")
			b.ok(b.Mount(ctx, "vol-1"))
			b.unmounted("vol-1", "Unmounted partition of vol-1")
			tool(t, dev.Path, "debugfs", "-w", "-R", "ssv state 2", dev.Path+"p1")
			dev.Grow(t, 900<<20)
			return last
		}, []string{"the disk is larger than its partition: grow partition 1 to end at 899.0 MiB",
			"errors are on record: check ext4", "mount on ", "grow ext4"}},
		{"root disk", Options{}, func(t *testing.T, b *bench) step {
			fakeRoot(t, b, 1<<30, "label: gpt\nstart=2048, size=786432, name=\"xfs\"\n")
			named := &settings.DiskHint{Path: "/dev/sdb"}
			return step{func(b *bench) ([]Change, error) { return b.GrowRoot(ctx, named, false) },
				func(b *bench) ([]Change, error) { return b.GrowRoot(ctx, named, true) }}
		}, []string{"grow partition 1", "grow xfs"}},
		{"root disk, whose space is for a named ephemeral disk that is missing",
			Options{CreatePartitionIfNoEphemeralDisk: true, MissingEphemeralDisk: "root"}, func(t *testing.T, b *bench) step {
				fakeRoot(t, b, 2*gib, "label: gpt\nstart=2048, size=262144\n")
				named := &settings.DiskHint{Path: "/dev/missing"}
				return step{func(b *bench) ([]Change, error) { return b.GrowRoot(ctx, named, false) },
					func(b *bench) ([]Change, error) { return b.GrowRoot(ctx, named, true) }}
			}, nil},
		{"associations", Options{}, func(t *testing.T, b *bench) step {
			b.disk(8<<20, "vol-1")
			return step{func(b *bench) ([]Change, error) { return b.Associate(ctx, links, false) },
				func(b *bench) ([]Change, error) { return b.Associate(ctx, links, true) }}
		}, []string{"persistent disk vol-1: link as "}},
		{"bind-mounted disk", Options{BindMountPersistentDisk: true}, func(t *testing.T, b *bench) step {
			source := filepath.Join(t.TempDir(), "disk")
			b.ok(os.Mkdir(source, 0o755))
			b.records.disks["vol-1"] = settings.PersistentDisk{CID: "vol-1", Hint: settings.DiskHint{Path: source}}
			b.records.mounted = "vol-1"
			t.Cleanup(func() { _ = mount.Unmount(ctx, b.Dirs.Store()) })
			return last
		}, []string{"persistent disk vol-1: bind to "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, c.options)
			s := c.prepare(t, b)
			planned, err := s.plan(b)
			b.ok(err)
			done, err := s.do(b)
			b.ok(err)
			if texts(planned) != texts(done) {
				t.Errorf("planned\n%s\ndone\n%s", texts(planned), texts(done))
			}
			if len(planned) != len(c.want) {
				t.Fatalf("planned\n%s\nwant %q", texts(planned), c.want)
			}
			for i, want := range c.want {
				if !strings.Contains(planned[i].String(), want) {
					t.Errorf("change %d is %q, want %q", i, planned[i], want)
				}
			}
			if second, err := s.plan(b); err != nil || len(second) != 0 {
				t.Errorf("then planned\n%s\n%v; want nothing", texts(second), err)
			}
			if second, err := s.do(b); err != nil || len(second) != 0 {
				t.Errorf("then done\n%s\n%v; want nothing", texts(second), err)
			}
		})
	}
}
