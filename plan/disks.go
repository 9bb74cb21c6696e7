package plan

import (
	"fmt"
	"strings"

	"cambium/platform/disk"
	"cambium/platform/filesystem"
)

// Layout is the wanted division of a disk. Swap and Data are partition numbers; Swap is 0
// where there is none.
type Layout struct {
	Label      disk.Label
	Partitions []disk.Partition
	Swap, Data int
}

// The smallest things worth making.
const (
	smallestData   = 8 * disk.MiB
	smallestSwap   = disk.MiB
	smallestOnRoot = 1 << 30
)

// EphemeralPrefix is what the names of an ephemeral disk's partitions begin with. It carries
// the agent id, so that a disk used by an earlier VM is known to be no longer ours.
func EphemeralPrefix(agentID string) string {
	prefix := persistentPrefix + "-" + agentID
	if len(prefix) > 33 {
		prefix = prefix[:32]
	}
	return prefix
}

const persistentPrefix = "bosh-partition"

// PersistentName is the name of a persistent disk's one partition.
const PersistentName = persistentPrefix + "-0"

// SwapBytes divides the available bytes: as much swap as asked for, or else as much as there
// is RAM, but not more than half.
func SwapBytes(available, ram int64, swapMiB *uint64) (int64, error) {
	if swapMiB == nil {
		return min(ram, available/2), nil
	}
	if *swapMiB > uint64(available)/disk.MiB || available-int64(*swapMiB)*disk.MiB < smallestData {
		return 0, fmt.Errorf("swap_size %d MiB leaves no room for data on %d MiB", *swapMiB, available/disk.MiB)
	}
	return int64(*swapMiB) * disk.MiB, nil
}

// KeptEphemeral recognises the layout that this agent made on an ephemeral disk before. Sizes
// do not matter: a change of RAM or swap_size is no reason to lose the data.
func KeptEphemeral(s disk.State, agentID string, label disk.Label) (Layout, bool) {
	t := s.Table
	if t.Label == disk.None || len(t.Partitions) == 0 || len(t.Partitions) > 2 {
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
		case t.Label == disk.GPT:
			if !strings.HasPrefix(p.Name, EphemeralPrefix(agentID)) {
				return Layout{}, false
			}
		case label != disk.MBR:
			return Layout{}, false
		case p.Number == l.Swap && p.Type != disk.SwapMBR, p.Number == l.Data && p.Type != disk.LinuxMBR:
			return Layout{}, false
		}
	}
	return l, true
}

// NewEphemeral lays out a disk of its own: swap, then data, in whole MiB, from 1 MiB on.
func NewEphemeral(s disk.State, agentID string, ram int64, swapMiB *uint64, label disk.Label) (Layout, error) {
	swap, err := SwapBytes(s.Bytes, ram, swapMiB)
	if err != nil {
		return Layout{}, err
	}
	l := Layout{Label: label}
	start := int64(disk.MiB)
	add := func(size int64, mbrType string) int {
		end := down(min(start+size, s.Bytes-1, disk.Usable(label, s.Bytes, s.Sector)))
		n := len(l.Partitions)
		p := disk.Partition{Number: n + 1, Start: start, Size: end - start}
		if label == disk.GPT {
			p.Name, p.Type = fmt.Sprintf("%s-%d", EphemeralPrefix(agentID), n), disk.LinuxGPT
		} else {
			p.Type = mbrType
		}
		l.Partitions = append(l.Partitions, p)
		start = end
		return p.Number
	}
	if swap >= smallestSwap {
		l.Swap = add(swap, disk.SwapMBR)
	}
	l.Data = add(s.Bytes-swap, disk.LinuxMBR)
	if last := l.Partitions[l.Data-1]; last.Size < smallestData {
		return Layout{}, fmt.Errorf("a disk of %d MiB is too small for the ephemeral data", s.Bytes/disk.MiB)
	}
	return l, nil
}

// OnRoot lays out swap and data behind the root partition, or recognises what is there
// already, and then made is nil. content tells what a partition of the disk holds.
func OnRoot(s disk.State, root int, agentID string, ram int64, swapMiB *uint64, content func(n int) (filesystem.Content, error)) (l Layout, made []disk.Partition, err error) {
	rootPart, ok := s.Table.Partition(root)
	if !ok {
		return l, nil, fmt.Errorf("root partition %d is not in the table of %s", root, s.Path)
	}
	var behind []disk.Partition
	for _, p := range s.Table.Partitions {
		if p.Start > rootPart.Start {
			behind = append(behind, p)
		}
	}
	l.Label = s.Table.Label
	if len(behind) > 0 {
		return recogniseBehind(l, behind, content)
	}
	available := s.Bytes - rootPart.End()
	if available < smallestOnRoot {
		return l, nil, fmt.Errorf("insufficient remaining disk space (%d bytes) for ephemeral partition (min: %d bytes)", available, smallestOnRoot)
	}
	swap, err := SwapBytes(available, ram, swapMiB)
	if err != nil {
		return l, nil, err
	}
	start := up(rootPart.End())
	add := func(size int64) (int, error) {
		n := root + 1 + len(made)
		for _, taken := s.Table.Partition(n); taken; _, taken = s.Table.Partition(n) {
			n++
		}
		if l.Label == disk.MBR && n > 4 {
			return 0, fmt.Errorf("no free entry in the partition table of %s", s.Path)
		}
		end := min(start+size, disk.Usable(l.Label, s.Bytes, s.Sector))
		p := disk.Partition{Number: n, Start: start, Size: end - start, Type: disk.LinuxMBR}
		if l.Label == disk.GPT {
			p.Name, p.Type = fmt.Sprintf("%s-%d", EphemeralPrefix(agentID), len(made)), disk.LinuxGPT
		}
		p.Size = p.Size / int64(s.Sector) * int64(s.Sector)
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
	l.Partitions = append(append([]disk.Partition(nil), s.Table.Partitions...), made...)
	return l, made, nil
}

// recogniseBehind accepts what is behind the root partition by its content, not its size: a
// table of an older agent has no names, and the machine may have got other RAM since.
func recogniseBehind(l Layout, behind []disk.Partition, content func(int) (filesystem.Content, error)) (Layout, []disk.Partition, error) {
	if len(behind) > 2 {
		return l, nil, fmt.Errorf("%d partitions behind the root partition; expected swap and data", len(behind))
	}
	l.Data = behind[len(behind)-1].Number
	if len(behind) == 2 {
		l.Swap = behind[0].Number
	}
	for _, p := range behind {
		c, err := content(p.Number)
		if err != nil {
			return l, nil, err
		}
		fits := c.Blank() || p.Number == l.Swap && c.Kind == filesystem.Swap || p.Number == l.Data && c.Data()
		if !fits {
			return l, nil, fmt.Errorf("partition %d behind the root partition holds %s and is not touched", p.Number, c)
		}
	}
	return l, nil, nil
}

// RawName is the name by which jobs find a raw ephemeral disk.
func RawName(i int) string { return fmt.Sprintf("raw-ephemeral-%d", i) }

// KeptRaw reports a disk that already is a raw ephemeral disk.
func KeptRaw(t disk.Table) bool {
	for _, p := range t.Partitions {
		if t.Label == disk.GPT && strings.Contains(p.Name, "raw-ephemeral-") {
			return true
		}
	}
	return false
}

// NewRaw is one partition over the whole disk.
func NewRaw(s disk.State, i int) []disk.Partition {
	return []disk.Partition{{Number: 1, Start: disk.MiB, Size: whole(s, disk.GPT), Name: RawName(i), Type: disk.LinuxGPT}}
}

// NewPersistent is one partition over the whole disk.
func NewPersistent(s disk.State, label disk.Label) []disk.Partition {
	p := disk.Partition{Number: 1, Start: disk.MiB, Size: whole(s, label)}
	if label == disk.GPT {
		p.Name, p.Type = PersistentName, disk.LinuxGPT
	}
	return []disk.Partition{p}
}

func whole(s disk.State, label disk.Label) int64 {
	return down(min(s.Bytes-1, disk.Usable(label, s.Bytes, s.Sector))) - disk.MiB
}

// Verdict is what may be done with a persistent disk.
type Verdict int

// The verdicts. Only Create and Format destroy, and only what was proven to be nothing.
const (
	Refuse Verdict = iota // carries something that is not ours
	Create                // blank: partition and format
	Format                // our partition, not formatted yet
	Keep                  // our partition with a file system
)

// Persistent judges a disk. content is that of its only partition; earlier looks at the places
// where a partition usually begins, for a table whose entries may have been deleted. pending
// says that an unfinished preparation of exactly this table is on record.
func Persistent(s disk.State, content filesystem.Content, earlier func() (filesystem.Content, error), pending bool) (Verdict, string, error) {
	t := s.Table
	switch {
	case t.Label == disk.None && s.Content.Blank():
		return Create, fmt.Sprintf("blank, %s", Size(s.Bytes)), nil
	case t.Label == disk.None:
		return Refuse, fmt.Sprintf("the whole disk holds %s", s.Content), nil
	case len(t.Partitions) == 0:
		c, err := earlier()
		if err != nil {
			return Refuse, "", err
		}
		if !c.Blank() {
			return Refuse, fmt.Sprintf("the partition table is empty, but %s lies where a partition usually begins", c), nil
		}
		return Create, fmt.Sprintf("empty partition table, nothing where a partition usually begins, %s", Size(s.Bytes)), nil
	case len(t.Partitions) > 1:
		return Refuse, fmt.Sprintf("the disk has %d partitions", len(t.Partitions)), nil
	}
	p := t.Partitions[0]
	switch {
	case p.Number != 1:
		return Refuse, fmt.Sprintf("its only partition has number %d", p.Number), nil
	case content.Data():
		return Keep, fmt.Sprintf("partition %d holds %s", p.Number, content), nil
	case content.Blank() && strings.HasPrefix(p.Name, persistentPrefix):
		return Format, fmt.Sprintf("partition %d is named %s and blank", p.Number, p.Name), nil
	case content.Blank() && pending:
		return Format, fmt.Sprintf("partition %d is blank and its making is on record as unfinished", p.Number), nil
	case content.Blank():
		return Refuse, fmt.Sprintf("partition %d is blank, but nothing shows that this agent made it", p.Number), nil
	}
	return Refuse, fmt.Sprintf("partition %d holds %s", p.Number, content), nil
}

// CarriesPersistent reports the mark of a persistent disk in a table.
func CarriesPersistent(t disk.Table) bool {
	for _, p := range t.Partitions {
		if p.Name == PersistentName {
			return true
		}
	}
	return false
}

func down(n int64) int64 { return n / disk.MiB * disk.MiB }

func up(n int64) int64 { return down(n + disk.MiB - 1) }

// Size writes a number of bytes for people.
func Size(bytes int64) string {
	if bytes >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/disk.MiB)
}
