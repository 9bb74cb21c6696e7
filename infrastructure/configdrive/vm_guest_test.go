//go:build vm

package configdrive

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/infrastructure/internal/source"
	"cambium/lab/testvm"
)

// TestMain is the first process of the virtual machine as well.
func TestMain(m *testing.M) { testvm.Main(m, guestChecks, nil) }

// trayOpen asks the drive without touching it.
func trayOpen() (bool, error) {
	drive, err := os.OpenFile(defaultCD, os.O_RDONLY|unix.O_NONBLOCK, 0)
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
	{Name: "a label that no medium has is final", Run: func(ctx context.Context) error {
		s := New(Options{DiskPaths: []string{byLabel + "none"}, UserDataPath: "x", Log: quiet()})
		if _, err := s.Settings(ctx); source.KindOf(err) != source.Definite {
			return fmt.Errorf("error %v, want a final one", err)
		}
		return nil
	}},
	{Name: "ext4 and udf media are mounted, and read", Run: func(ctx context.Context) error {
		for _, kind := range []string{"ext4", "udf"} {
			device, err := bySerial(kind)
			if err != nil {
				return err
			}
			answer, err := New(Options{DiskPaths: []string{device}, UserDataPath: "env", Log: quiet()}).Settings(ctx)
			if err != nil || string(answer.Raw.Reveal()) != files["env"] {
				return fmt.Errorf("%s: %w", kind, err)
			}
			if err := openExclusively(device); err != nil {
				return fmt.Errorf("%s is still mounted: %w", kind, err)
			}
		}
		return nil
	}},
	{Name: "the mount is in no namespace, read-only, without devices and programs, and ends with its descriptor", Run: detachedMount},
	{Name: "xfs, btrfs and squashfs media are not mounted", Run: func(ctx context.Context) error {
		for kind, options := range map[string]string{"xfs": "norecovery", "btrfs": "", "squashfs": ""} {
			device, err := bySerial(kind)
			if err != nil {
				return err
			}
			_, err = New(Options{DiskPaths: []string{device}, UserDataPath: "env", Log: quiet()}).Settings(ctx)
			if source.KindOf(err) != source.Definite || !errors.Is(err, errNotMountable) {
				return fmt.Errorf("%s: error %w, want a final one that names the file systems", kind, err)
			}
			// The kernel could have: it has the driver, and the medium has the file.
			if err := os.MkdirAll("/tmp/"+kind, 0o700); err != nil {
				return err
			}
			if err := unix.Mount(device, "/tmp/"+kind, kind, unix.MS_RDONLY, options); err != nil {
				return fmt.Errorf("%s: mount by hand: %w", kind, err)
			}
			if _, err := os.Stat("/tmp/" + kind + "/env"); err != nil {
				return err
			}
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

func detachedMount(ctx context.Context) error {
	device, err := bySerial("ext4")
	if err != nil {
		return err
	}
	before, err := mountTables()
	if err != nil {
		return err
	}
	root, err := mountDetached(ctx, device)
	if err != nil {
		return err
	}
	defer root.Close()
	if during, err := mountTables(); err != nil || during != before {
		return fmt.Errorf("the mount is visible: %v\n%s", err, during)
	}
	if err := openExclusively(device); !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("exclusive open of a mounted device: %v, want EBUSY", err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(root.Fd()), &fs); err != nil {
		return err
	}
	const wanted = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC
	if fs.Flags&wanted != wanted {
		return fmt.Errorf("flags %#x, want %#x among them", fs.Flags, wanted)
	}
	base := fmt.Sprintf("/proc/self/fd/%d/", root.Fd())
	if err := os.WriteFile(base+"env", nil, 0o600); !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("writing: %v, want EROFS", err)
	}
	if _, err := os.ReadFile(base + "zero"); !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("a device node: %v, want EACCES", err)
	}
	if info, err := os.Stat(base + "program"); err != nil || info.Mode()&os.ModeSetuid == 0 {
		return fmt.Errorf("no setuid program on the medium: %v", err)
	}
	if err := unix.Exec(base+"program", []string{"program"}, nil); !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("a setuid program: %v, want EACCES", err)
	}
	if err := root.Close(); err != nil {
		return err
	}
	return openExclusively(device)
}

// mountTables are the mounts that any thread of the process sees.
func mountTables() (string, error) {
	threads, err := filepath.Glob("/proc/self/task/*/mountinfo")
	if err != nil || len(threads) == 0 {
		return "", fmt.Errorf("no threads: %w", err)
	}
	seen := map[string]bool{}
	for _, path := range threads {
		if table, err := os.ReadFile(path); err == nil { // threads end
			seen[string(table)] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(seen)), "\n"), nil
}

// openExclusively fails with EBUSY as long as something is mounted from the device.
func openExclusively(device string) error {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func bySerial(serial string) (string, error) {
	disks, err := filepath.Glob("/sys/block/*/serial")
	if err != nil {
		return "", err
	}
	for _, path := range disks {
		if have, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(have)) == serial {
			return "/dev/" + filepath.Base(filepath.Dir(path)), nil
		}
	}
	return "", fmt.Errorf("no disk %s", serial)
}
