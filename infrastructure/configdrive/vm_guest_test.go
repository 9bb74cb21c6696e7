//go:build vm

package configdrive

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/infrastructure/internal/source"
	"cambium/lab/testvm"
)

// TestMain is also the first process of the virtual machine.
func TestMain(m *testing.M) { testvm.Main(m, guestChecks, nil) }

// trayOpen reports whether the tray is open, without changing that.
func trayOpen() (bool, error) {
	drive, err := os.OpenFile(defaultCD, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, err
	}
	defer drive.Close()
	status, err := unix.IoctlRetInt(int(drive.Fd()), cdromDriveStatus)
	return status == driveTrayOpen, err
}

// settingsWithin calls a source as often as the agent would.
func settingsWithin(ctx context.Context, s interface {
	Settings(context.Context) (source.Answer, error)
}) (source.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		answer, err := s.Settings(ctx)
		if err == nil || source.KindOf(err) == source.Definite || ctx.Err() != nil {
			return answer, err
		}
		time.Sleep(200 * time.Millisecond)
	}
}

var guestCD = NewCD(CDOptions{FileName: "env", Log: quiet()})

var guestChecks = []testvm.Check{
	{Name: "a CD is read, and stays in the drive until its content is safe", Run: func(ctx context.Context) error {
		for range 2 {
			answer, err := settingsWithin(ctx, guestCD)
			if err != nil {
				return err
			}
			if string(answer.Raw.Reveal()) != files["env"] {
				return fmt.Errorf("got %s", answer.Raw.Reveal())
			}
		}
		if open, err := trayOpen(); open || err != nil {
			return fmt.Errorf("tray open: %v, %v", open, err)
		}
		return nil
	}},
	{Name: "it is ejected when told to", Run: func(ctx context.Context) error {
		answer, err := settingsWithin(ctx, guestCD)
		if err != nil {
			return err
		}
		if err := answer.Clear(ctx); err != nil {
			return err
		}
		if open, err := trayOpen(); !open || err != nil {
			return fmt.Errorf("tray open: %v, %v", open, err)
		}
		return nil
	}},
	{Name: "an open tray is final and is not pulled in", Run: func(ctx context.Context) error {
		if _, err := settingsWithin(ctx, guestCD); !errors.Is(err, errAbsent) {
			return fmt.Errorf("error %v, want no medium", err)
		}
		if open, err := trayOpen(); !open || err != nil {
			return fmt.Errorf("tray open: %v, %v", open, err)
		}
		return nil
	}},
	{Name: "a drive is found by its label without udev", Run: func(ctx context.Context) error {
		s := New(Options{DiskPaths: []string{byLabel + "CONFIG-2"}, UserDataPath: "ec2/latest/user-data",
			MetaDataPath: "ec2/latest/meta-data.json", Log: quiet()})
		answer, err := settingsWithin(ctx, s)
		if err != nil {
			return err
		}
		if string(answer.Raw.Reveal()) != files["ec2/latest/user-data"] {
			return fmt.Errorf("got %s", answer.Raw.Reveal())
		}
		if key, err := s.PublicKey(ctx); key != "ssh-rsa A" || err != nil {
			return fmt.Errorf("key %q, %v", key, err)
		}
		return nil
	}},
	{Name: "a label that no medium has is final", Run: func(ctx context.Context) error {
		s := New(Options{DiskPaths: []string{byLabel + "none"}, UserDataPath: "x", Log: quiet()})
		if _, err := s.Settings(ctx); source.KindOf(err) != source.Definite {
			return fmt.Errorf("error %v, want a final one", err)
		}
		return nil
	}},
	{Name: "a drive that comes while it is waited for is used", Run: func(ctx context.Context) error {
		s := New(Options{DiskPaths: []string{byLabel + "late"}, UserDataPath: "ec2/latest/user-data", Log: quiet()})
		// A udev that is busy keeps the source waiting, however slow the host is.
		if err := os.MkdirAll("/run/udev", 0o755); err != nil {
			return err
		}
		if err := os.WriteFile("/run/udev/queue", nil, 0o600); err != nil {
			return err
		}
		testvm.Ask("late")
		_, err := s.Settings(ctx)
		return err
	}},
}
