//go:build root

package storage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/looptest"
	"cambium/platform/disk"
	"cambium/platform/filesystem"
	"cambium/platform/filesystem/probe"
	"cambium/settings"
)

// TestRootDisksOfJobsAreLeftAlone: disks that jobs find by names of their own, from disk_associations or dynamic, are
// never read, whatever they contain and whichever hint leads there. Here each is a later state of the store, with a
// journal that a mount would replay.
func TestRootDisksOfJobsAreLeftAlone(t *testing.T) {
	b, dev := aStore(t)
	later := func() *looptest.Device {
		b.ok(boot(b.disks()))
		b.put("of a job")
		copied := clone(t, dev)
		b.ok(disk.Announce(ctx, copied.Path))
		if used, err := filesystem.JournalUsed(copied.Path+"p1", probe.Ext4); err != nil || !used {
			t.Fatalf("the journal is used: %v, %v", used, err)
		}
		b.put("one")
		return copied
	}
	named, dynamic := later(), later()
	b.unmountAll()
	b.Persistent.Associated = func() []string { return []string{"named"} }
	b.attach("named", named.Path)
	b.attach("a leftover of named", named.Path)
	b.attach("a leftover of dynamic", dynamic.Path)
	b.ok(b.AddDynamic(ctx, "dynamic", settings.DiskHint{Path: dynamic.Path}))
	_, err := b.Associate(ctx, []settings.DiskAssociation{{Name: "mine", CID: "named"}}, true)
	b.ok(err)
	before := map[*looptest.Device]string{named: checksum(t, named), dynamic: checksum(t, dynamic)}
	alone := func(when string) {
		t.Helper()
		for of, sum := range before {
			if checksum(t, of) != sum {
				t.Errorf("%s: a disk of jobs was changed", when)
			}
			if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), of.Path) {
				t.Errorf("%s: a disk of jobs is mounted, %v", when, err)
			}
		}
		if strings.Contains(b.log.String(), "cannot be looked at") {
			t.Errorf("%s: a disk of jobs was looked at", when)
		}
	}
	for _, lose := range []bool{false, true} { // without a record, the disks tell which one is the store
		if lose {
			b.ok(os.Remove(b.Dirs.DiskRecord()))
			b.records.mounted = ""
		}
		changes, _, err := b.MountStore(ctx, false)
		if b.ok(err); len(changes) == 0 {
			t.Error("nothing is planned")
		}
		alone("plan")
		b.ok(boot(b.disks()))
		b.used(dev, "old", "one")
		alone("boot")
		b.unmounted("old", "Unmounted partition of old")
		b.ok(b.Mount(ctx, "old"))
		b.used(dev, "old", "one")
		alone("mount_disk")
		b.unmountAll()
	}
	b.ok(boot(b.disks()))
	if planned, err := b.PlanMount(ctx); err != nil || len(planned) > 0 {
		t.Errorf("planned for disks of jobs: %v, %v", planned, err)
	}
	fresh := b.disk(64<<20, "new")
	b.ok(b.Mount(ctx, "new"))
	b.ok(b.Migrate(ctx, "old", "new"))
	b.used(fresh, "new", "one")
	alone("migrate_disk")
	if link, err := os.Readlink(filepath.Join(b.Dirs.DiskAssociations(), "mine")); err != nil || link != named.Path {
		t.Errorf("the name leads to %q, %v", link, err)
	}
}
