package persistent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/platform/copytree"
	"cambium/platform/device"
	"cambium/platform/filesystem"
	"cambium/platform/filesystem/probe"
	"cambium/platform/mount"
	"cambium/storage/decide"
	"cambium/storage/identity"
	"cambium/storage/internal/machine"
	"cambium/storage/record"
)

// readLimit bounds the time to read the statement of another disk.
const readLimit = 10 * time.Second

// candidates reads the other disks with a file system that could be the store instead of cid. Disks on the same device
// as cid do not count. With replay set, journals are replayed; otherwise disks with a journal in use are left out.
func (d *Disks) candidates(ctx context.Context, v surroundings, cid string, replay bool) (others []decide.Disk) {
	seen := d.jobDevices(v)
	own := v.resolved[cid]
	for _, other := range v.Known {
		l := v.resolved[other]
		if other == cid || l.err != nil || l.Path == own.Path ||
			!d.BindMounted && (l.Number == own.Number || seen[l.Number]) ||
			slices.Contains(d.associatedCIDs(), other) {
			continue
		}
		seen[l.Number] = true
		if found, ok := d.readInTime(ctx, v, other, l.Device, replay); ok {
			others = append(others, found)
		}
	}
	return others
}

// associatedCIDs returns the disks that jobs find by names of their own. They are never the store.
func (d *Disks) associatedCIDs() []string {
	if d.Associated == nil {
		return nil
	}
	return d.Associated()
}

// jobDevices returns the devices of these disks and of dynamic disks. An outdated hint of another disk may lead to one
// of them.
func (d *Disks) jobDevices(v surroundings) map[blkdev.Number]bool {
	numbers := map[blkdev.Number]bool{}
	for _, cid := range d.associatedCIDs() {
		if l := v.resolved[cid]; l.err == nil && l.Number != 0 {
			numbers[l.Number] = true
		}
	}
	links, _ := filepath.Glob(filepath.Join(d.Machine.Dirs.DynamicDisks(), "*"))
	for _, link := range links {
		if n, err := blkdev.NumberOf(link); err == nil {
			numbers[n] = true
		}
	}
	return numbers
}

// readInTime reads a candidate, for at most readLimit. It returns false if it cannot be read. A disk that hangs is
// abandoned, and unmounted whenever it responds.
func (d *Disks) readInTime(ctx context.Context, v surroundings, cid string, dev device.Device,
	replay bool) (decide.Disk, bool) {
	type answer struct {
		disk decide.Disk
		err  error
	}
	answers := make(chan answer, 1)
	limited, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	go func() {
		var a answer
		a.disk, a.err = d.readIdentity(limited, v, cid, dev, replay)
		answers <- a
	}()
	select {
	case a := <-answers:
		if a.err != nil {
			d.Machine.Log.WithError(a.err).WithFields(logrus.Fields{"cid": cid, "device": dev.Path}).
				Info("another persistent disk cannot be looked at")
		}
		return a.disk, a.err == nil && a.disk.CID != ""
	case <-limited.Done():
		d.Machine.Log.WithFields(logrus.Fields{"cid": cid, "device": dev.Path}).
			Warn("another persistent disk does not answer")
		return decide.Disk{}, false
	}
}

// readIdentity reads the statement of another disk. The result has no CID if the disk has no file system.
func (d *Disks) readIdentity(ctx context.Context, v surroundings, cid string, dev device.Device,
	replay bool) (found decide.Disk, err error) {
	found = decide.Disk{CID: cid, Path: dev.Path}
	if d.BindMounted {
		if !dev.Directory {
			return decide.Disk{}, nil
		}
		if found.Statement, err = readStatementAt(dev.Path, ""); found.Statement.CID == "" &&
			found.Statement.Err == nil {
			found.CID = "" // a directory without a statement may be any
		}
		return found, err
	}
	if dev.Directory {
		return decide.Disk{}, nil
	}
	if !d.Preformatted {
		s, err := d.inspect(dev.Path)
		if err != nil || len(s.Table.Partitions) != 1 || s.Table.Partitions[0].Number != 1 {
			return decide.Disk{}, err
		}
		if replay {
			if err := d.Machine.Announce(ctx, dev.Path); err != nil {
				return decide.Disk{}, err
			}
		}
	}
	part := d.part(dev.Path)
	c, err := filesystem.Probe(part)
	if err != nil || !c.Kind.Managed() {
		return decide.Disk{}, err
	}
	found.FileSystem = c.UUID
	at, err := machine.MountedAt(part, v.Store, v.MigrationTarget)
	if err != nil {
		return decide.Disk{}, err
	}
	if at != "" {
		found.Statement, err = readStatementAt(at, c.UUID)
		return found, err
	}
	if used, err := filesystem.JournalUsed(part, c.Kind); !replay && (err != nil || used) {
		return decide.Disk{}, err
	}
	found.Statement, err = readUnmounted(part, c, replay)
	if replay && err == nil {
		err = mount.AwaitIdle(ctx, part) // the kernel releases a mount shortly after its descriptor is closed
	}
	return found, err
}

// readUnmounted reads the statement on an unmounted file system.
func readUnmounted(part string, c probe.Content, replay bool) (s decide.Statement, err error) {
	into := filesystem.WithRoot
	if replay {
		into = filesystem.WithReplayedRoot
	}
	err = into(part, c.Kind, func(root *os.Root) error {
		top, err := root.Open(".")
		if err != nil {
			return err
		}
		defer top.Close()
		s, err = readStatement(top, c.UUID)
		return err
	})
	return s, err
}

// readWithoutReplay reads the statement of an unmounted disk. unknown is set if the journal would have to be replayed
// first.
func (d *Disks) readWithoutReplay(part string) (s decide.Statement, unknown bool) {
	c, err := filesystem.Probe(part)
	if err != nil || !c.Kind.Managed() {
		return s, false
	}
	if used, err := filesystem.JournalUsed(part, c.Kind); err != nil || used {
		return s, true
	}
	s, err = readUnmounted(part, c, false)
	return s, err != nil
}

// placing is the mounting of a disk on a directory, in progress.
type placing struct {
	*Disks
	o      decide.Observed
	plan   decide.Plan
	others []decide.Disk
	// identified is set if the disk's hint contains an identifier.
	identified bool
	// statement is the disk's new statement, or zero if none could be written.
	statement identity.Store
}

// checkChoice refuses a disk that must not become the store.
func (p *placing) checkChoice(disk decide.Disk) error {
	return decide.CheckChoice(
		decide.Choice{Disk: disk, Surroundings: p.o.Surroundings, New: p.plan.Formats(), Identified: p.identified,
			Elsewhere: p.o.Elsewhere, Others: p.others},
	)
}

// admit checks the statement of a disk that is mounted, but not at any path yet, and writes the new one. It flushes
// that before jobs can write to the disk.
func (p *placing) admit(top *os.File) error {
	disk := decide.Disk{CID: p.o.CID, Path: p.o.Disk.Path}
	if !p.o.Directories {
		c, err := filesystem.Probe(p.o.Part())
		if err != nil {
			return err
		}
		if c.Kind.Managed() {
			disk.FileSystem = c.UUID
		}
	}
	var err error
	if disk.Statement, err = readStatement(top, disk.FileSystem); err != nil {
		return err
	}
	if !p.plan.Placed.Store {
		return p.admitToTarget(top, disk)
	}
	if err := p.checkChoice(disk); err != nil {
		return err
	}
	return p.becomeStore(top, disk)
}

// admitToTarget admits a disk to the migration target. A clone of the store gets a statement with the store as its
// origin.
func (p *placing) admitToTarget(top *os.File, disk decide.Disk) error {
	if err := decide.CheckTarget(disk, p.o.Surroundings, p.o.Elsewhere); err != nil {
		return err
	}
	if p.o.Request() == record.Accept && decide.CheckCopy(disk.CID, disk.Path, disk.Statement) != nil {
		if err := p.acceptCopy(top); err != nil {
			return err
		}
		p.tryWriteStatement(top, identity.Store{CID: disk.CID, FileSystem: disk.FileSystem})
		return nil
	}
	if of := disk.Statement.Store; disk.Statement.Err == nil && of.CID != "" && of.CID != disk.CID && !of.Incomplete {
		p.tryWriteStatement(top, identity.Store{CID: disk.CID, FileSystem: disk.FileSystem,
			Origin: identity.Origin{CID: of.CID, FileSystem: disk.FileSystem, Generation: of.Generation}})
	}
	return nil
}

// becomeStore writes the statement of a disk that becomes the store.
func (p *placing) becomeStore(top *os.File, disk decide.Disk) error {
	if text := decide.DescribeReverted(disk, p.o.Record); text != "" {
		if p.o.Directories && p.o.Request() == "" && canSeeAttributes() {
			return &decide.Refusal{Path: disk.Path, Found: "it is not the directory that was the store (" + text +
				"): its volume may not be mounted", Remedy: "Mount it, or, if this is the right one, run 'agent disk accept " +
				disk.CID + " --yes'"}
		}
		p.Machine.Log.WithFields(logrus.Fields{"cid": disk.CID, "reason": text}).
			Warn("the disk was set back to an earlier state")
	}
	chosen := decide.NextStatement(disk)
	if decide.CheckCopy(disk.CID, disk.Path, disk.Statement) != nil {
		if err := p.acceptCopy(top); err != nil {
			return err
		}
		chosen.Origin = identity.Origin{}
	}
	p.Machine.CrashPoint("choose store")
	p.statement = p.tryWriteStatement(top, chosen)
	return nil
}

// acceptCopy removes the marks of an incomplete copy that an operator has accepted.
func (p *placing) acceptCopy(top *os.File) error {
	p.Machine.Log.WithField("cid", p.o.CID).Warn("an operator has accepted an incomplete copy as it is")
	p.Machine.CrashPoint("remove accepted mark")
	err := copytree.RestrictToRoot(int(top.Fd()))
	return errors.Join(err, top.Chmod(0o755), removeMark(top))
}

// tryWriteStatement writes a disk's statement. If it fails, the disk is used nevertheless, and it returns zero.
func (p *placing) tryWriteStatement(top *os.File, s identity.Store) identity.Store {
	if err := writeStatement(top, s); err != nil {
		log := p.Machine.Log.WithError(err).WithField("cid", s.CID)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOTSUP) {
			log.Debug("the disk cannot say that it is the store")
		} else {
			log.Warn("the disk cannot say that it is the store")
		}
		return identity.Store{}
	}
	return s
}

// admitMounted checks a disk that is already mounted. If it is on the store without a valid statement, it writes one.
func (p *placing) admitMounted() (err error) {
	on := p.o.OnStoreIs
	if !p.plan.Placed.Store {
		on = decide.Disk{Path: p.o.Disk.Path, FileSystem: p.o.Found.FileSystem, Statement: p.o.Statement}
	}
	on.CID = p.o.CID
	incomplete := decide.CheckCopy(on.CID, on.Path, on.Statement) != nil
	if !p.plan.Placed.Store && !(incomplete && p.o.Request() == record.Accept) {
		return nil
	}
	if p.plan.Placed.Store {
		if err := decide.CheckMounted(on, p.o.Surroundings, p.others); err != nil {
			return err
		}
	}
	if on.Statement.CID == on.CID && on.Statement.Used() && !incomplete {
		p.statement = on.Statement.Store
		return nil
	}
	top, err := os.Open(p.plan.Directory)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	if p.plan.Placed.Store {
		return p.becomeStore(top, on)
	}
	return p.admitToTarget(top, on)
}

// pickStore returns the only known disk whose statement identifies it as the store, for a machine without a record. It
// returns "" if there is none or more than one.
func (d *Disks) pickStore(ctx context.Context, v surroundings, replay bool) (cid string, err error) {
	all := d.candidates(ctx, v, "", replay)
	var passed []string
	var refused error
	for i, disk := range all {
		if disk.Statement.CID != disk.CID || !disk.Statement.Used() || disk.Statement.Err != nil {
			continue
		}
		l := v.resolved[disk.CID]
		_, elsewhere := v.splitByHint(l.Number, l.Path)
		others := slices.Delete(slices.Clone(all), i, i+1)
		err := decide.CheckChoice(
			decide.Choice{Disk: disk, Surroundings: v.Surroundings, Identified: l.Identified, Elsewhere: elsewhere,
				Others: others},
		)
		if err != nil {
			refused = errors.Join(refused, fmt.Errorf("disk %s: %w", disk.CID, err))
			continue
		}
		passed = append(passed, disk.CID)
	}
	switch {
	case len(passed) == 1:
		return passed[0], nil
	case refused != nil:
		return "", refused
	}
	return "", nil
}
