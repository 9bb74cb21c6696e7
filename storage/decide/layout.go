package decide

import (
	"fmt"
	"strings"

	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
)

// Layout is the desired partitioning of a disk. Swap and Data are partition numbers; Swap is 0 if there is no swap.
type Layout struct {
	Label      layout.Label
	Partitions []layout.Partition
	Swap, Data int
}

// Minimum sizes.
const (
	smallestData   = 8 * layout.MiB
	smallestSwap   = layout.MiB
	smallestOnRoot = 1 << 30
)

// ephemeralPrefix returns the prefix of the partition names on an ephemeral disk. It contains the agent id, so that the
// disk of an earlier VM is recognized as such.
func ephemeralPrefix(agentID string) string {
	prefix := persistentPrefix + "-" + agentID
	if len(prefix) > 33 {
		prefix = prefix[:32]
	}
	return prefix
}

const persistentPrefix = "bosh-partition"

// PersistentName is the name of the partition on a persistent disk. PreparingName is its name until the file system is
// complete: the intent travels with the disk, so that any later VM can finish the preparation. cloudfoundry/bosh-agent
// mounts disks with either name and formats neither.
const (
	PersistentName = persistentPrefix + "-0"
	PreparingName  = PersistentName + "-being-prepared"
)

// swapBytes returns the size of the swap partition: swapMiB if set, otherwise the size of RAM, but at most half of the
// available bytes.
func swapBytes(available, ram int64, swapMiB *uint64) (int64, error) {
	if swapMiB == nil {
		return min(ram, available/2), nil
	}
	if *swapMiB > uint64(available)/layout.MiB || available-int64(*swapMiB)*layout.MiB < smallestData {
		return 0, fmt.Errorf("swap_size %d MiB leaves no room for data on %d MiB", *swapMiB, available/layout.MiB)
	}
	return int64(*swapMiB) * layout.MiB, nil
}

// keptEphemeral recognizes an ephemeral layout that this agent made earlier. Sizes are not compared: a change of RAM or
// swap_size must not destroy the data. In a table with names, further partitions after swap and data are ignored, as in
// cloudfoundry/bosh-agent. A table without names proves nothing, so the content has to be examined; see Replaced.
func keptEphemeral(s layout.State, agentID string, label layout.Label) (Layout, bool) {
	t := s.Table
	if t.Label.Named() && len(t.Partitions) > 2 {
		t.Partitions = t.Partitions[:2]
	}
	if t.Label == layout.None || len(t.Partitions) == 0 || len(t.Partitions) > 2 {
		return Layout{}, false
	}
	l := Layout{Label: t.Label, Partitions: t.Partitions, Data: len(t.Partitions)}
	if l.Data == 2 {
		l.Swap = 1
	}
	for i, p := range t.Partitions {
		if p.Number != i+1 {
			return Layout{}, false
		}
		switch {
		case t.Label.Named():
			if agentID == "" || !strings.HasPrefix(p.Name, ephemeralPrefix(agentID)+"-") {
				return Layout{}, false
			}
		case label != t.Label:
			return Layout{}, false
		case p.Number == l.Swap && p.Type != label.SwapType(), p.Number == l.Data && p.Type != label.DataType():
			return Layout{}, false
		}
	}
	return l, true
}

// newEphemeral lays out swap and data on a whole disk, in whole MiB, starting at 1 MiB.
func newEphemeral(s layout.State, agentID string, ram int64, swapMiB *uint64, label layout.Label) (Layout, error) {
	swap, err := swapBytes(s.Bytes, ram, swapMiB)
	if err != nil {
		return Layout{}, err
	}
	l := Layout{Label: label}
	start := int64(layout.MiB)
	add := func(size int64, kind string) int {
		end := down(min(start+size, s.Bytes-1, layout.UsableEnd(label, s.Bytes, s.Sector)))
		n := len(l.Partitions)
		p := layout.Partition{Number: n + 1, Start: start, Size: end - start, Type: kind}
		if label.Named() {
			p.Name = fmt.Sprintf("%s-%d", ephemeralPrefix(agentID), n)
		}
		l.Partitions = append(l.Partitions, p)
		start = end
		return p.Number
	}
	if swap >= smallestSwap {
		l.Swap = add(swap, label.SwapType())
	}
	l.Data = add(s.Bytes-swap, label.DataType())
	if last := l.Partitions[l.Data-1]; last.Size < smallestData {
		return Layout{}, fmt.Errorf("a disk of %d MiB is too small for ephemeral data", s.Bytes/layout.MiB)
	}
	return l, nil
}

// partitionsAfterRoot returns the partitions that follow the root partition and can hold swap or data. Other types, such
// as the BIOS boot partition, belong to the system.
func partitionsAfterRoot(t layout.Table, root int) (after []layout.Partition) {
	rootPart, _ := t.Partition(root)
	for _, p := range t.Partitions {
		if p.Start > rootPart.Start && t.Label.HoldsData(p.Type) {
			after = append(after, p)
		}
	}
	return after
}

// freeFrom returns the start of the free space after the root partition and the system's partitions that follow it.
func freeFrom(t layout.Table, rootPart layout.Partition) int64 {
	end := rootPart.End()
	for _, p := range t.Partitions {
		if p.Start > rootPart.Start {
			end = max(end, p.End())
		}
	}
	return end
}

// onRoot lays out swap and data after the root partition. If partitions exist there, it recognizes them, and made is
// nil.
func onRoot(o Ephemeral) (l Layout, made []layout.Partition, err error) {
	s := o.Disk
	rootPart, ok := s.Table.Partition(o.Root)
	if !ok {
		return l, nil, fmt.Errorf("root partition %d is not in the table of %s", o.Root, s.Path)
	}
	l.Label, l.Partitions = s.Table.Label, s.Table.Partitions
	if after := partitionsAfterRoot(s.Table, o.Root); len(after) > 0 {
		l, err = l.recognize(after, o)
		return l, nil, err
	}
	free := freeFrom(s.Table, rootPart)
	available := s.Bytes - free
	if available < smallestOnRoot {
		return l, nil, fmt.Errorf(
			"insufficient remaining disk space (%d bytes) for ephemeral partition (min: %d bytes)", available,
			smallestOnRoot)
	}
	swap, err := swapBytes(available, o.RAM, o.SwapMiB)
	if err != nil {
		return l, nil, err
	}
	start := up(free)
	add := func(size int64) (int, error) {
		n := o.Root + 1 + len(made)
		for _, taken := s.Table.Partition(n); taken; _, taken = s.Table.Partition(n) {
			n++
		}
		if n > l.Label.Slots() {
			return 0, fmt.Errorf("no free entry in the partition table of %s", s.Path)
		}
		end := min(start+size, layout.UsableEnd(l.Label, s.Bytes, s.Sector))
		p := layout.Partition{Number: n, Start: start, Size: (end - start) / int64(s.Sector) * int64(s.Sector),
			Type: l.Label.DataType()}
		if l.Label.Named() {
			p.Name = fmt.Sprintf("%s-%d", ephemeralPrefix(o.AgentID), len(made))
		}
		made = append(made, p)
		start = up(end)
		return n, nil
	}
	if swap >= smallestSwap {
		if l.Swap, err = add(swap); err != nil {
			return l, nil, err
		}
	}
	if l.Data, err = add(available - swap); err != nil {
		return l, nil, err
	}
	l.Partitions = append(append([]layout.Partition(nil), s.Table.Partitions...), made...)
	return l, made, nil
}

// recognize accepts the partitions after the root partition by their content, not their size: tables of older agents
// have no names, and the machine's RAM may have changed.
func (l Layout) recognize(after []layout.Partition, o Ephemeral) (Layout, error) {
	if len(after) > 2 {
		return l, fmt.Errorf("%d partitions after the root partition; expected swap and data", len(after))
	}
	l.Data = after[len(after)-1].Number
	if len(after) == 2 {
		l.Swap = after[0].Number
	}
	for _, p := range after {
		v := o.Volumes[p.Number]
		c := v.Content
		blank := c.Blank() && (v.Residue.IsEmpty() || strings.HasPrefix(p.Name, ephemeralPrefix(o.AgentID)))
		fits := o.Pending || blank || p.Number == l.Swap && (v.ActiveSwap || c.Kind == probe.Swap) ||
			p.Number == l.Data && c.Data()
		if !fits && c.Blank() {
			return l, fmt.Errorf("partition %d after the root partition is not blank; it is not touched", p.Number)
		}
		if !fits {
			return l, fmt.Errorf("partition %d after the root partition holds %s; it is not touched", p.Number, c)
		}
	}
	return l, nil
}

// describe formats partitions for people.
func (l Layout) describe(parts []layout.Partition) string {
	names := []string{strings.ToUpper(string(l.Label))}
	for _, p := range parts {
		what := "data"
		if p.Number == l.Swap {
			what = "swap"
		}
		names = append(names, what+" "+size(p.Size))
	}
	return strings.Join(names, ", ")
}

// RawName returns the partition name by which jobs find a raw ephemeral disk.
func RawName(i int) string { return fmt.Sprintf("%s%d", rawPrefix, i) }

const rawPrefix = "raw-ephemeral-"

// carriesEphemeral reports whether a table contains the partition names of this agent's ephemeral disk.
func carriesEphemeral(t layout.Table, agentID string) bool {
	for _, p := range t.Partitions {
		if t.Label.Named() && agentID != "" && strings.HasPrefix(p.Name, ephemeralPrefix(agentID)+"-") {
			return true
		}
	}
	return false
}

// DataPartition returns the number of the partition that may hold ephemeral data under another name: the only
// partition, or the one after swap in a table without names. It returns 0 if there is none.
func DataPartition(t layout.Table) int {
	parts := t.Partitions
	switch {
	case len(parts) == 1:
		return parts[0].Number
	case len(parts) == 2 && !t.Label.Named() && parts[0].Type == t.Label.SwapType():
		return parts[1].Number
	}
	return 0
}

// IsRawDisk reports whether a table is that of a raw ephemeral disk.
func IsRawDisk(t layout.Table) bool {
	for _, p := range t.Partitions {
		if t.Label.Named() && strings.Contains(p.Name, rawPrefix) {
			return true
		}
	}
	return false
}

// newRaw returns one partition over the whole disk.
func newRaw(s layout.State, i int) []layout.Partition {
	return []layout.Partition{{Number: 1, Start: layout.MiB, Size: onePartition(s, layout.GPT), Name: RawName(i),
		Type: layout.GPT.DataType()}}
}

// newPersistent returns one partition over the whole disk, named as being prepared.
func newPersistent(s layout.State, label layout.Label) []layout.Partition {
	return []layout.Partition{{Number: 1, Start: layout.MiB, Size: onePartition(s, label), Type: label.DataType(),
		Name: PreparingName}}
}

// onePartition returns the size of a partition over the whole disk.
func onePartition(s layout.State, label layout.Label) int64 {
	return down(min(s.Bytes-1, layout.UsableEnd(label, s.Bytes, s.Sector))) - layout.MiB
}

// carriesPersistent reports whether a table has a single partition with the name of a persistent disk's. Older agents
// also used that name for one of several partitions on ephemeral disks.
func carriesPersistent(t layout.Table) bool {
	return len(t.Partitions) == 1 && (t.Partitions[0].Name == PersistentName || t.Partitions[0].Name == PreparingName)
}

func down(n int64) int64 { return n / layout.MiB * layout.MiB }

func up(n int64) int64 { return down(n + layout.MiB - 1) }
