package probe

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"cambium/internal/looptest"
)

// TestSuperblocks: first, backup and damaged superblocks of ext and xfs are found wherever they begin.
func TestSuperblocks(t *testing.T) {
	nothing := func(testing.TB, string) {}
	zeros := func(from, n int64) func(testing.TB, string) { return put(from, strings.Repeat("\x00", int(n))) }
	at := func(start int64, name string, args ...string) func(testing.TB, string) {
		return func(t testing.TB, path string) {
			t.Helper()
			part := looptest.Image(t, map[string]int64{"mkfs.ext4": 160 << 20, "mkfs.xfs": 320 << 20}[name])
			run(name, append(args, "IMAGE")...)(t, part)
			// The holes of the image are left out.
			seek := fmt.Sprintf("seek=%d", start>>16)
			run("dd", "if="+part, "of=IMAGE", "bs=64K", seek, "conv=notrunc,sparse")(t, path)
		}
	}
	noise := func(t testing.TB, path string) {
		data := make([]byte, 24<<20)
		_, _ = rand.NewChaCha8([32]byte{9}).Read(data)
		put(0, string(data))(t, path)
	}
	const size = 640 << 20
	alone := []string{"-qF", "-O", "sparse_super2", "-E", "num_backup_sb=0"} // without backups
	for _, c := range []struct {
		name   string
		make   func(testing.TB, string)
		damage func(testing.TB, string)
		want   Kind // empty if there is none
		start  int64
	}{
		{"zeros", nothing, nothing, "", 0},
		{"noise", noise, nothing, "", 0},
		{"btrfs", run("mkfs.btrfs", "-q", "IMAGE"), nothing, "", 0},
		{"NTFS", run("mkfs.ntfs", "-q", "-F", "-f", "IMAGE"), nothing, "", 0},
		{"LVM", put(512, sealedLVM(512)), nothing, "", 0},
		{"ext4", at(0, "mkfs.ext4", "-qF"), nothing, Ext4, 0},
		{"ext4 below LVM", at(0, "mkfs.ext4", "-qF"), put(512, sealedLVM(512)), Ext4, 0},
		{"ext4 larger than its device", at(500<<20, "mkfs.ext4", "-qF"), nothing, Ext4, 0},
		{"ext4, magic lost", at(0, "mkfs.ext4", alone...), put(1080, "xx"), Ext4, 0},
		{"ext4, numbers lost", at(0, "mkfs.ext4", alone...), put(1024, strings.Repeat("\xff", 56)), Unknown, 0},
		{"ext4 of 1 KiB blocks, head lost", at(0, "mkfs.ext4", "-qF", "-b", "1024"), zeros(0, 4<<20), Ext4, 0},
		{"ext4 of 4 KiB blocks, head lost", at(0, "mkfs.ext4", "-qF", "-b", "4096"), zeros(0, 4<<20), Ext4, 0},
		{"ext4 at 16 MiB", at(16<<20, "mkfs.ext4", "-qF"), nothing, Ext4, 0},
		{"ext4 at 101 MiB, head lost", at(101<<20, "mkfs.ext4", "-qF", "-b", "4096"), zeros(101<<20, 4<<20), Ext4, 0},
		{"ext4 of 1 KiB blocks at 101 MiB, head lost", at(101<<20, "mkfs.ext4", "-qF", "-b", "1024"),
			zeros(101<<20, 4<<20), Ext4, 0},
		{"ext4 at sector 128", at(64<<10, "mkfs.ext4", "-qF"), nothing, Ext4, 0},
		{"ext4 at sector 128, head lost", at(64<<10, "mkfs.ext4", "-qF", "-b", "4096"), zeros(0, 4<<20), Ext4, 0},
		{"ext4 in a partition at an odd place, numbers lost", at(9<<20+64<<10, "mkfs.ext4", alone...),
			put(9<<20+64<<10+1024, strings.Repeat("\xff", 56)), Unknown, 9<<20 + 64<<10},
		{"ext4 in a partition at an odd place, head lost", at(9<<20+64<<10, "mkfs.ext4", "-qF", "-b", "4096"),
			zeros(9<<20, 4<<20), Ext4, 9<<20 + 64<<10},
		{"xfs", at(0, "mkfs.xfs", "-q"), nothing, XFS, 0},
		{"xfs, magic lost", at(0, "mkfs.xfs", "-q"), put(0, "xxxx"), XFS, 0},
		{"xfs, numbers lost", at(0, "mkfs.xfs", "-q", "-d", "agcount=1", "--unsupported"),
			put(4, strings.Repeat("\xff", 120)), Unknown, 0},
		{"xfs, head lost", at(0, "mkfs.xfs", "-q"), zeros(0, 4<<20), XFS, 0},
		{"xfs at 16 MiB", at(16<<20, "mkfs.xfs", "-q"), nothing, XFS, 0},
		{"xfs at 101 MiB, head lost", at(101<<20, "mkfs.xfs", "-q"), zeros(101<<20, 4<<20), XFS, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := looptest.Image(t, size)
			c.make(t, path)
			c.damage(t, path)
			found := surveyed(t, path, c.start).Superblocks()
			got := Kind("")
			if len(found) > 0 {
				got = found[0].Kind
			}
			if got != c.want {
				t.Errorf("%+v; want %q", found, c.want)
			}
		})
	}
}
