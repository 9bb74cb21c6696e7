package decide

import (
	"strings"
	"testing"

	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
)

const testMiB = layout.MiB

func mib(n uint64) *uint64 { return &n }

func TestSwapBytes(t *testing.T) {
	for _, c := range []struct {
		name           string
		available, ram int64
		swap           *uint64
		want           int64
		fails          bool
	}{
		{"RAM when it fits", 1000 * testMiB, 300 * testMiB, nil, 300 * testMiB, false},
		{"half when RAM is large", 1000 * testMiB, 600 * testMiB, nil, 500 * testMiB, false},
		{"as asked for", 1000 * testMiB, 300 * testMiB, mib(700), 700 * testMiB, false},
		{"none", 1000 * testMiB, 300 * testMiB, mib(0), 0, false},
		{"all of the disk", 1000 * testMiB, 300 * testMiB, mib(1000), 0, true},
		{"more than the disk (D.18)", 1000 * testMiB, 300 * testMiB, mib(1 << 60), 0, true},
	} {
		got, err := swapBytes(c.available, c.ram, c.swap)
		if got != c.want || (err != nil) != c.fails {
			t.Errorf("%s: SwapBytes = %d, %v; want %d, error %v", c.name, got, err, c.want, c.fails)
		}
	}
}

func TestEphemeralPrefix(t *testing.T) {
	for id, want := range map[string]string{
		"fake-agent-id":                        "bosh-partition-fake-agent-id",
		"0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9": "bosh-partition-0a1b2c3d-4e5f-607",
		"123456789012345678":                   "bosh-partition-123456789012345678",
		"1234567890123456789":                  "bosh-partition-12345678901234567",
	} {
		if got := ephemeralPrefix(id); got != want {
			t.Errorf("EphemeralPrefix(%s) = %s, want %s", id, got, want)
		}
	}
}

func state(size int64, t layout.Table) layout.State {
	return layout.State{Path: "/dev/vdb", Bytes: size, Sector: 512, Table: t}
}

func TestNewEphemeral(t *testing.T) {
	for _, c := range []struct {
		name        string
		size        int64
		swap        *uint64
		label       layout.Label
		want        [][2]int64 // start and end in MiB
		swapN, data int
	}{
		{"swap and data", 1024 * testMiB, mib(100), layout.GPT, [][2]int64{{1, 101}, {101, 1023}}, 1, 2},
		{"data only", 1024 * testMiB, mib(0), layout.GPT, [][2]int64{{1, 1023}}, 0, 1},
		{"a length that is not a whole MiB", 1024*testMiB + 512, mib(0), layout.GPT, [][2]int64{{1, 1023}}, 0, 1},
		{"DOS", 1024 * testMiB, mib(100), layout.MBR, [][2]int64{{1, 101}, {101, 1023}}, 1, 2},
		{"swap from RAM", 1024 * testMiB, nil, layout.GPT, [][2]int64{{1, 257}, {257, 1023}}, 1, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := newEphemeral(state(c.size, layout.Table{}), "a", 256*testMiB, c.swap, c.label)
			if err != nil {
				t.Fatal(err)
			}
			if l.Swap != c.swapN || l.Data != c.data || len(l.Partitions) != len(c.want) {
				t.Fatalf("layout %+v", l)
			}
			for i, p := range l.Partitions {
				if p.Start != c.want[i][0]*testMiB || p.End() != c.want[i][1]*testMiB {
					t.Errorf("partition %d from %d to %d, want %v MiB", i, p.Start, p.End(), c.want[i])
				}
			}
		})
	}
	if _, err := newEphemeral(state(4*testMiB, layout.Table{}), "a", testMiB, nil, layout.GPT); err == nil {
		t.Error("a disk of 4 MiB was laid out")
	}
}

func named(names ...string) layout.Table {
	t := layout.Table{Label: layout.GPT}
	for i, n := range names {
		t.Partitions = append(t.Partitions, layout.Partition{Number: i + 1, Start: int64(i+1) * testMiB,
			Size: testMiB, Name: n})
	}
	return t
}

func TestKeptEphemeral(t *testing.T) {
	for _, c := range []struct {
		name  string
		table layout.Table
		kept  bool
	}{
		{"ours with swap", named("bosh-partition-a-0", "bosh-partition-a-1"), true},
		{"ours without swap", named("bosh-partition-a-0"), true},
		{"another agent's", named("bosh-partition-b-0", "bosh-partition-b-1"), false},
		{"half ours", named("bosh-partition-a-0", "x"), false},
		{"no partitions", named(), false},
		{"no table", layout.Table{}, false},
		{"ours and a third one", named("bosh-partition-a-0", "bosh-partition-a-1", "mine"), true},
		{"ours, then another agent's", named("bosh-partition-a-0", "bosh-partition-b-1", "bosh-partition-a-2"), false},
		{"a persistent disk", named("bosh-partition-0"), false},
	} {
		if l, kept := keptEphemeral(state(10*testMiB, c.table), "a", layout.GPT); kept != c.kept {
			t.Errorf("%s: kept %v (%+v), want %v", c.name, kept, l, c.kept)
		}
	}
	dos := func(types ...string) layout.Table {
		t := layout.Table{Label: layout.MBR}
		for i, kind := range types {
			t.Partitions = append(t.Partitions, layout.Partition{Number: i + 1, Start: int64(i+1) * testMiB,
				Size: testMiB, Type: kind})
		}
		return t
	}
	gap := dos("83")
	gap.Partitions[0].Number = 2
	for _, c := range []struct {
		name   string
		table  layout.Table
		wanted layout.Label
		kept   bool
	}{
		{"swap and data", dos("82", "83"), layout.MBR, true},
		{"data only", dos("83"), layout.MBR, true},
		{"swap at the wrong place", dos("83", "82"), layout.MBR, false},
		{"where a GPT is wanted", dos("82", "83"), layout.GPT, false},
		{"only partition 2", gap, layout.MBR, false},
	} {
		if _, kept := keptEphemeral(state(10*testMiB, c.table), "a", c.wanted); kept != c.kept {
			t.Errorf("DOS, %s: kept %v, want %v", c.name, kept, c.kept)
		}
	}
}

func TestOnRoot(t *testing.T) {
	root := layout.Partition{Number: 1, Start: 512, Size: 262144 * 512, Type: "83"}
	table := func(label layout.Label, after ...layout.Partition) layout.Table {
		return layout.Table{Label: label, Partitions: append([]layout.Partition{root}, after...)}
	}
	swap := layout.Partition{Number: 2, Start: 200 * testMiB, Size: 100 * testMiB, Type: "83"}
	data := layout.Partition{Number: 3, Start: 300 * testMiB, Size: 100 * testMiB, Type: "83"}
	bios := layout.Partition{Number: 2, Start: 264192 * 512, Size: testMiB,
		Type: "21686148-6449-6E6F-744E-656564454649"}
	kinds := func(kinds ...probe.Kind) map[int]Volume {
		volumes := map[int]Volume{}
		for i, k := range kinds {
			v := volumeOf(k)
			v.Residue = zeros
			volumes[i+2] = v
		}
		return volumes
	}
	const size = 2506752 * 512
	for _, c := range []struct {
		name       string
		size       int64
		table      layout.Table
		swap       *uint64
		content    map[int]Volume
		made       [][2]int64 // first sector and number of sectors
		swapN, dat int
		fails      string
	}{
		{"no swap, to the very end", size, table(layout.MBR), mib(0), nil, [][2]int64{{264192, 2242560}}, 0, 2, ""},
		{"swap and data", size, table(layout.MBR), mib(100), nil, [][2]int64{{264192, 204800}, {468992, 2037760}}, 2,
			3, ""},
		{"GPT keeps its backup", size, table(layout.GPT), mib(0), nil, [][2]int64{{264192, 2242560 - 33}}, 0, 2, ""},
		{"there already, whatever RAM is now (D.12)", size, table(layout.MBR, swap, data), nil, kinds(probe.Swap,
			probe.Ext4), nil, 2, 3, ""},
		{"there already, not formatted", size, table(layout.MBR, swap, data), nil, kinds(probe.Blank, probe.Blank),
			nil, 2, 3, ""},
		{"foreign partition", size, table(layout.MBR, swap), nil, kinds(probe.LVM), nil, 0, 0,
			"holds LVM physical volume; it is not touched"},
		{"too little room", 1000 * testMiB, table(layout.MBR), nil, nil, nil, 0, 0,
			"insufficient remaining disk space"},
		{"three partitions after root", size, table(layout.MBR, swap, data, layout.Partition{Number: 4,
			Start: 400 * testMiB, Size: testMiB}), nil, kinds(probe.Blank, probe.Blank, probe.Blank), nil, 0, 0,
			"3 partitions after the root partition"},
		{"more swap than room", size, table(layout.MBR), mib(1 << 20), nil, nil, 0, 0, "leaves no room for data"},
		{"root not in the table", size, layout.Table{Label: layout.MBR}, nil, nil, nil, 0, 0,
			"root partition 1 is not in the table"},
		{"there already, not blank", size, table(layout.MBR, swap), nil,
			map[int]Volume{2: {Content: probe.Content{Kind: probe.Blank}, Residue: remains}}, nil, 0, 0,
			"partition 2 after the root partition is not blank"},
		{"there already, ours by its name", size, table(layout.GPT, layout.Partition{Number: 2, Start: swap.Start,
			Size: swap.Size, Name: "bosh-partition-a-0"}), nil,
			map[int]Volume{2: {Content: probe.Content{Kind: probe.Blank}, Residue: remains}}, nil, 0, 2, ""},
		{"BIOS boot after root", size, table(layout.GPT, bios), mib(0), nil, [][2]int64{{266240, 2240512 - 33}}, 0,
			3, ""},
		{"BIOS boot after root, data after it", size, table(layout.GPT, bios, layout.Partition{Number: 3,
			Start: data.Start, Size: data.Size}), mib(0), map[int]Volume{3: volumeOf(probe.Ext4)}, nil, 0, 3, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, made, err := onRoot(Ephemeral{Disk: state(c.size, c.table), Root: 1, AgentID: "a", RAM: 100 * testMiB,
				SwapMiB: c.swap, Volumes: c.content})
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("OnRoot = %v, want %q", err, c.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if l.Swap != c.swapN || l.Data != c.dat || len(made) != len(c.made) {
				t.Fatalf("layout %+v, made %+v", l, made)
			}
			for i, p := range made {
				if p.Start/512 != c.made[i][0] || p.Size/512 != c.made[i][1] {
					t.Errorf("partition %d: start %d, size %d; want %v", p.Number, p.Start/512, p.Size/512, c.made[i])
				}
				if l.Label == layout.MBR && p.Type != "83" {
					t.Errorf("partition %d has type %s, want 83", p.Number, p.Type)
				}
			}
		})
	}
}
