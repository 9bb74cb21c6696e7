package decide

import (
	"errors"
	"strings"
	"testing"

	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
)

func TestShortfall(t *testing.T) {
	// disk returns a disk whose first partition has a size in MiB, and a second one of 10 MiB if there are two.
	disk := func(mib, size int64, label layout.Label, parts int) layout.State {
		s := state(mib*testMiB, layout.Table{Label: label})
		for n := range parts {
			p := layout.Partition{Number: n + 1, Start: testMiB + int64(n)*size*testMiB, Size: 10 * testMiB}
			if n == 0 {
				p.Size = size * testMiB
			}
			s.Table.Partitions = append(s.Table.Partitions, p)
		}
		return s
	}
	raid := disk(900, 400, layout.GPT, 1)
	raid.Trailer = probe.MD
	failed := errors.New("grow ext4: operation not permitted")
	for _, c := range []struct {
		name string
		o    Sizes
		want string // its begin; empty if nothing is said
	}{
		{"as large as its disk", Sizes{Disk: disk(900, 898, layout.GPT, 1), Partition: 1, FileSystem: 898, Device: 898}, ""},
		{"room that older agents left", Sizes{Disk: disk(900, 810, layout.GPT, 1), Partition: 1, FileSystem: 805, Device: 810}, ""},
		{"nothing that grows", Sizes{Disk: disk(900, 898, layout.GPT, 1), Partition: 1, Device: 898}, ""},
		{"the kernel refused", Sizes{Disk: disk(900, 898, layout.GPT, 1), Partition: 1, FileSystem: 400, Device: 898, Failed: failed},
			"400.0 MiB of 900.0 MiB are used: grow ext4: operation not permitted: recreate the VM"},
		{"the kernel stopped early", Sizes{Disk: disk(900, 898, layout.GPT, 1), Partition: 1, FileSystem: 400, Device: 898},
			"400.0 MiB of 900.0 MiB are used: the kernel did not grow the file system: "},
		{"without a partition", Sizes{FileSystem: 400, Device: 900, Failed: failed, Persistent: true},
			"400.0 MiB of 900.0 MiB are used: grow ext4: operation not permitted: attach a new disk and migrate to it"},
		{"2 TiB", Sizes{Disk: disk(3<<20, 400, layout.MBR, 1), Partition: 1, FileSystem: 400, Device: 400, Persistent: true},
			"400.0 MiB of 3072.0 GiB are used: the partition cannot be grown: it would cross 2 TiB, which a DOS partition table cannot address: attach"},
		{"something at the end of the disk", Sizes{Disk: raid, Partition: 1, FileSystem: 400, Device: 400},
			"400.0 MiB of 900.0 MiB are used: the partition cannot be grown: its end contains"},
		{"a partition that is not grown", Sizes{Disk: disk(900, 400, layout.GPT, 1), Partition: 1, FileSystem: 400, Device: 400},
			"400.0 MiB of 900.0 MiB are used: the agent does not grow this partition: recreate"},
		{"a table that could not be written", Sizes{Disk: disk(900, 400, layout.GPT, 1), Partition: 1, FileSystem: 400, Device: 400,
			Failed: failed}, "400.0 MiB of 900.0 MiB are used: grow ext4: operation not permitted: recreate"},
		{"another partition after it", Sizes{Disk: disk(900, 400, layout.GPT, 2), Partition: 1, FileSystem: 400, Device: 400},
			"400.0 MiB of 900.0 MiB are used: the partition cannot be grown: partition 2 follows it: recreate"},
		{"another partition after it, which uses the rest", Sizes{Disk: disk(900, 880, layout.GPT, 2), Partition: 1, FileSystem: 880, Device: 880}, ""},
	} {
		c.o.FileSystem *= testMiB
		c.o.Device *= testMiB
		if got := Shortfall(c.o); !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
