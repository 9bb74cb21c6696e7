package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sirupsen/logrus"

	"cambium/internal/blkdev"
	"cambium/plan"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/filesystem"
	"cambium/platform/mount"
	"cambium/settings"
)

// prepare partitions and formats what is blank, completes what is ours and unfinished, grows
// what became larger, and refuses the rest. It returns what is on the partition now.
func (d *Persistent) prepare(ctx context.Context, p settings.PersistentDisk, dev device.Device) (now filesystem.Content, err error) {
	judged, err := d.judge(ctx, p, dev.Path)
	if err != nil {
		return now, err
	}
	kind := filesystem.Ext4
	if p.FileSystem != "" {
		kind = filesystem.Kind(p.FileSystem)
	}
	log := d.Log.WithFields(logrus.Fields{"disk": p.CID, "device": dev.Path, "proof": judged.proof})
	switch judged.verdict {
	case plan.Refuse:
		return now, &ForeignError{Path: dev.Path, Found: judged.proof}
	case plan.Create:
		if kind != filesystem.Ext4 && kind != filesystem.XFS {
			return now, fmt.Errorf("persistent_disk_fs %q is not supported, only ext4 and xfs", kind)
		}
		if err := d.proveIdle(dev.Path, dev.Number); err != nil {
			return now, err
		}
		log.Info("persistent disk will be partitioned and formatted")
		table, err := d.begin(p.CID, judged.label)
		if err != nil {
			return now, err
		}
		d.crashPoint("partition persistent")
		if err := disk.Create(ctx, dev.Path, judged.label, table, plan.NewPersistent(judged.state, judged.label)); err != nil {
			return now, err
		}
		d.crashPoint("announce persistent")
		if err := d.announce(ctx, dev.Path); err != nil {
			return now, err
		}
		return filesystem.Content{Kind: kind}, d.finish(ctx, p.CID, d.part(dev.Path), kind)
	}
	if err := d.repair(ctx, judged.state); err != nil {
		return now, err
	}
	if judged.verdict == plan.Format {
		log.Info("persistent disk will be formatted")
		if err := d.beginFormat(p.CID, judged.state.Table.GUID); err != nil {
			return now, err
		}
		return filesystem.Content{Kind: kind}, d.finish(ctx, p.CID, d.part(dev.Path), kind)
	}
	if judged.pending {
		if judged.content, err = d.resume(ctx, p.CID, d.part(dev.Path), judged.content, kind); err != nil {
			return now, err
		}
	}
	return judged.content, d.growPersistent(ctx, judged.state)
}

func (d *Persistent) finish(ctx context.Context, cid, part string, kind filesystem.Kind) error {
	d.crashPoint("make persistent file system")
	if err := d.makeFileSystem(ctx, part, kind); err != nil {
		return err
	}
	d.crashPoint("persistent made")
	return d.done(cid)
}

func (d *machine) makeFileSystem(ctx context.Context, part string, kind filesystem.Kind) error {
	if err := mount.AwaitIdle(ctx, part); err != nil {
		return err
	}
	return filesystem.Make(ctx, part, kind)
}

// resume deals with a file system whose making is not on record as finished. It was never
// mounted by this agent; if its superblock shows that nobody mounted it and it is not whole,
// it is made again. In any other case it is taken as it is. What is on the partition then is returned.
func (d *Persistent) resume(ctx context.Context, cid, part string, c filesystem.Content, kind filesystem.Kind) (filesystem.Content, error) {
	if err := mount.AwaitIdle(ctx, part); err != nil {
		return c, err
	}
	unfinished := c.Kind == filesystem.XFS && c.Incomplete
	if c.Kind == filesystem.Ext4 && c.NeverMounted {
		sound, err := filesystem.Sound(ctx, part)
		if err != nil {
			return c, err
		}
		unfinished = !sound
	}
	if unfinished {
		d.Log.WithField("device", part).Warn("file system was not finished before a crash and is made again")
		return filesystem.Content{Kind: kind}, d.finish(ctx, cid, part, kind)
	}
	return c, d.done(cid)
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

type judgement struct {
	verdict plan.Verdict
	proof   string
	state   disk.State
	content filesystem.Content // of the only partition
	pending bool
	label   disk.Label
}

// judge looks at a disk and changes nothing on it; the kernel may learn of partitions.
func (d *Persistent) judge(ctx context.Context, p settings.PersistentDisk, path string) (judgement, error) {
	j := judgement{label: disk.GPT}
	if p.Partitioner == "sfdisk" || p.Partitioner == "" && d.Options.PartitionerType == "sfdisk" {
		j.label = disk.MBR
	}
	var err error
	j.state, err = disk.Inspect(path)
	if errors.Is(err, disk.ErrDamaged) {
		j.verdict, j.proof = plan.Refuse, err.Error()
	} else if err != nil {
		return j, err
	} else {
		if len(j.state.Table.Partitions) == 1 {
			if err := d.announceState(ctx, j.state); err != nil {
				return j, err
			}
			if j.content, err = filesystem.Probe(device.Partition(path, j.state.Table.Partitions[0].Number)); err != nil {
				return j, err
			}
		}
		if j.pending, err = d.pending(p.CID, j.state.Table); err != nil {
			return j, err
		}
		if j.verdict, j.proof, err = plan.Persistent(j.state, j.content, func() (filesystem.Content, error) { return usualPlaces(path) }, j.pending); err != nil {
			return j, err
		}
	}
	if j.verdict == plan.Refuse && d.Foreign() == "format" {
		j.verdict, j.proof = plan.Create, j.proof+"; formatting foreign disks is allowed"
	}
	if j.verdict == plan.Create && j.label == disk.MBR && j.state.Bytes > disk.MBRLimit {
		return j, fmt.Errorf("%s is larger than 2 TiB, which a DOS partition table cannot address: "+
			"set env.persistent_disk_partitioner to parted", path)
	}
	return j, nil
}

// usualPlaces looks where partitions of all ages begin: sector 1, sector 63, 1 MiB.
func usualPlaces(path string) (filesystem.Content, error) {
	f, err := os.Open(path)
	if err != nil {
		return filesystem.Content{}, err
	}
	defer f.Close()
	size, err := blkdev.Size(f)
	if err != nil {
		return filesystem.Content{}, err
	}
	for _, start := range []int64{512, 63 * 512, disk.MiB} {
		if start >= size {
			continue
		}
		c, err := filesystem.Identify(io.NewSectionReader(f, start, size-start), size-start)
		if err != nil {
			return c, err
		}
		// Seen from a little later, the table itself looks like content.
		if c.Data() || !c.Blank() && start == disk.MiB && c.Kind != filesystem.GPT {
			return c, nil
		}
	}
	return filesystem.Content{Kind: filesystem.Blank}, nil
}
