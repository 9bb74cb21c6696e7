package decide

import (
	"fmt"
	"slices"

	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
)

// Replaced is what was observed about a disk that is to become an ephemeral or a raw one. What it holds is replaced
// without a proof that it is blank, since IaaSes hand out such disks with file systems and recycled ones; unless it is
// or may be a store.
type Replaced struct {
	Serial string
	// Busy is why it cannot be used at all: it is mounted or held, or is not a disk.
	Busy error
	// Persistent is why it is a persistent disk according to records, settings or hints.
	Persistent error
	// Volume is its only partition, or the whole disk where it has no table, or the data of a layout without names.
	Volume Volume
	// Names are those in the top directory of the file system there, as filesystem.List returns them, and Unlisted is
	// why they are not known.
	Names    []string
	Unlisted error
	// Journal is set when the journal of that file system may hold files that Names lacks.
	Journal bool
}

// MayBeStore says whether the only partition of a disk, or the whole disk, has to be looked at. Names of ephemeral and
// raw disks show that it need not, and a store is the only partition of its disk.
func MayBeStore(t layout.Table) bool {
	return len(t.Partitions) < 2 && !namedEphemeral(t) && !KeptRaw(t)
}

// refuse returns why the content of a disk is not replaced.
func (o Replaced) refuse(s layout.State) error {
	switch {
	case o.Busy != nil:
		return fmt.Errorf("not touched: %w", o.Busy)
	case o.Persistent != nil:
		return fmt.Errorf("not touched: %w", o.Persistent)
	case carriesPersistent(s.Table):
		return fmt.Errorf("not touched: %s has the partition of a persistent disk (%s)", s.Path, PersistentName)
	case !MayBeStore(s.Table) || !o.fileSystem():
		return nil
	case len(s.Table.Partitions) == 0 && o.Volume.Content.Label == novaLabel:
		return nil
	}
	found := "holds a damaged ext4 or xfs"
	switch {
	case o.Volume.Content.Data() && o.Unlisted != nil:
		return fmt.Errorf("not touched: cannot determine whether %s holds a store: %w", s.Path, o.Unlisted)
	case o.Volume.Content.Data() && o.Journal && empty(o.Names):
		found = fmt.Sprintf("holds %s that looks empty, but was in use, and its journal may hold files",
			o.Volume.Content)
	case o.Volume.Content.Data() && ephemeralData(o.Names):
		return nil
	case o.Volume.Content.Data():
		found = fmt.Sprintf("holds %s with files that are not an agent's ephemeral data", o.Volume.Content)
	}
	return fmt.Errorf("not touched: %s %s: it may be a store. Attach the right disk, or clear this one if its content "+
		"is not needed (blkdiscard -z %s)", s.Path, found, s.Path)
}

// proof is why the content of a disk is replaced that is not refused.
func (o Replaced) proof(s layout.State) string {
	return found(s, o.Serial) + ", not in use, not a persistent disk"
}

// fileSystem reports an ext4 or xfs, also a damaged one.
func (o Replaced) fileSystem() bool {
	c := o.Volume.Content
	return c.Kind == probe.Unknown || c.Kind.Managed() || slices.ContainsFunc(c.Also, probe.Kind.ExtOrXFS) ||
		len(o.Volume.Residue.Superblocks()) > 0
}

// ephemeral reports the data of an agent's ephemeral disk in a table without names.
func (o Replaced) ephemeral() bool {
	return o.Persistent == nil && o.Volume.Content.Data() && o.Unlisted == nil && ephemeralData(o.Names)
}

// novaLabel is what OpenStack calls the file system that it makes on an ephemeral disk.
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
