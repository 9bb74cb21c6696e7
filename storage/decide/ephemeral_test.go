package decide

import (
	"errors"
	"strings"
	"testing"

	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
)

func volumeOf(k probe.Kind, also ...probe.Kind) Volume {
	return Volume{Content: probe.Content{Kind: k, Also: also}}
}

func mountedOn(target string, k probe.Kind) Volume {
	return Volume{Content: probe.Content{Kind: k}, MountedOn: target, InUse: true}
}

// ops lists the changes of a plan, with the partition numbers after the disk's name.
func ops(p Plan) string {
	var all []string
	for _, c := range p.Changes {
		all = append(all, string(c.Op)+strings.TrimPrefix(c.Device, "/dev/vdb"))
	}
	return strings.Join(all, " ")
}

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want %q", err, text)
	}
}

func TestUseRootDisk(t *testing.T) {
	for _, c := range []struct {
		wish  EphemeralConfig
		root  bool
		fails string
	}{
		{EphemeralConfig{}, false, NoEphemeral},
		{EphemeralConfig{CreateOnRoot: true}, true, ""},
		{EphemeralConfig{Named: true}, false, ""},
		{EphemeralConfig{Named: true, CreateOnRoot: true}, false, ""},
		{EphemeralConfig{Named: true, Missing: true, CreateOnRoot: true}, false, ""},
		{EphemeralConfig{Named: true, Missing: true, FallBack: true}, false, ""},
		{EphemeralConfig{Named: true, Missing: true, CreateOnRoot: true, FallBack: true}, true, ""},
	} {
		root, err := UseRootDisk(c.wish)
		wantError(t, err, c.fails)
		if root != c.root {
			t.Errorf("%+v: root disk %v, want %v", c.wish, root, c.root)
		}
	}
}

func TestPartitionEphemeral(t *testing.T) {
	const size = 512 * testMiB
	ours := named("bosh-partition-a-0", "bosh-partition-a-1")
	recovered := ours
	recovered.Lost = layout.FirstCopy
	blank := layout.State{Path: "/dev/vdb", Bytes: size, Sector: 512, Content: probe.Content{Kind: probe.Blank}}
	dos := layout.Table{Label: layout.MBR, Partitions: []layout.Partition{{Number: 1, Start: testMiB, Size: testMiB,
		Type: "83"}}}
	small := volumeOf(probe.Ext4)
	small.Content.Bytes = 1
	large := state(size, named("bosh-partition-a-0", "bosh-partition-a-1"))
	large.Table.Partitions[1].Size = 100 * testMiB
	faulty := volumeOf(probe.Ext4)
	faulty.Content.Errors = true
	inUse := mountedOn("/data", probe.Ext4)
	inUse.Content.Errors = true
	active := volumeOf(probe.Swap)
	active.ActiveSwap = true
	bound := volumeOf(probe.Ext4)
	bound.InUse = true
	mounted := Replaced{Busy: errors.New("vdb is mounted")}
	for _, c := range []struct {
		name       string
		state      layout.State
		swap, data Volume
		pending    bool
		replaced   Replaced
		swapMiB    *uint64
		label      layout.Label
		want       string
		finish     bool
		fails      string
	}{
		{name: "blank", state: blank, want: "create-table make-swap1 make-file-system2 use-swap1 mount2", finish: true},
		{name: "blank, no swap", state: blank, swapMiB: mib(0), want: "create-table make-file-system1 mount1", finish: true},
		{name: "DOS, an agent's", state: state(size, dos), data: volumeOf(probe.Ext4), label: layout.MBR,
			replaced: holding("sys/", "jobs/", "packages/"), want: "mount1"},
		{name: "DOS, empty", state: state(size, dos), data: volumeOf(probe.Ext4), label: layout.MBR,
			replaced: holding("lost+found/"), want: "mount1"},
		{name: "DOS, in use", state: state(size, dos), data: mountedOn("/data", probe.Ext4), label: layout.MBR},
		{name: "DOS, unfinished", state: state(size, dos), data: volumeOf(probe.Blank), label: layout.MBR,
			pending: true, want: "make-file-system1 mount1", finish: true},
		{name: "DOS, not an agent's", state: state(size, dos), data: volumeOf(probe.NTFS), label: layout.MBR,
			replaced: Replaced{Volume: volumeOf(probe.NTFS)},
			want:     "create-table make-swap1 make-file-system2 use-swap1 mount2", finish: true},
		{name: "DOS, a store", state: state(size, dos), data: volumeOf(probe.Ext4), label: layout.MBR,
			replaced: holding("blobs/", "tmp/"), fails: "it may be a store"},
		{name: "DOS, a persistent disk that looks like an agent's", state: state(size, dos), label: layout.MBR,
			data:     volumeOf(probe.Ext4),
			replaced: Replaced{Persistent: errors.New("it is on record"), Volume: volumeOf(probe.Ext4)},
			fails:    "not touched: it is on record"},
		{name: "ours, with a third partition", state: state(size, named("bosh-partition-a-0", "bosh-partition-a-1",
			"x")), swap: volumeOf(probe.Swap), data: volumeOf(probe.Ext4), want: "use-swap1 mount2"},
		{name: "in use", state: blank, replaced: mounted, fails: "not touched: vdb is mounted"},
		{name: "too much swap", state: blank, replaced: mounted, swapMiB: mib(1 << 40), fails: "leaves no room"},
		{name: "after a reboot, whatever RAM is now (D.12)", state: state(size, ours), swap: volumeOf(probe.Swap),
			data: volumeOf(probe.Ext4), want: "use-swap1 mount2"},
		{name: "after a restart", state: state(size, ours), swap: active, data: mountedOn("/data", probe.Ext4),
			want: ""},
		{name: "swap no longer wanted", state: state(size, ours), swap: volumeOf(probe.Swap),
			data: volumeOf(probe.Ext4), swapMiB: mib(0), want: "mount2"},
		{name: "another agent's table", state: state(size, named("x")),
			want: "create-table make-swap1 make-file-system2 use-swap1 mount2", finish: true},
		{name: "interrupted", state: state(size, ours), swap: volumeOf(probe.Swap), data: volumeOf(probe.Ext4),
			pending: true,
			want:    "make-swap1 make-file-system2 use-swap1 mount2", finish: true},
		{name: "interrupted, and mounted since", state: state(size, ours), swap: active, data: mountedOn("/data",
			probe.Ext4), pending: true, want: "", finish: true},
		{name: "a table with one good copy", state: state(size, recovered), swap: active, data: mountedOn("/data",
			probe.Ext4), want: "repair-table"},
		{name: "xfs is kept", state: state(size, ours), swap: active, data: volumeOf(probe.XFS), want: "mount2"},
		{name: "other content is replaced", state: state(size, ours), swap: volumeOf(probe.Ext4),
			data: volumeOf(probe.Ext2), want: "make-swap1 make-file-system2 use-swap1 mount2"},
		{name: "mounted elsewhere", state: state(size, ours), swap: active, data: mountedOn("/mnt", probe.Ext4),
			want: "mount2"},
		{name: "a part is bound somewhere", state: state(size, ours), swap: active, data: bound, want: "mount2"},
		{name: "errors on record (D.22)", state: state(size, ours), swap: active, data: faulty,
			want: "check-file-system2 mount2"},
		{name: "errors on record, and in use", state: state(size, ours), swap: active, data: inUse},
		{name: "smaller than its partition", state: large, swap: active, data: small, want: "mount2 grow-file-system2"},
		{name: "smaller than its partition, mounted", state: state(size, ours), swap: active,
			data: Volume{Content: probe.Content{Kind: probe.XFS}, MountedOn: "/data", InUse: true, Growable: true},
			want: "grow-file-system2"},
		{name: "not ours to grow", state: state(size, ours), swap: active,
			data: Volume{Content: probe.Content{Kind: probe.Btrfs}, MountedOn: "/data", InUse: true, Growable: true},
			want: ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.label == "" {
				c.label = layout.GPT
			}
			volumes := map[int]Volume{1: c.swap, 2: c.data}
			if c.label == layout.MBR {
				volumes = map[int]Volume{1: c.data}
			}
			p, err := SetupEphemeral(Ephemeral{Disk: c.state, AgentID: "a", RAM: 64 * testMiB, SwapMiB: c.swapMiB,
				Label:   c.label,
				Target:  "/data",
				Pending: c.pending, Replaced: c.replaced, Volumes: volumes})
			wantError(t, err, c.fails)
			if got := ops(p); got != c.want || p.Finish != c.finish || p.Begin != "" {
				t.Errorf("plan %q, finish %v, begin %q; want %q, finish %v", got, p.Finish, p.Begin, c.want, c.finish)
			}
		})
	}
}

// TestEphemeralProof: only a change that replaces content is destructive, and its proof describes that content.
func TestEphemeralProof(t *testing.T) {
	ours := state(512*testMiB, named("bosh-partition-a-0", "bosh-partition-a-1"))
	p, err := SetupEphemeral(Ephemeral{Disk: ours, AgentID: "a", Label: layout.GPT, Target: "/data",
		Volumes: map[int]Volume{1: volumeOf(probe.Blank), 2: volumeOf(probe.Ext2)}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"/dev/vdb1: holds blank: make swap", "/dev/vdb2: holds ext2: make ext4",
		"/dev/vdb1: swap: enable swap", "/dev/vdb2: ext4: mount on /data"} {
		if got := p.Changes[i]; got.String() != want || got.Destructive != (i == 1) {
			t.Errorf("change %q, destructive %v; want %q", got, got.Destructive, want)
		}
	}
	foreign := state(8<<30, named("x"))
	p, err = SetupEphemeral(Ephemeral{Disk: foreign, Replaced: Replaced{Serial: "4d3f"}, AgentID: "a",
		RAM: 2 << 30, Label: layout.GPT, Target: "/data"})
	const want = "/dev/vdb: gpt table with 1 partitions, 8.0 GiB, serial 4d3f, not in use, not a persistent disk, no ext4 or xfs on it: create GPT, swap 2.0 GiB, data 6.0 GiB"
	if err != nil || p.Changes[0].String() != want || !p.Changes[0].Destructive {
		t.Errorf("%v, %v; want %s", p.Changes, err, want)
	}
}

func TestAppendEphemeral(t *testing.T) {
	root := layout.Partition{Number: 1, Start: testMiB, Size: 128 * testMiB}
	swap := layout.Partition{Number: 2, Start: 200 * testMiB, Size: 100 * testMiB}
	data := layout.Partition{Number: 3, Start: 300 * testMiB, Size: 100 * testMiB}
	table := func(parts ...layout.Partition) layout.State {
		return state(4<<30, layout.Table{Label: layout.GPT, Partitions: append([]layout.Partition{root}, parts...)})
	}
	volumes := func(swap, data Volume) map[int]Volume { return map[int]Volume{2: swap, 3: data} }
	active := volumeOf(probe.Swap)
	active.ActiveSwap = true
	for _, c := range []struct {
		name    string
		state   layout.State
		volumes map[int]Volume
		pending bool
		want    string
		begin   string
		finish  bool
		fails   string
	}{
		{name: "nothing after root", state: table(),
			want:  "append-partitions make-swap2 make-file-system3 use-swap2 mount3",
			begin: "2:135266304+67108864 3:202375168+4092575232", finish: true},
		{name: "after a reboot", state: table(swap, data), volumes: volumes(volumeOf(probe.Swap),
			volumeOf(probe.Ext4)), want: "use-swap2 mount3"},
		{name: "after a restart", state: table(swap, data), volumes: volumes(active, mountedOn("/data", probe.Ext4)),
			want: ""},
		{name: "interrupted", state: table(swap, data), volumes: volumes(volumeOf(probe.LVM), volumeOf(probe.Ext4)),
			pending: true,
			want:    "make-swap2 make-file-system3 use-swap2 mount3", finish: true},
		{name: "foreign", state: table(swap, data), volumes: volumes(volumeOf(probe.LVM), volumeOf(probe.Ext4)),
			fails: "holds LVM"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := SetupEphemeral(Ephemeral{Disk: c.state, Root: 1, AgentID: "a", RAM: 64 * testMiB, Target: "/data",
				Pending: c.pending, Volumes: c.volumes})
			wantError(t, err, c.fails)
			if got := ops(p); got != c.want || p.Begin != c.begin || p.Finish != c.finish {
				t.Errorf("plan %q, begin %q, finish %v; want %q, %q, %v", got, p.Begin, p.Finish, c.want, c.begin, c.finish)
			}
		})
	}
	full := layout.Table{Label: layout.MBR}
	for n := range 4 {
		full.Partitions = append(full.Partitions, layout.Partition{Number: n + 1, Start: int64(4-n) * testMiB,
			Size: testMiB})
	}
	for _, swap := range []*uint64{nil, mib(0)} {
		_, err := SetupEphemeral(Ephemeral{Disk: state(4<<30, full), Root: 1, RAM: testMiB, SwapMiB: swap})
		wantError(t, err, "no free entry")
	}
}

func TestPendingOnRoot(t *testing.T) {
	parts := []layout.Partition{{Number: 1, Start: 1, Size: 2}, {Number: 2, Start: 3, Size: 4}, {Number: 3, Start: 7,
		Size: 5}}
	for recorded, want := range map[string]bool{"": false, "2:3+4 3:7+5": true, "3:7+5": true, "2:3+4": false,
		"2:3+4 3:7+6": false} {
		if got := pendingOnRoot(layout.Table{Partitions: parts}, recorded); got != want {
			t.Errorf("%q: pending %v, want %v", recorded, got, want)
		}
	}
}

func TestPartitionRaw(t *testing.T) {
	kept := named("raw-ephemeral-0")
	broken := kept
	broken.Lost = layout.FirstCopy
	for _, c := range []struct {
		name     string
		table    layout.Table
		replaced Replaced
		want     string
		fails    string
	}{
		{"blank", layout.Table{}, Replaced{}, "create-table", ""},
		{"in use", layout.Table{}, Replaced{Busy: errors.New("vdb is mounted")}, "", "not touched: vdb is mounted"},
		{"kept", kept, Replaced{}, "", ""},
		{"kept, one good copy", broken, Replaced{}, "repair-table", ""},
		{"a store", named("x"), holding("db/"), "", "it may be a store"},
		{"this agent's ephemeral disk", named("bosh-partition-a-0"), Replaced{}, "", "this agent's ephemeral disk"},
		{"another agent's ephemeral disk", named("bosh-partition-b-0"), Replaced{}, "create-table", ""},
	} {
		p, err := PartitionRaw(Raw{Disk: state(8*testMiB, c.table), Replaced: c.replaced, AgentID: "a"})
		wantError(t, err, c.fails)
		if got := ops(p); got != c.want {
			t.Errorf("%s: plan %q, want %q", c.name, got, c.want)
		}
	}
	if _, err := PartitionRaw(Raw{Disk: state(8*testMiB, named("bosh-partition--0"))}); err != nil {
		t.Errorf("without an agent id, a disk is taken for its own: %v", err)
	}
}
