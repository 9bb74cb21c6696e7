package decide

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/filesystem"
	"cambium/storage/identity"
)

// Persistent is what was observed about a persistent disk, and what is wanted on it.
type Persistent struct {
	CID    string
	Disk   disk.State
	Serial string
	// Damaged is why its partition table cannot be trusted.
	Damaged error
	// Volume is its only partition, or the whole device where Preformatted is set.
	Volume Volume
	// Pending says that an unfinished preparation of exactly this table is on record, and Finished that
	// its file system is complete all the same.
	Pending, Finished bool
	// Hardware is an identifier of the hardware that no other disk has; empty if there is none.
	Hardware string
	// Records are the disks on record.
	Records identity.Records
	// DuplicateUUID is set when a file system of the same UUID is mounted: a clone.
	DuplicateUUID bool
	// Earlier is what lies where partitions usually begin, for a table without entries.
	Earlier filesystem.Content

	Label        disk.Label      // of a new table
	FileSystem   filesystem.Kind // of a new file system
	MountOptions []string
	// AllowForeign permits formatting a disk that would be refused.
	AllowForeign bool
	// Preformatted disks carry their file system without a table, and are neither partitioned nor formatted.
	Preformatted bool
}

// Part is the device that carries the file system.
func (o Persistent) Part() string { return PersistentPart(o.Disk.Path, o.Preformatted) }

// PersistentPart is the device that carries a persistent disk's file system.
func PersistentPart(path string, preformatted bool) string {
	if preformatted {
		return path
	}
	return device.Partition(path, 1)
}

// ForeignError refuses a persistent disk, and tells how it can be released.
type ForeignError struct {
	Path  string
	Found string
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s is refused: %s. To use it, remove what is on it (wipefs -a), "+
		"or allow formatting with env.persistent_disk_foreign: format in the deployment manifest", e.Path, e.Found)
}

// Refused makes it a Refusal.
func (e *ForeignError) Refused() (path, found string) { return e.Path, e.Found }

// MountPersistent partitions and formats what is blank, completes what is ours and unfinished, grows what became
// larger, refuses the rest, and mounts it on a directory. notGrown says why a partition stays smaller than its disk.
func MountPersistent(o Persistent, target string) (p Plan, notGrown string, err error) {
	if o.Damaged == nil {
		if err := CheckIdentity(o.CID, o.Disk.Path, o.Records, o.Identity()); err != nil {
			return p, "", err
		}
	}
	if o.DuplicateUUID && o.Volume.Content.Kind == filesystem.XFS {
		o.MountOptions = append(slices.Clone(o.MountOptions), "nouuid") // XFS refuses a UUID that is mounted
	}
	if o.Preformatted {
		if o.Volume.Content.Blank() {
			return p, "", fmt.Errorf("%s is blank, there is nothing to mount", o.Disk.Path)
		}
		p.use(o.Part(), o.Volume, o.Disk.Bytes, target, o.MountOptions)
		return p, "", nil
	}
	verdict, proof, err := o.judge()
	if err != nil {
		return p, "", err
	}
	proof = "persistent disk " + o.CID + ", " + proof
	made := Volume{Content: filesystem.Content{Kind: o.FileSystem}}
	switch verdict {
	case Refuse:
		return p, "", &ForeignError{Path: o.Disk.Path, Found: strings.TrimPrefix(proof, "persistent disk "+o.CID+", ")}
	case Create:
		parts := NewPersistent(o.Disk, o.Label)
		if o.Serial != "" {
			proof += ", serial " + o.Serial
		}
		p.add(Change{Op: CreateTable, Device: o.Disk.Path, Proof: proof, What: "create " + Layout{Label: o.Label, Data: 1}.describe(parts),
			Destructive: true, Label: o.Label, Partitions: parts})
		p.makeFileSystem(o, "new partition", false)
		p.use(o.Part(), made, 0, target, o.MountOptions)
		return p, "", nil
	case Format:
		p.Begin = o.Disk.Table.GUID
		p.repair(o.Disk)
		p.makeFileSystem(o, proof, true)
		p.use(o.Part(), made, 0, target, o.MountOptions)
		return p, "", nil
	}
	p.repair(o.Disk)
	p.Finish = o.Pending
	v := o.Volume
	if o.Pending && !o.Finished {
		p.makeFileSystem(o, "a crash left it unfinished, and it was never mounted", true)
		v = made
	}
	notGrown = p.growPartition(o.Disk, growSlack)
	p.use(o.Part(), v, o.Disk.Table.Partitions[0].Size, target, o.MountOptions)
	if p.has(GrowPartition) && !p.has(GrowFileSystem) {
		p.growFileSystem(o.Part(), v.Content.Kind, target, o.MountOptions)
	}
	return p, notGrown, nil
}

func (p *Plan) makeFileSystem(o Persistent, proof string, destructive bool) {
	p.Finish = true
	p.add(Change{Op: MakeFileSystem, Device: o.Part(), Proof: proof, What: "make " + string(o.FileSystem), FileSystem: o.FileSystem, Destructive: destructive})
}

func (p Plan) has(op Op) bool {
	for _, c := range p.Changes {
		if c.Op == op {
			return true
		}
	}
	return false
}

// judge is the verdict on a disk, with what the operator allows and what cannot be done.
func (o Persistent) judge() (Verdict, string, error) {
	verdict, proof := Judge(o)
	if verdict == Refuse && o.AllowForeign {
		verdict, proof = Create, proof+"; formatting foreign disks is allowed"
	}
	if verdict == Create || verdict == Format || verdict == Keep && o.Pending && !o.Finished {
		if err := o.refuseFormatting(proof); err != nil {
			return Refuse, "", err
		}
	}
	switch {
	case verdict == Create && !o.Label.Addresses(o.Disk.Bytes, o.Disk.Sector):
		return Refuse, "", fmt.Errorf("%s is larger than 2 TiB, which a DOS partition table cannot address: "+
			"set env.persistent_disk_partitioner to parted", o.Disk.Path)
	case (verdict == Create || verdict == Format) && !o.FileSystem.Managed():
		return Refuse, "", fmt.Errorf("persistent_disk_fs %q is not supported, only %s", o.FileSystem, filesystem.ManagedNames())
	}
	return verdict, proof, nil
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

// Judge tells what may be done with a disk, and the proof.
func Judge(o Persistent) (Verdict, string) {
	t, content := o.Disk.Table, o.Volume.Content
	switch {
	case o.Damaged != nil:
		return Refuse, o.Damaged.Error()
	case t.Label == disk.None && o.Disk.Content.Blank():
		return Create, fmt.Sprintf("blank, %s", Size(o.Disk.Bytes))
	case t.Label == disk.None:
		return Refuse, fmt.Sprintf("the whole disk holds %s", o.Disk.Content)
	case len(t.Partitions) == 0 && !o.Earlier.Blank():
		return Refuse, fmt.Sprintf("the partition table is empty, but %s lies where a partition usually begins", o.Earlier)
	case len(t.Partitions) == 0:
		return Create, fmt.Sprintf("empty partition table, nothing where a partition usually begins, %s", Size(o.Disk.Bytes))
	case len(t.Partitions) > 1:
		return Refuse, fmt.Sprintf("the disk has %d partitions", len(t.Partitions))
	}
	p := t.Partitions[0]
	switch {
	case p.Number != 1:
		return Refuse, fmt.Sprintf("its only partition has number %d", p.Number)
	case content.Data():
		return Keep, fmt.Sprintf("partition %d holds %s", p.Number, content)
	case content.Blank() && strings.HasPrefix(p.Name, persistentPrefix):
		return Format, fmt.Sprintf("partition %d is named %s and blank", p.Number, p.Name)
	case content.Blank() && o.Pending:
		return Format, fmt.Sprintf("partition %d is blank and its making is on record as unfinished", p.Number)
	case content.Blank():
		return Refuse, fmt.Sprintf("partition %d is blank, but nothing shows that this agent made it", p.Number)
	}
	return Refuse, fmt.Sprintf("partition %d holds %s", p.Number, content)
}

// LastMounted decides whether the disk that was mounted last is mounted at boot. A record of one that is not among
// those known is an error. Where none is known at all the Director may still have plans: that is a warning, and the
// store stays empty.
func LastMounted(recorded string, isKnown bool, known int) (mount bool, warning string, err error) {
	switch {
	case recorded == "":
		return false, "", nil
	case isKnown:
		return true, "", nil
	case known == 0:
		return false, fmt.Sprintf("persistent disk %s was mounted last and is no longer known: the store is empty", recorded), nil
	}
	return false, "", fmt.Errorf("persistent disk %s was mounted last and is not among those known", recorded)
}

// LeftToDirector says whether a disk is blank: boot does not format it.
func LeftToDirector(s disk.State, damaged error, preformatted bool) bool {
	switch {
	case errors.Is(damaged, disk.ErrDamaged):
		return false // mounting it gives the better error
	case preformatted:
		return s.Content.Blank()
	}
	return s.Table.Label == disk.None && s.Content.Blank()
}

// Association is a name under which jobs find a persistent disk.
type Association struct{ Name, CID string }

// CheckKnown refuses to go on when a disk that has a name is not known, or when more disks are
// known than one would expect: those with names, or else one, and one more while disks are exchanged.
func CheckKnown(known map[string]bool, associations []Association) error {
	for _, a := range associations {
		if !known[a.CID] {
			return fmt.Errorf("persistent disk %q, named %q, is not attached", a.CID, a.Name)
		}
	}
	if most := max(len(associations), 1) + 1; len(known) > most {
		return fmt.Errorf("%d persistent disks are attached, want at most %d", len(known), most)
	}
	return nil
}
