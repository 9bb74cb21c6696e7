package disk

import (
	"fmt"
	"testing"

	"cambium/internal/looptest"
	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
)

// TestWhatCounts: a table with content in its partitions takes precedence over older signatures, then a consistent file
// system on the whole disk, then other signatures.
func TestWhatCounts(t *testing.T) {
	type steps []func(*testing.T, string)
	const size = 400 * layout.MiB
	const dos, gpt = "label: dos\nstart=2048, type=83\n", "label: gpt\nstart=2048\n"
	mkfs := func(t *testing.T, image, kind string, start int64) {
		t.Helper()
		length := map[string]int64{"xfs": 310}[kind]
		volume := looptest.Image(t, max(length, 40)*layout.MiB)
		force := map[string]string{"ntfs": "-qFf", "xfs": "-qf", "vfat": "-v", "ext4": "-qFb1024"}[kind]
		tool(t, "", "mkfs."+kind, force, volume)
		tool(t, "", "dd", "if="+volume, "of="+image, "bs=64K", fmt.Sprintf("seek=%d", start>>16), "conv=notrunc,sparse")
	}
	bare := func(kind string) func(*testing.T, string) {
		return func(t *testing.T, image string) { mkfs(t, image, kind, 0) }
	}
	table := func(script string) func(*testing.T, string) {
		return func(t *testing.T, image string) {
			tool(t, script, "sfdisk", "-q", "--no-tell-kernel", "--wipe", "never", "--wipe-partitions", "never", image)
		}
	}
	inside := func(kind string) func(*testing.T, string) {
		return func(t *testing.T, image string) { mkfs(t, image, kind, layout.MiB) }
	}
	zeros := func(from, n int64) func(*testing.T, string) {
		return func(t *testing.T, image string) { poke(t, image, from, make([]byte, n)...) }
	}
	protective := func(t *testing.T, image string) {
		poke(t, image, 446, 0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0xff, 0x7f, 0x0c, 0)
		poke(t, image, 510, 0x55, 0xaa)
	}
	sealed := func(t *testing.T, image string) { // LUKS1, which has no checksum
		header := make([]byte, 592)
		copy(header, "LUKS\xba\xbe\x00\x01")
		header[106], header[111] = 16, 32
		poke(t, image, 0, header...)
	}
	for _, c := range []struct {
		name    string
		made    steps
		label   layout.Label
		content string // of a disk without a table
		trailer probe.Kind
	}{
		{"DOS", steps{table(dos), inside("ext4")}, layout.MBR, "", ""},
		{"older ext4 beneath DOS", steps{bare("ext4"), table(dos), inside("ext4")}, layout.MBR, "", ""},
		{"older xfs beneath DOS", steps{bare("xfs"), table(dos), inside("ext4")}, layout.MBR, "", ""},
		{"older NTFS beneath DOS", steps{bare("ntfs"), table(dos), inside("xfs")}, layout.MBR, "", ""},
		{"ext4 beneath Azure's NTFS", steps{bare("ext4"), table(dos), inside("ntfs")}, layout.MBR, "", ""},
		{"older xfs beneath GPT", steps{bare("xfs"), table(gpt), inside("ext4")}, layout.GPT, "", ""},
		{"older ext4 beneath DOS, and a lost superblock",
			steps{bare("ext4"), table(dos), inside("ext4"), zeros(layout.MiB, 4096)}, layout.MBR, "", ""},
		{"ext4, and a DOS table of nothing", steps{bare("ext4"), table(dos)}, layout.None, "ext4", ""},
		{"ext4, and an empty DOS table", steps{bare("ext4"), table("label: dos\n")}, layout.None, "ext4", ""},
		{"ext4, and the end of a GPT of nothing",
			steps{table(gpt), zeros(512, layout.MiB-512), bare("ext4"), protective},
			layout.None, "ext4 and gpt", ""},
		{"FAT", steps{bare("vfat")}, layout.None, "FAT and dos", ""},
		{"ext4 below LUKS", steps{bare("ext4"), sealed}, layout.None, "LUKS and ext", ""},
		{"DOS, and RAID metadata at the end", steps{table(dos), inside("ext4"), func(t *testing.T, image string) {
			poke(t, image, size-8192, 0xfc, 0x4e, 0x2b, 0xa9)
		}}, layout.MBR, "", probe.MD},
	} {
		t.Run(c.name, func(t *testing.T) {
			image := looptest.Image(t, size)
			for _, step := range c.made {
				step(t, image)
			}
			s, err := Inspect(image)
			if err != nil {
				t.Fatal(err)
			}
			content := ""
			if s.Table.Label == layout.None {
				content = s.Content.String()
			}
			if s.Table.Label != c.label || content != c.content || s.Trailer != c.trailer {
				t.Errorf("table %q, content %q, trailer %q; want %q, %q, %q", s.Table.Label, content, s.Trailer,
					c.label, c.content, c.trailer)
			}
		})
	}
}
