//go:build root

package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/advice"
	"cambium/internal/looptest"
	"cambium/platform/mount"
	"cambium/settings"
)

// fakeRoot creates a disk whose first partition (the second with "# root" in the script) is mounted and passed off as
// the root file system; it is xfs if the script says so. Growing a mounted xfs needs no capability that sandboxes
// withhold.
func fakeRoot(t *testing.T, b *bench, size int64, script string) (*looptest.Device, string) {
	t.Helper()
	dev := b.disk(size, "")
	part := partitioned(t, dev, script)
	if strings.Contains(script, "# root") {
		part = dev.Path + "p2"
	}
	kind := "ext4"
	if strings.Contains(script, "xfs") {
		kind = "xfs"
	}
	mkfs(t, part, kind)
	target := filepath.Join(t.TempDir(), "root")
	b.ok(os.Mkdir(target, 0o755))
	b.ok(mount.MountDevice(ctx, part, target, kind, nil))
	b.RootMount = func() (mount.Entry, bool, error) {
		e, ok, err := mount.At(target)
		return e, ok, err
	}
	return dev, target
}

func TestRootEphemeralOnRootDisk(t *testing.T) {
	zero := uint64(0)
	for _, c := range []struct {
		name   string
		script string
		swap   *uint64
		data   string
		dump   []string
	}{
		{"swap and data", "label: dos\nstart=1, size=262144, type=83\n", nil, "p3",
			[]string{"start=1,size=262144,type=83", "start=264192,", "start=395264,size=2111488,type=83"}},
		{"GPT", "label: gpt\nstart=2048, size=262144\n", &zero, "p2", []string{"start=264192,size=2242527", `name="bosh-partition-agent-1-0"`}},
		{"root after an EFI partition",
			"label: dos\n# root\nstart=2048, size=100352, type=ef\nstart=102400, size=161792, type=83\n", nil, "p4",
			[]string{"start=2048,size=100352,type=ef", "start=102400,size=161792,type=83", "start=264192,size=131072,type=83",
				"start=395264,size=2111488,type=83"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Options{CreatePartitionIfNoEphemeralDisk: true})
			dev, _ := fakeRoot(t, b, 2506752*512, c.script)
			b.ok(b.setupEphemeral("", c.swap))
			if got := mountedSource(t, b.Dirs.Data()); got != dev.Path+c.data {
				t.Errorf("data is %q, want %s", got, dev.Path+c.data)
			}
			dump := strings.ReplaceAll(tool(t, dev.Path, "sfdisk", "--dump", dev.Path), " ", "")
			for _, want := range c.dump {
				if !strings.Contains(dump, want) {
					t.Errorf("table lacks %q:\n%s", want, dump)
				}
			}
			b.ok(b.setupEphemeral("", c.swap))
			if after := strings.ReplaceAll(tool(t, dev.Path, "sfdisk", "--dump", dev.Path), " ", ""); after != dump {
				t.Error("a second run changed the table")
			}
		})
	}
	t.Run("data without a signature", func(t *testing.T) {
		b := newBench(t, Options{CreatePartitionIfNoEphemeralDisk: true})
		dev, _ := fakeRoot(t, b, 2*gib, "label: dos\nstart=2048, size=262144, type=83\nstart=264192, type=83\n")
		poke(t, dev.Path+"p2", 70<<10, []byte("records of a database"))
		before := checksum(t, dev)
		b.fails(b.setupEphemeral("", nil), "partition 2 after the root partition is not blank")
		if checksum(t, dev) != before {
			t.Error("the disk was changed")
		}
	})
	t.Run("container", func(t *testing.T) {
		b := newBench(t, Options{CreatePartitionIfNoEphemeralDisk: true})
		dev, _ := fakeRoot(t, b, 2*gib, "label: dos\nstart=2048, size=262144, type=83\n")
		b.InContainer = func() bool { return true }
		before := tool(t, dev.Path, "sfdisk", "--dump", dev.Path)
		err := b.setupEphemeral("", nil)
		b.fails(err, "No ephemeral disk found", "container")
		if got := advice.Of(err); !strings.HasPrefix(got, "give the VM an ephemeral disk") {
			t.Errorf("advice %q, want one about the ephemeral disk", got)
		}
		if tool(t, dev.Path, "sfdisk", "--dump", dev.Path) != before {
			t.Error("the host's disk was touched")
		}
	})
}

func TestRootGrowRoot(t *testing.T) {
	named := &settings.DiskHint{Path: "/dev/sdb"}
	for _, script := range []string{"label: dos\n# xfs\nstart=2048, size=786432, type=83\n",
		"label: gpt\nstart=2048, size=786432, name=\"xfs\"\n"} {
		t.Run(strings.Fields(script)[1], func(t *testing.T) {
			b := newBench(t, Options{})
			dev, target := fakeRoot(t, b, 1<<30, script)
			write(t, filepath.Join(target, "file"), "x")
			before := bytesOf(t, target)
			b.did(b.GrowRoot(ctx, named, true))
			if after := bytesOf(t, target); after < before*2 {
				t.Errorf("file system has %d bytes, before %d", after, before)
			}
			dump := tool(t, dev.Path, "sfdisk", "--dump", dev.Path)
			b.did(b.GrowRoot(ctx, named, true))
			if after := tool(t, dev.Path, "sfdisk", "--dump", dev.Path); after != dump {
				t.Error("a second run changed the table")
			}
			b.ok(mount.Unmount(ctx, target))
			tool(t, dev.Path, "xfs_repair", "-n", dev.Path+"p1")
		})
	}
	for name, source := range map[string]func(t *testing.T, dev *looptest.Device) func(*mount.Entry){
		// A test suite makes another disk the root disk by putting a link in the node's place.
		"the path counts, links followed, not the number": func(t *testing.T, dev *looptest.Device) func(*mount.Entry) {
			link := fmt.Sprintf("/dev/cambium-test-%d", os.Getpid())
			if err := os.Symlink(dev.Path+"p1", link); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Remove(link) })
			return func(e *mount.Entry) { e.Source, e.Number = link, 0 }
		},
		"the number counts where the path is a placeholder": func(t *testing.T, dev *looptest.Device) func(*mount.Entry) {
			number := numberOf(t, dev.Path+"p1")
			return func(e *mount.Entry) { e.Source, e.Number = "/dev/root", number }
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev, target := fakeRoot(t, b, 1<<30, "label: gpt\nstart=2048, size=786432, name=\"xfs\"\n")
			withRoot(source(t, dev))(b)
			before := bytesOf(t, target)
			b.did(b.GrowRoot(ctx, named, true))
			if after := bytesOf(t, target); after < before*2 {
				t.Errorf("file system has %d bytes, before %d", after, before)
			}
		})
	}
	for name, change := range map[string]func(*bench){
		"container":            func(b *bench) { b.InContainer = func() bool { return true } },
		"root is a directory":  withRoot(func(e *mount.Entry) { e.Root = "/var/lib/machines/x" }),
		"root is not a device": withRoot(func(e *mount.Entry) { e.Source = "overlay" }),
		"root is a volume":     withRoot(func(e *mount.Entry) { e.Source = "/dev/mapper/none" }),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev, _ := fakeRoot(t, b, 1<<30, "label: gpt\nstart=2048, size=786432\n")
			before := tool(t, dev.Path, "sfdisk", "--dump", dev.Path)
			change(b)
			b.did(b.GrowRoot(ctx, named, true))
			if after := tool(t, dev.Path, "sfdisk", "--dump", dev.Path); after != before {
				t.Errorf("table changed:\n%s\n%s", before, after)
			}
		})
	}
}

func withRoot(edit func(*mount.Entry)) func(*bench) {
	return func(b *bench) {
		real := b.RootMount
		b.RootMount = func() (mount.Entry, bool, error) {
			e, ok, err := real()
			e.Number = 0
			edit(&e)
			return e, ok, err
		}
	}
}
