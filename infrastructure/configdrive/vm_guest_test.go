//go:build vm

package configdrive

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/infrastructure/internal/source"
)

// TestMain is the first process of the virtual machine as well.
func TestMain(m *testing.M) {
	if os.Getpid() == 1 {
		guestMain()
	}
	os.Exit(m.Run())
}

func guestMain() {
	for _, mount := range [][2]string{{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}, {"tmpfs", "/tmp"}} {
		if err := unix.Mount(mount[0], mount[1], mount[0], 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			fmt.Println("GUEST-FAIL mount", mount, err)
		}
	}
	loadModules()
	for _, check := range guestChecks {
		if err := check.run(context.Background()); err != nil {
			fmt.Printf("GUEST-FAIL %s: %v\n", check.name, err)
		} else {
			fmt.Printf("GUEST-PASS %s\n", check.name)
		}
	}
	fmt.Println("GUEST-END")
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // with -no-reboot this ends the machine
}

// loadModules tries again what failed for want of another one.
func loadModules() {
	for range guestModules {
		for _, name := range guestModules {
			f, err := os.Open(filepath.Join("/modules", name+".ko"))
			if err != nil {
				continue // built in
			}
			_ = unix.FinitModule(int(f.Fd()), "", 0)
			f.Close()
		}
	}
}

// trayOpen asks the drive without touching it.
func trayOpen() (bool, error) {
	drive, err := os.OpenFile(DefaultCD, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false, err
	}
	defer drive.Close()
	status, err := unix.IoctlRetInt(int(drive.Fd()), cdromDriveStatus)
	return status == driveTrayOpen, err
}

// settingsWithin asks a source as often as the agent would.
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

var guestChecks = []struct {
	name string
	run  func(context.Context) error
}{
	{"a CD is read, and stays in the drive until its content is safe", func(ctx context.Context) error {
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
	{"it is ejected when told to", func(ctx context.Context) error {
		answer, err := settingsWithin(ctx, guestCD)
		if err != nil {
			return err
		}
		if err := answer.Settled(ctx); err != nil {
			return err
		}
		if open, err := trayOpen(); !open || err != nil {
			return fmt.Errorf("tray open: %v, %v", open, err)
		}
		return nil
	}},
	{"an open tray is final and is not pulled in", func(ctx context.Context) error {
		if _, err := settingsWithin(ctx, guestCD); !errors.Is(err, errAbsent) {
			return fmt.Errorf("error %v, want no medium", err)
		}
		if open, err := trayOpen(); !open || err != nil {
			return fmt.Errorf("tray open: %v, %v", open, err)
		}
		return nil
	}},
	{"a drive is found by its label without udev", func(ctx context.Context) error {
		s := New(Options{DiskPaths: []string{byLabel + "CONFIG-2"}, UserDataPath: "ec2/latest/user-data", MetaDataPath: "ec2/latest/meta-data.json", Log: quiet()})
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
	{"a label that nobody has is final", func(ctx context.Context) error {
		s := New(Options{DiskPaths: []string{byLabel + "nobody"}, UserDataPath: "x", Log: quiet()})
		if _, err := s.Settings(ctx); source.KindOf(err) != source.Definite {
			return fmt.Errorf("error %v, want a final one", err)
		}
		return nil
	}},
	{"a drive that comes while it is waited for is used", func(ctx context.Context) error {
		s := New(Options{DiskPaths: []string{byLabel + "late"}, UserDataPath: "ec2/latest/user-data", Log: quiet()})
		// A udev that is busy keeps the source waiting, however slow the host is.
		if err := os.MkdirAll("/run/udev", 0o755); err != nil {
			return err
		}
		if err := os.WriteFile("/run/udev/queue", nil, 0o600); err != nil {
			return err
		}
		fmt.Println("GUEST-PLUG")
		_, err := s.Settings(ctx)
		return err
	}},
}
