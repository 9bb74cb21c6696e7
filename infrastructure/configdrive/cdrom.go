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

// defaultCD is the drive of every stemcell that has one.
const defaultCD = "/dev/sr0"

// Requests of linux/cdrom.h.
const (
	cdromEject       = 0x5309
	cdromDriveStatus = 0x5326
	cdromLockDoor    = 0x5329
)

// Answers to cdromDriveStatus.
const (
	driveNoDisc   = 1
	driveTrayOpen = 2
	driveNotReady = 3
)

// ready asks a CD drive whether there is a disc to read; other devices do not support the ioctl. It
// comes before the real open, which would close the tray again.
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

// CDOptions are those of agent.json, and where the machine's own files are.
type CDOptions struct {
	FileName string
	Device   string // defaultCD if empty

	Root string
	Log  *logrus.Entry
}

// CD reads a file from a CD and ejects it once its content is cached.
type CD struct {
	o      CDOptions
	finder finder
}

// NewCD returns the source; it touches nothing.
func NewCD(o CDOptions) *CD {
	if o.Device == "" {
		o.Device = defaultCD
	}
	return &CD{o: o, finder: newFinder(o.Root, o.Log)}
}

// Name says what is asked.
func (c *CD) Name() string { return "CDROM " + c.o.Device + ":" + c.o.FileName }

// Settings reads the file. An empty drive is final once devices have been enumerated: after
// the first boot it is the normal state.
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

// PublicKey is always empty: a CD carries settings only.
func (c *CD) PublicKey(context.Context) (string, error) { return "", nil }

// eject opens the tray, so that the next start finds the drive empty at once and the CPI may
// take the medium away.
func (c *CD) eject(context.Context) error {
	drive, err := os.OpenFile(c.finder.system(c.o.Device), os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("eject: %w", err)
	}
	defer drive.Close()
	// A failure to unlock the door is ignored; the eject itself then fails.
	_ = unix.IoctlSetInt(int(drive.Fd()), cdromLockDoor, 0)
	if err := unix.IoctlSetInt(int(drive.Fd()), cdromEject, 0); err != nil {
		return fmt.Errorf("eject %s: %w", c.o.Device, err)
	}
	return nil
}
