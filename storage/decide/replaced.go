package decide

import (
	"fmt"
	"slices"
	"strings"

	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
)

// Replaced describes a disk that is to become an ephemeral or a raw one. IaaSes hand out such disks with file systems,
// and recycled ones, so that it need not be blank: its content is replaced if no ext or xfs is found anywhere on it, or
// if it says itself that it is ephemeral.
type Replaced struct {
	Serial string
	// Busy says why the disk cannot be used at all: it is mounted or held, or is not a disk.
	Busy error
	// Persistent says why it is a persistent disk according to settings or hints, and Recorded why according to
	// records.
	Persistent, Recorded error
	// Damaged says why its partition table cannot be trusted.
	Damaged error
	// Asked is set when an operator has asked to format it, whatever is on it.
	Asked bool
	// Superblocks lists the superblocks of ext and xfs found anywhere on the disk.
	Superblocks []probe.Superblock
	// Volume is its only partition, or the whole disk if it has no table, or the data partition of a layout without
	// names. Start is the byte at which the volume begins.
	Volume Volume
	Start  int64
	// Names lists the top directory of the file system there, as filesystem.List returns it. Unlisted says why the
	// names are not known.
	Names    []string
	Unlisted error
	// Journal is set when the journal of that file system may hold files that Names lacks.
	Journal bool
}

// Listed reports a file system whose top directory is looked at: one of the agent's, or an older ext, which the same
// driver mounts.
func Listed(c probe.Content) bool {
	if c.Kind == probe.Ext2 || c.Kind == probe.Ext3 {
		c.Kind = probe.Ext4
	}
	return c.Data()
}

// SaysEphemeral reports a table with the names that agents give all partitions of ephemeral and raw disks. One that the
// kernel does not believe says nothing.
func SaysEphemeral(t layout.Table) bool {
	if !t.Label.Named() || t.Lost == layout.ProtectiveEntry || len(t.Partitions) == 0 || carriesPersistent(t) {
		return false
	}
	return !slices.ContainsFunc(t.Partitions, func(p layout.Partition) bool {
		return !strings.HasPrefix(p.Name, persistentPrefix+"-") && !strings.Contains(p.Name, rawPrefix)
	})
}

// refuse returns why the content of a disk is not replaced. what names the disk to 'agent disk format'.
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

// mayBeStore describes what on a disk may be a store, and a way to look at it that writes nothing; empty if there is
// none.
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
	case SaysEphemeral(s.Table) || len(o.Superblocks) == 0:
		return "", ""
	case len(outside) > 0:
		return describe(outside[0], 0), lookAt(s.Path, outside[0], 0)
	case !Listed(content):
		return describe(o.Superblocks[0], 0), lookAt(s.Path, o.Superblocks[0], 0)
	case len(s.Table.Partitions) == 0 && content.Label == novaLabel:
		return "", ""
	case o.Unlisted != nil:
		return fmt.Sprintf("cannot determine whether %s holds files: %v", content, o.Unlisted), ""
	case o.Journal && empty(o.Names):
		return fmt.Sprintf("it holds %s that looks empty, but was in use, and its journal may hold files", content), look
	case ephemeralData(o.Names):
		return "", ""
	}
	return fmt.Sprintf("it holds %s with files that are not ephemeral data", content), look
}

// proof returns the reason for replacing the content of a disk that is not refused.
func (o Replaced) proof(s layout.State) string {
	proof := found(s, o.Serial) + ", not in use, not a persistent disk"
	switch {
	case o.Asked:
		return proof + "; an operator asked to format it"
	case SaysEphemeral(s.Table):
		return proof + ", named as an ephemeral disk"
	case len(o.Superblocks) == 0:
		return proof + ", no ext4 or xfs on it"
	}
	return proof + ", holds ephemeral data only"
}

// ephemeral reports the data of an agent's ephemeral disk in a table without names.
func (o Replaced) ephemeral() bool {
	return o.Persistent == nil && o.Recorded == nil && !o.Asked && o.Volume.Content.Data() && o.Unlisted == nil &&
		ephemeralData(o.Names)
}

// formatted reports a disk that is formatted because an operator asked for it. What is in use is not.
func (o Replaced) formatted() bool { return o.Asked && o.Busy == nil }

// novaLabel is the label of the file system that OpenStack makes on an ephemeral disk.
const novaLabel = "ephemeral0"

// empty reports a top directory as a new file system has it.
func empty(names []string) bool {
	return len(names) == 0 || len(names) == 1 && names[0] == "lost+found/"
}

// ephemeralData reports the top directory of an agent's ephemeral disk, which has all of three directories, or of a
// file system without any content: Azure's warning is on disks whose content is lost anyway. One of the names alone is
// no proof: a store may have a directory "blobs", "tmp" or "packages".
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

// DescribeReplaced tells an operator what would be lost by formatting a disk, or why it cannot be formatted.
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
