package configdrive

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/infrastructure/internal/source"
	"cambium/internal/secret"
)

// defaultCD is the CD drive of VMs that have one.
const defaultCD = "/dev/sr0"

// Requests of linux/cdrom.h.
const (
	cdromEject       = 0x5309
	cdromDriveStatus = 0x5326
	cdromLockDoor    = 0x5329
)

// Results of cdromDriveStatus.
const (
	driveNoDisc   = 1
	driveTrayOpen = 2
	driveNotReady = 3
)

// ready returns an error if a CD drive has no readable disc. Other devices do not support the ioctl. It is called
// before the device is opened for reading, which would close the tray.
func (d *device) ready() error {
	status, err := unix.IoctlRetInt(int(d.Fd()), cdromDriveStatus)
	if err != nil {
		return nil
	}
	switch status {
	case driveNoDisc, driveTrayOpen:
		return source.Final(errAbsent)
	case driveNotReady:
		return errors.New("the drive is not ready")
	}
	return nil
}

// CDOptions holds the options of agent.json, and settings for tests.
type CDOptions struct {
	FileName string
	Device   string // defaultCD if empty

	Root string
	Log  *logrus.Entry
}

// CD reads the settings from a file on a CD, and ejects the CD once they are cached.
type CD struct {
	o      CDOptions
	finder finder
}

// NewCD returns a CDROM source without opening the drive.
func NewCD(o CDOptions) *CD {
	if o.Device == "" {
		o.Device = defaultCD
	}
	return &CD{o: o, finder: newFinder(o.Root, o.Log)}
}

// Name returns the type, the drive and the file.
func (c *CD) Name() string { return "CDROM " + c.o.Device + ":" + c.o.FileName }

// Settings reads the file. An empty drive is a final error once devices have been enumerated: it is normal after the
// first boot.
func (c *CD) Settings(ctx context.Context) (source.Answer, error) {
	if c.o.FileName == "" {
		return source.Answer{}, source.Final(errors.New("FileName is empty"))
	}
	var file found
	err := c.finder.untilSettled(ctx, func(ctx context.Context) (err error) {
		file, err = c.finder.readFrom(ctx, c.o.Device, []string{c.o.FileName})
		return err
	})
	if errors.Is(err, errAbsent) {
		return source.Answer{}, source.Spent(err)
	}
	if err != nil {
		return source.Answer{}, err
	}
	document, err := source.Decode(file.body)
	if err != nil {
		return source.Answer{}, source.NotYet(fmt.Errorf("%s:%s: %w", c.o.Device, c.o.FileName, err))
	}
	return source.Answer{Raw: secret.NewJSON(document), From: c.Name(), Clear: c.eject}, nil
}

// PublicKey returns "": a CD contains settings only.
func (c *CD) PublicKey(context.Context) (string, error) { return "", nil }

// eject opens the tray, so that the next start finds the drive empty at once and the CPI can remove the medium.
func (c *CD) eject(context.Context) error {
	drive, err := os.OpenFile(c.finder.system(c.o.Device), os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("eject: %w", err)
	}
	defer drive.Close()
	// If the door cannot be unlocked, the eject fails.
	_ = unix.IoctlSetInt(int(drive.Fd()), cdromLockDoor, 0)
	if err := unix.IoctlSetInt(int(drive.Fd()), cdromEject, 0); err != nil {
		return fmt.Errorf("eject %s: %w", c.o.Device, err)
	}
	return nil
}
