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

// lookLimit bounds the wait for the statement of another disk.
const lookLimit = 10 * time.Second

// candidates are the other disks with a file system that could be the store beside cid, whose device is not one. With
// replay set, their journals are replayed; otherwise one whose journal is used says nothing.
func (d *Disks) candidates(ctx context.Context, v surroundings, cid string, replay bool) (others []decide.Disk) {
	seen := d.ofJobs(v)
	own := v.resolved[cid]
	for _, other := range v.Known {
		l := v.resolved[other]
		if other == cid || l.err != nil || l.Path == own.Path || !d.BindMounted && (l.Number == own.Number || seen[l.Number]) ||
			slices.Contains(d.named(), other) {
			continue
		}
		seen[l.Number] = true
		if found, ok := d.lookInTime(ctx, v, other, l.Device, replay); ok {
			others = append(others, found)
		}
	}
	return others
}

// named are the disks that jobs know by names of their own: none of them is the store.
func (d *Disks) named() []string {
	if d.Associated == nil {
		return nil
	}
	return d.Associated()
}

// ofJobs are the devices of these disks and of dynamic ones, to which the leftover hint of another disk may lead.
func (d *Disks) ofJobs(v surroundings) map[blkdev.Number]bool {
	numbers := map[blkdev.Number]bool{}
	for _, cid := range d.named() {
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

// lookInTime looks at a candidate. One that cannot be looked at says nothing; one that hangs is left alone, and
// unmounted whenever it answers.
func (d *Disks) lookInTime(ctx context.Context, v surroundings, cid string, dev device.Device, replay bool) (decide.Disk, bool) {
	type answer struct {
		disk decide.Disk
		err  error
	}
	answers := make(chan answer, 1)
	limited, cancel := context.WithTimeout(ctx, lookLimit)
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

// readIdentity reads what another disk says; without a CID if it has no file system.
func (d *Disks) readIdentity(ctx context.Context, v surroundings, cid string, dev device.Device, replay bool) (found decide.Disk, err error) {
	found = decide.Disk{CID: cid, Path: dev.Path}
	if d.BindMounted {
		if !dev.Directory {
			return decide.Disk{}, nil
		}
		if found.Said, err = saidAt(dev.Path, ""); found.Said.CID == "" && found.Said.Strange == nil {
			found.CID = "" // nothing shows that it is more than a directory
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
		found.Said, err = saidAt(at, c.UUID)
		return found, err
	}
	if used, err := filesystem.Journal(part, c.Kind); !replay && (err != nil || used) {
		return decide.Disk{}, err
	}
	found.Said, err = lookInto(part, c, replay)
	if replay && err == nil {
		err = mount.AwaitIdle(ctx, part) // the kernel lets go of a mount a little after its descriptor is closed
	}
	return found, err
}

// lookInto reads what an unmounted file system says.
func lookInto(part string, c probe.Content, replay bool) (s decide.Said, err error) {
	into := filesystem.Look
	if replay {
		into = filesystem.Replay
	}
	err = into(part, c.Kind, func(root *os.Root) error {
		top, err := root.Open(".")
		if err != nil {
			return err
		}
		defer top.Close()
		s, err = said(top, c.UUID)
		return err
	})
	return s, err
}

// lookWithoutReplay reads what an unmounted disk says, and reports that this is unknown until its journal is replayed.
func (d *Disks) lookWithoutReplay(part string) (s decide.Said, unknown bool) {
	c, err := filesystem.Probe(part)
	if err != nil || !c.Kind.Managed() {
		return s, false
	}
	if used, err := filesystem.Journal(part, c.Kind); err != nil || used {
		return s, true
	}
	s, err = lookInto(part, c, false)
	return s, err != nil
}

// placing is a disk on its way to the directory where it is mounted.
type placing struct {
	*Disks
	o      decide.Observed
	plan   decide.Plan
	others []decide.Disk
	// identified is set if the hint finds the disk by an identifier.
	identified bool
	// says is the disk's statement about itself from now on; zero if it cannot hold one.
	says identity.Store
}

// choose refuses a disk that must not become the store.
func (p *placing) choose(disk decide.Disk) error {
	return decide.Choose(decide.Choice{Disk: disk, Surroundings: p.o.Surroundings, New: p.plan.Formats(), Identified: p.identified,
		Elsewhere: p.o.Elsewhere, Others: p.others})
}

// admit decides about a disk by what it says, when it is mounted but at no path yet, and has it say that it is the
// store. That is flushed before a job can write.
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
	if disk.Said, err = said(top, disk.FileSystem); err != nil {
		return err
	}
	if !p.plan.Placed.Store {
		return p.admitToTarget(top, disk)
	}
	if err := p.choose(disk); err != nil {
		return err
	}
	return p.become(top, disk)
}

// admitToTarget has a clone of the store say that it is one.
func (p *placing) admitToTarget(top *os.File, disk decide.Disk) error {
	if err := decide.CheckTarget(disk, p.o.Surroundings, p.o.Elsewhere); err != nil {
		return err
	}
	if p.o.Request() == record.Accept && decide.CheckCopy(disk.CID, disk.Path, disk.Said) != nil {
		if err := p.acceptCopy(top); err != nil {
			return err
		}
		p.try(top, identity.Store{CID: disk.CID, FileSystem: disk.FileSystem})
		return nil
	}
	if of := disk.Said.Store; disk.Said.Strange == nil && of.CID != "" && of.CID != disk.CID && !of.Incomplete {
		p.try(top, identity.Store{CID: disk.CID, FileSystem: disk.FileSystem,
			Origin: identity.Origin{CID: of.CID, FileSystem: disk.FileSystem, Generation: of.Generation}})
	}
	return nil
}

// become has a disk say that it is the store.
func (p *placing) become(top *os.File, disk decide.Disk) error {
	if text := decide.Reverted(disk, p.o.Surroundings.Record); text != "" {
		if p.o.Directories && p.o.Request() == "" && attributesShown() {
			return &decide.Refusal{Path: disk.Path, Found: "it is not the directory that was the store (" + text +
				"): its volume may not be mounted", Remedy: "Mount it, or, if this is the right one, run 'agent disk accept " +
				disk.CID + " --yes'"}
		}
		p.Machine.Log.WithFields(logrus.Fields{"cid": disk.CID, "reason": text}).
			Warn("the disk was set back to an earlier state")
	}
	chosen := decide.Chosen(disk)
	if decide.CheckCopy(disk.CID, disk.Path, disk.Said) != nil {
		if err := p.acceptCopy(top); err != nil {
			return err
		}
		chosen.Origin = identity.Origin{}
	}
	p.Machine.CrashPoint("choose store")
	p.says = p.try(top, chosen)
	return nil
}

// acceptCopy makes an incomplete copy a disk like any other.
func (p *placing) acceptCopy(top *os.File) error {
	p.Machine.Log.WithField("cid", p.o.CID).Warn("an operator has accepted an incomplete copy as it is")
	p.Machine.CrashPoint("remove accepted mark")
	err := copytree.TakeOver(int(top.Fd()))
	return errors.Join(err, top.Chmod(0o755), removeMark(top))
}

// try writes what a disk says. That it cannot be written is not a reason to keep a disk away.
func (p *placing) try(top *os.File, s identity.Store) identity.Store {
	if err := say(top, s); err != nil {
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

// stay decides about a disk that is mounted already, and has the one on the store say so.
func (p *placing) stay() (err error) {
	on := p.o.OnStoreIs
	if !p.plan.Placed.Store {
		on = decide.Disk{Path: p.o.Disk.Path, FileSystem: p.o.Found.FileSystem, Said: p.o.Said}
	}
	on.CID = p.o.CID
	incomplete := decide.CheckCopy(on.CID, on.Path, on.Said) != nil
	if !p.plan.Placed.Store && !(incomplete && p.o.Request() == record.Accept) {
		return nil
	}
	if p.plan.Placed.Store {
		if err := decide.CheckMounted(on, p.o.Surroundings, p.others); err != nil {
			return err
		}
	}
	if on.Said.CID == on.CID && on.Said.Used() && !incomplete {
		p.says = on.Said.Store
		return nil
	}
	top, err := os.Open(p.plan.Directory)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, top.Close()) }()
	if p.plan.Placed.Store {
		return p.become(top, on)
	}
	return p.admitToTarget(top, on)
}

// pick returns the only disk that says that it is the store. It is for a machine without a record.
func (d *Disks) pick(ctx context.Context, v surroundings, replay bool) (cid string, err error) {
	all := d.candidates(ctx, v, "", replay)
	var passed []string
	var refused error
	for i, disk := range all {
		if disk.Said.CID != disk.CID || !disk.Said.Used() || disk.Said.Strange != nil {
			continue
		}
		l := v.resolved[disk.CID]
		_, elsewhere := v.at(l.Number, l.Path)
		others := slices.Delete(slices.Clone(all), i, i+1)
		err := decide.Choose(decide.Choice{Disk: disk, Surroundings: v.Surroundings, Identified: l.Identified, Elsewhere: elsewhere,
			Others: others})
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
