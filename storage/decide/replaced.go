package decide

import (
	"fmt"
	"slices"
	"strings"

	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
)

// Replaced describes a disk that is to become an ephemeral or raw one. It need not be blank, since IaaSes provide such
// disks with file systems, and recycled ones. Its content is replaced if no ext or xfs is found anywhere on it, or if
// it is recognized as ephemeral.
type Replaced struct {
	Serial string
	// Busy is the error if the disk cannot be used at all: it is mounted or held, or is not a disk.
	Busy error
	// Persistent is the error if settings or hints name it as a persistent disk, and Recorded if records do.
	Persistent, Recorded error
	// Damaged is the error if its partition table cannot be trusted.
	Damaged error
	// Asked is set if an operator requested to format it, whatever it contains.
	Asked bool
	// Superblocks lists the ext and xfs superblocks found anywhere on the disk.
	Superblocks []probe.Superblock
	// Volume is its only partition, or the whole disk if it has no table, or the data partition of a layout without
	// names. Start is the offset of the volume in bytes.
	Volume Volume
	Start  int64
	// Names lists the top directory of the volume's file system, as returned by filesystem.List. Unlisted is the error
	// if it could not be read.
	Names    []string
	Unlisted error
	// Journal is set if the journal of that file system may contain files missing from Names.
	Journal bool
}

// HasListing reports whether the top directory of a file system is read: one of the managed kinds, or an older ext,
// which the same driver mounts.
func HasListing(c probe.Content) bool {
	if c.Kind == probe.Ext2 || c.Kind == probe.Ext3 {
		c.Kind = probe.Ext4
	}
	return c.Data()
}

// NamesEphemeral reports whether all partitions of a table have names that agents give those of ephemeral and raw
// disks. A table that the kernel rejects does not count.
func NamesEphemeral(t layout.Table) bool {
	if !t.Label.Named() || t.Lost == layout.ProtectiveEntry || len(t.Partitions) == 0 || carriesPersistent(t) {
		return false
	}
	return !slices.ContainsFunc(t.Partitions, func(p layout.Partition) bool {
		return !strings.HasPrefix(p.Name, persistentPrefix+"-") && !strings.Contains(p.Name, rawPrefix)
	})
}

// refuse returns an error if the content of a disk must not be replaced. what is the name of the disk for 'agent disk
// format'.
func (o Replaced) refuse(s layout.State, what string) error {
	switch {
	case o.Busy != nil:
		return fmt.Errorf("not touched: %w", o.Busy)
	case o.Persistent != nil:
		return fmt.Errorf("not touched: %w", o.Persistent)
	case o.Asked:
		return nil
	}
	found, look := o.mayBeStore(s)
	if found == "" {
		return nil
	}
	return fmt.Errorf("not touched: %s: %s: it may be a store. Attach the right disk: one without ext4 or xfs. %s%s",
		s.Path, found, look, giveUp(what))
}

// mayBeStore describes content that may be a store, or returns "". look is a sentence with a command to inspect it.
func (o Replaced) mayBeStore(s layout.State) (found, look string) {
	content := o.Volume.Content
	look = lookAt(s.Path, probe.Superblock{Kind: content.Kind, Start: o.Start}, 0)
	outside := slices.DeleteFunc(slices.Clone(o.Superblocks), func(b probe.Superblock) bool {
		at := b.Start
		if at < 0 {
			at = b.Backup
		}
		return at >= o.Start && at < o.Start+content.Bytes
	})
	switch {
	case o.Recorded != nil:
		return o.Recorded.Error(), ""
	case o.Damaged != nil:
		return o.Damaged.Error(), ""
	case carriesPersistent(s.Table):
		return fmt.Sprintf("it has the partition of a persistent disk (%s)", PersistentName), ""
	case NamesEphemeral(s.Table) || len(o.Superblocks) == 0:
		return "", ""
	case len(outside) > 0:
		return describe(outside[0], 0), lookAt(s.Path, outside[0], 0)
	case !HasListing(content):
		return describe(o.Superblocks[0], 0), lookAt(s.Path, o.Superblocks[0], 0)
	case len(s.Table.Partitions) == 0 && content.Label == novaLabel:
		return "", ""
	case o.Unlisted != nil:
		return fmt.Sprintf("cannot determine whether %s holds files: %v", content, o.Unlisted), ""
	case o.Journal && empty(o.Names):
		return fmt.Sprintf("it holds %s that looks empty, but was in use, and its journal may hold files",
			content), look
	case ephemeralData(o.Names):
		return "", ""
	}
	return fmt.Sprintf("it holds %s with files that are not ephemeral data", content), look
}

// proof returns the reason why the content of a disk may be replaced.
func (o Replaced) proof(s layout.State) string {
	proof := found(s, o.Serial) + ", not in use, not a persistent disk"
	switch {
	case o.Asked:
		return proof + "; an operator asked to format it"
	case NamesEphemeral(s.Table):
		return proof + ", named as an ephemeral disk"
	case len(o.Superblocks) == 0:
		return proof + ", no ext4 or xfs on it"
	}
	return proof + ", holds ephemeral data only"
}

// ephemeral reports whether the volume contains the data of an agent's ephemeral disk.
func (o Replaced) ephemeral() bool {
	return o.Persistent == nil && o.Recorded == nil && !o.Asked && o.Volume.Content.Data() && o.Unlisted == nil &&
		ephemeralData(o.Names)
}

// formatted reports whether the disk is formatted because an operator requested it. A disk in use is not.
func (o Replaced) formatted() bool { return o.Asked && o.Busy == nil }

// novaLabel is the label of the file system that OpenStack creates on ephemeral disks.
const novaLabel = "ephemeral0"

// empty reports whether a top directory is that of a new file system.
func empty(names []string) bool {
	return len(names) == 0 || len(names) == 1 && names[0] == "lost+found/"
}

// ephemeralData reports whether a top directory is that of an agent's ephemeral disk, with all three directories, or is
// empty. Azure puts a warning on disks whose content is not preserved. One directory alone proves nothing: a store may
// also have a directory "jobs" or "packages".
func ephemeralData(names []string) bool {
	found := 0
	empty := true
	for _, name := range names {
		switch name {
		case "sys/", "jobs/", "packages/":
			found++
			empty = false
		case "lost+found/", "DATALOSS_WARNING_README.txt":
		default:
			empty = false
		}
	}
	return empty || found == 3
}

// DescribeReplaced tells an operator what formatting a disk would destroy. It returns an error if the disk cannot be
// formatted.
func DescribeReplaced(o Replaced, s layout.State) (string, error) {
	o.Asked = true
	if err := o.refuse(s, ""); err != nil {
		return "", err
	}
	o.Asked = false
	text := fmt.Sprintf("%s: %s", s.Path, found(s, o.Serial))
	if store, _ := o.mayBeStore(s); store != "" {
		text += "; " + store
	}
	return text, nil
}
