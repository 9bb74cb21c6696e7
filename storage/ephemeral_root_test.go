//go:build root

package storage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/platform/filesystem"
	"cambium/platform/filesystem/probe"
	"cambium/platform/mount"
	"cambium/settings"
)

// TestRootEphemeralBlankDisk: the partitions of a blank disk, and the table that sfdisk reads.
func TestRootEphemeralBlankDisk(t *testing.T) {
	for _, c := range []struct {
		name string
		size int64
		swap *uint64
		want []string // places of the partitions, and names
	}{
		{"swap as large as RAM", 512 << 20, nil, []string{"start=2048,size=131072,type=LINUX",
			"start=133120,size=913408,type=LINUX"}},
		{"swap_size 0", 256 << 20, new(uint64), []string{"start=2048,size=520192,"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(c.size, "")
			hint := &settings.DiskHint{Path: dev.Path}
			b.did(b.Setup(ctx, hint, c.swap, "agent-1", true))
			dump := tool(t, dev.Path, "sfdisk", "--dump", dev.Path)
			flat := strings.NewReplacer(" ", "", "0FC63DAF-8483-4772-8E79-3D69D8477DE4", "LINUX").Replace(dump)
			if got := strings.Count(dump, "start="); got != len(c.want) || !strings.Contains(flat, "label:gpt") {
				t.Errorf("%d partitions, want %d in a GPT:\n%s", got, len(c.want), dump)
			}
			for _, want := range c.want {
				if !strings.Contains(flat, want) {
					t.Errorf("table lacks %q:\n%s", want, dump)
				}
			}
			if got := tool(t, dev.Path, "sgdisk", "--verify", dev.Path); !strings.Contains(got, "No problems found") {
				t.Errorf("sgdisk --verify: %s", got)
			}
			data := dev.Path + "p1"
			if len(c.want) == 2 {
				data = dev.Path + "p2"
				if active, err := filesystem.SwapActive(dev.Path + "p1"); err != nil || !active {
					t.Errorf("swap active = %v, %v; want true", active, err)
				}
			}
			if got := mountedSource(t, b.Dirs.Data()); got != data {
				t.Errorf("data is %q, want %q", got, data)
			}
			if info, err := os.Stat(b.Dirs.Data()); err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("root of the file system: %v, %v; want 0755", info, err)
			}

			// A second run changes nothing.
			write(t, filepath.Join(b.Dirs.Data(), "kept"), "x")
			b.did(b.Setup(ctx, hint, c.swap, "agent-1", true))
			if after := tool(t, dev.Path, "sfdisk", "--dump", dev.Path); after != dump {
				t.Errorf("a second run changed the table:\n%s\n%s", dump, after)
			}
			if read(t, filepath.Join(b.Dirs.Data(), "kept")) != "x" {
				t.Error("a second run lost data")
			}
			if r, err := b.Record.Read(); err != nil || len(r.Unfinished) > 0 {
				t.Errorf("unfinished after success: %v, %v, want nothing", r.Unfinished, err)
			}
			b.ok(mount.Unmount(ctx, b.Dirs.Data()))
			if info, err := os.Stat(b.Dirs.Data()); err != nil || info.Mode().Perm() != 0o750 {
				t.Errorf("mount point: %v, %v; want 0750", info, err)
			}
		})
	}
}

// TestRootEphemeralIsRepaired: errors of an ephemeral disk are repaired without asking, since a VM does not start
// without one. What e2fsck recovers is kept.
func TestRootEphemeralIsRepaired(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.usedEphemeral(t, "file", "precious")
	part := dev.Path + "p2"
	tool(t, part, "debugfs", "-w", "-R", "unlink /file", part)
	tool(t, part, "debugfs", "-w", "-R", "ssv state 2", part)
	b.fails(filesystem.Check(ctx, part, probe.Ext4, false, func(int) {}), "need a decision")
	b.ok(b.setupEphemeral(dev.Path, nil))
	found, err := filepath.Glob(filepath.Join(b.Dirs.Data(), "lost+found", "*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("lost+found has %q, %v; want the file", found, err)
	}
	if data, err := os.ReadFile(found[0]); err != nil || string(data) != "precious" {
		t.Errorf("%s holds %q, %v; want what was written", found[0], data, err)
	}
}
