package decide

import (
	"fmt"
	"slices"
	"strings"

	"cambium/internal/advice"
	"cambium/internal/managedfs"
	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
	"cambium/storage/record"
)

// Persistent describes a persistent disk as observed, and its desired state.
type Persistent struct {
	CID    string
	Disk   layout.State
	Serial string
	// Damaged is the error if the disk's partition table cannot be trusted.
	Damaged error
	// Volume is the disk's only partition, or with Preformatted the whole device.
	Volume Volume
	// Pending is set if the partition is named as being prepared. Finished is set if its file system is complete
	// nevertheless.
	Pending, Finished bool
	// Residue describes data on a disk without a signature. The survey covers the whole disk if it has no partitions,
	// or its only partition if that shows no signature.
	Residue probe.Residue
	// Superblocks lists the ext and xfs superblocks found anywhere on the disk. They are searched for only if
	// NeedsSuperblocks returns true.
	Superblocks []probe.Superblock
	// DuplicateUUID is set if a file system with the same UUID is mounted, so that the disk is a clone.
	DuplicateUUID bool

	Label        layout.Label // of a new table
	FileSystem   probe.Kind   // of a new file system
	MountOptions []string
	// AllowForeign permits formatting disks that would be refused, and AllowNoise those that contain only random bytes.
	AllowForeign, AllowNoise bool
	// Preformatted disks have a file system without a partition table. They are neither partitioned nor formatted.
	Preformatted bool
}

// Part returns the path of the device with the file system.
func (o Persistent) Part() string { return PersistentPart(o.Disk.Path, o.Preformatted) }

// PersistentPart returns the path of the device with a persistent disk's file system.
func PersistentPart(path string, preformatted bool) string {
	if preformatted {
		return path
	}
	return layout.PartitionPath(path, 1)
}

// foreign returns the refusal of a persistent disk because of its content, with ways to inspect, repair or release it.
func (o Persistent) foreign(r record.Record, v judgment) *Refusal {
	remedy := fmt.Sprintf("Attach the right disk: %s is expected to be blank, or to have a single partition with "+
		"ext4 or xfs", o.CID)
	if known, ok := r.Disks[o.CID]; ok {
		remedy = fmt.Sprintf("Attach the right disk: %s is on record with %s", o.CID, known)
	}
	remedy += ". " + v.Advice
	if v.Superblock != "" {
		remedy += fmt.Sprintf("Because %s, no setting allows formatting it. ", v.Superblock)
	} else {
		remedy += "Only for a deployment whose disks never hold data from elsewhere, env.persistent_disk_foreign: format " +
			"in the manifest has all disks without a superblock of ext4 or xfs formatted. "
	}
	remedy += giveUp(o.CID)
	return &Refusal{o.Disk.Path, v.Proof, remedy}
}

// MountPersistent plans to mount a persistent disk on target. A disk with a file system of ours is mounted, and grown
// if it became larger. A blank disk is partitioned and formatted first, and an unfinished one of ours completed. Any
// other disk is refused, and so is one that is not the disk of this CID in the record r.
func MountPersistent(o Persistent, r record.Record, target string) (p Plan, err error) {
	if o.Damaged == nil {
		if err := checkIdentity(o.CID, o.Disk.Path, r, o.identity()); err != nil {
			return p, err
		}
	}
	if o.DuplicateUUID && o.Volume.Content.Kind == probe.XFS {
		o.MountOptions = append(slices.Clone(o.MountOptions), "nouuid") // XFS refuses a duplicate UUID
	}
	if o.Preformatted {
		if o.Volume.Content.Blank() {
			return p, fmt.Errorf("%s is blank; there is nothing to mount: attach a disk with a file system",
				o.Disk.Path)
		}
		if recorded := r.Disks[o.CID]; recorded.FileSystem != "" && !o.Volume.Content.Kind.Managed() &&
			r.Asked[o.CID] == "" && o.Damaged == nil {
			// This file system has no identifier to compare.
			return p, otherDisk(o.CID, o.Disk.Path, "has a different file system", recorded, o.identity())
		}
		p.use(o.Part(), o.Volume, o.Disk.Bytes, target, o.MountOptions)
		p.SizeCheck = o.sizeCheck(target)
		return p, nil
	}
	v, err := o.judge(r)
	if err != nil {
		return p, err
	}
	p.SizeCheck = o.sizeCheck(target)
	proof := "persistent disk " + o.CID + ", " + v.Proof
	made := Volume{Content: probe.Content{Kind: o.FileSystem}}
	switch v.Verdict {
	case refuse:
		return p, o.foreign(r, v)
	case create:
		parts := newPersistent(o.Disk, o.Label)
		if o.Serial != "" {
			proof += ", serial " + o.Serial
		}
		p.add(Change{Op: CreateTable, Device: o.Disk.Path, Proof: proof, Destructive: true, Label: o.Label,
			What: "create " + Layout{Label: o.Label, Data: 1}.describe(parts), Partitions: parts})
		p.makeFileSystem(o, "new partition", false)
		p.nameFinished(o.Disk.Path, o.Label)
		p.use(o.Part(), made, 0, target, o.MountOptions)
		return p, nil
	case format:
		p.repair(o.Disk)
		if !o.Pending {
			p.namePartition(o.Disk.Path, proof, PreparingName)
		}
		p.makeFileSystem(o, proof, true)
		p.nameFinished(o.Disk.Path, o.Disk.Table.Label)
		p.use(o.Part(), made, 0, target, o.MountOptions)
		return p, nil
	}
	p.repair(o.Disk)
	volume := o.Volume
	if o.Pending && !o.Finished {
		p.makeFileSystem(o, "a crash left it unfinished, and it was never mounted", true)
		volume = made
	}
	if o.Pending {
		p.nameFinished(o.Disk.Path, o.Disk.Table.Label)
	}
	p.NotGrown = p.growPartition(o.Disk, growSlack)
	p.use(o.Part(), volume, o.Disk.Table.Partitions[0].Size, target, o.MountOptions)
	if p.has(GrowPartition) && !p.has(GrowFileSystem) {
		p.growFileSystem(o.Part(), volume.Content.Kind, target, o.MountOptions)
	}
	return p, nil
}

// nameFinished gives the partition its final name once its file system is complete. In a table without names, it
// removes the name.
func (p *Plan) nameFinished(path string, label layout.Label) {
	name := ""
	if label.Named() {
		name = PersistentName
	}
	p.namePartition(path, "the file system is complete", name)
}

func (p *Plan) namePartition(path, proof, name string) {
	what := "name partition 1 " + name
	if name == "" {
		what = "remove the name of partition 1"
	}
	p.add(Change{Op: NamePartition, Device: path, Proof: proof, What: what, Partition: 1, Name: name})
}

func (p *Plan) makeFileSystem(o Persistent, proof string, destructive bool) {
	p.add(Change{Op: MakeFileSystem, Device: o.Part(), Proof: proof, Destructive: destructive,
		What: "make " + string(o.FileSystem), FileSystem: o.FileSystem})
}

func (p Plan) has(op Op) bool {
	for _, c := range p.Changes {
		if c.Op == op {
			return true
		}
	}
	return false
}

// judge returns the verdict on a disk after applying settings and requests. Only an operator's request formats a disk
// with a superblock.
func (o Persistent) judge(r record.Record) (judgment, error) {
	forced := r.Asked[o.CID] == record.Format
	o.Superblocks = slices.Concat(o.Superblocks, o.Residue.Superblocks())
	found := judge(o)
	v := found
	if forced {
		v = judgment{Verdict: create, Proof: v.Proof + "; an operator asked to format it"}
	} else if v.Verdict == refuse && o.AllowForeign {
		v = judgment{Verdict: create, Proof: v.Proof + "; formatting foreign disks is allowed"}
	}
	if !forced && (v.Verdict == create || v.Verdict == format || v.Verdict == keep && o.Pending && !o.Finished) {
		if err := o.refuseFormatting(r, v.Proof); err != nil {
			return v, err
		}
	}
	if sb := o.superblock(); !forced && found.Verdict == refuse && o.AllowForeign && sb != "" {
		found.Superblock = sb
		return found, nil
	}
	switch {
	case v.Verdict == create && onePartition(o.Disk, o.Label) < layout.MiB:
		return v, fmt.Errorf("%s has %s, which is too small for a partition", o.Disk.Path, size(o.Disk.Bytes))
	case v.Verdict == create && !o.Label.CanAddress(o.Disk.Bytes, o.Disk.Sector):
		return v, fmt.Errorf("%s is larger than 2 TiB, which a DOS partition table cannot address: "+
			"set env.persistent_disk_partitioner to parted", o.Disk.Path)
	case (v.Verdict == create || v.Verdict == format) && !o.FileSystem.Managed():
		return v, fmt.Errorf("persistent_disk_fs %q is not supported, only %s", o.FileSystem,
			strings.Join(managedfs.Names(), " and "))
	}
	return v, nil
}

// verdict tells which changes may be made to a persistent disk.
type verdict int

// Verdicts. Only create and format destroy anything, and only on disks proven to hold no data.
const (
	refuse verdict = iota // has content that is not ours
	create                // blank: partition and format
	format                // our partition, not formatted yet
	keep                  // our partition with a file system
)

// judgment is a verdict and its proof. Advice, if set, describes alternatives to releasing a refused disk.
type judgment struct {
	Verdict verdict
	Proof   string
	Advice  string
	// Superblock describes the superblock because of which no setting formats the disk, or is "".
	Superblock string
}

// NeedsSuperblocks reports whether a setting allows formatting a partitioned disk if it has no superblock, so that the
// caller has to set Superblocks. For a disk without partitions, Residue already contains them.
func NeedsSuperblocks(o Observed) bool {
	return !o.Preformatted && o.Request() != record.Format && o.AllowForeign && len(o.Disk.Table.Partitions) > 0 &&
		judge(o.Persistent).Verdict == refuse
}

// superblock describes an ext or xfs superblock on the disk, or returns "".
func (o Persistent) superblock() string {
	if len(o.Superblocks) == 0 {
		return ""
	}
	return describe(o.Superblocks[0], 0)
}

// judge returns the verdict on a disk by its content alone.
func judge(o Persistent) judgment {
	t, content := o.Disk.Table, o.Volume.Content
	refuse := func(format string, args ...any) judgment { return judgment{Proof: fmt.Sprintf(format, args...)} }
	switch noise := o.Residue.Noise && o.AllowNoise; {
	case noise && len(t.Partitions) == 0:
		return judgment{Verdict: create, Proof: "random bytes and no trace of content, as new volumes have here, " +
			size(o.Disk.Bytes)}
	case o.Damaged != nil:
		return refuse("%s", o.Damaged)
	case t.Label == layout.None && !o.Disk.Content.Blank():
		v := refuse("the whole disk holds %s", o.Disk.Content)
		v.Advice = lookAt(o.Disk.Path, probe.Superblock{Kind: o.Disk.Content.Kind}, 0)
		return v
	case len(t.Partitions) == 0:
		blank, what := "blank", "there is no partition table"
		if t.Label != layout.None {
			blank, what = "empty partition table", "the partition table is empty"
		}
		if !o.Residue.IsEmpty() {
			return o.notBlank(what, 0)
		}
		return judgment{Verdict: create, Proof: fmt.Sprintf("%s, %s", blank, size(o.Disk.Bytes))}
	case len(t.Partitions) > 1:
		return refuse("the disk has %d partitions", len(t.Partitions))
	}
	p := t.Partitions[0]
	switch {
	case p.Number != 1:
		return refuse("its only partition has number %d", p.Number)
	case content.Data():
		return judgment{Verdict: keep, Proof: fmt.Sprintf("partition %d holds %s", p.Number, content)}
	case !content.Blank():
		return refuse("partition %d holds %s", p.Number, content)
	case o.Pending:
		return judgment{Verdict: format,
			Proof: fmt.Sprintf("partition %d has no file system, and says that it is being prepared", p.Number)}
	case !o.Residue.IsEmpty() && !(o.Residue.Noise && o.AllowNoise):
		return o.notBlank(fmt.Sprintf("partition %d has no file system", p.Number), p.Start)
	case strings.HasPrefix(p.Name, persistentPrefix):
		proof := fmt.Sprintf("partition %d is named %s and blank", p.Number, p.Name)
		return judgment{Verdict: format, Proof: proof}
	}
	return refuse("partition %d is blank, but nothing shows that this agent made it", p.Number)
}

// notBlank refuses a device without a signature that has other traces of content. what describes the device, and from
// is the byte at which it begins on its disk.
func (o Persistent) notBlank(what string, from int64) judgment {
	first := slices.IndexFunc(o.Residue.Found, func(s probe.Superblock) bool { return s.Backup == 0 })
	switch {
	case first >= 0:
		s := o.Residue.Found[first]
		return judgment{Proof: what + ", but " + describe(s, from), Advice: lookAt(o.Disk.Path, s, from)}
	case len(o.Residue.Found) > 0:
		s := o.Residue.Found[0]
		v := judgment{Proof: what + ", but " + describe(s, from), Advice: lookAt(o.Disk.Path, s, from)}
		if len(o.Disk.Table.Partitions) == 1 && s.Start == 0 && s.RepairCommand("", false) != "" {
			v.Advice = repair(o.Part(), s)
		}
		return v
	case o.Residue.Noise:
		return judgment{Proof: what + ", but it holds random bytes where a new volume has zeros",
			Advice: "If new volumes contain random bytes on this IaaS (encrypted, thick or recycled volumes), allow it " +
				"with env.persistent_disk_blank: noise in the deployment manifest or Platform.Linux.BlankDisks in " +
				"agent.json. "}
	}
	at := from + o.Residue.NonZero
	return judgment{Proof: fmt.Sprintf("%s, but it is not blank: there is data at byte %d", what, at),
		Advice: fmt.Sprintf("To look at it without writing, run 'hexdump -C -s %d -n 512 %s'. ", at, o.Disk.Path)}
}

// Association is a name by which jobs find a persistent disk.
type Association struct{ Name, CID string }

// CheckKnown returns an error if an associated disk is not known, or if too many devices are attached. The limit is one
// for each association, but at least one, plus one while disks are exchanged.
func CheckKnown(known map[string]bool, devices int, associations []Association) error {
	for _, a := range associations {
		if !known[a.CID] {
			return advice.With("attach it again, or have the Director detach it: 'bosh cck'",
				fmt.Errorf("persistent disk %q, named %q, is not attached", a.CID, a.Name))
		}
	}
	if most := max(len(associations), 1) + 1; devices > most {
		return advice.With("detach the disks that the Director does not list for this VM ('bosh instances --details'), "+
			"or run 'bosh cck'", fmt.Errorf("%d persistent disks are attached, expected at most %d", devices, most))
	}
	return nil
}
