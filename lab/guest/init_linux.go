package guest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"cambium/lab/initrd"

	"golang.org/x/sys/unix"
)

// Names shared by the initial RAM disk, the kernel's command line and the lab.
const (
	// RootName is the name of the partition with the root file system.
	RootName = "cambium-root"
	// FilesDir is the directory of files that are copied to the root file system before its first program runs.
	FilesDir = "files"
	// ProbeWord on the kernel's command line makes Init print ProbeAnswer and power off.
	ProbeWord   = "cambium.probe"
	ProbeAnswer = "cambium: virtualisation works"
)

// rootTimeout bounds the wait for the root disk to appear.
const rootTimeout = 2 * time.Minute

// Init runs as the first program of a machine. It loads the drivers of the root disk, mounts it, copies the lab's files
// to it, and executes the system's init. It returns only with an error.
func Init() error {
	for _, m := range [][2]string{{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}} {
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	if strings.Contains(string(line), ProbeWord) {
		fmt.Println(ProbeAnswer)
		return unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	device, err := rootDevice(string(line))
	if err != nil {
		return err
	}
	if err := unix.Mount(device, "/root", "ext4", 0, ""); err != nil {
		return fmt.Errorf("mount %s: %w", device, err)
	}
	files, err := os.OpenRoot("/" + FilesDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := switchRoot(); err != nil {
		return err
	}
	if files != nil {
		if err := putFiles(files); err != nil {
			return fmt.Errorf("files of the lab: %w", err)
		}
	}
	return unix.Exec("/sbin/init", []string{"/sbin/init"},
		[]string{"HOME=/", "TERM=linux", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"})
}

// LoadModules loads the modules in dir in an order in which each finds those that it needs. Drivers of other
// hypervisors fail to load, so it ends with the first round that loads none.
func LoadModules(dir string) error {
	waiting, err := filepath.Glob(filepath.Join(dir, "*.ko"))
	for progress := true; progress && len(waiting) > 0; {
		var left []string
		err, progress = nil, false
		for _, path := range waiting {
			if loadErr := loadModule(path); loadErr != nil {
				left, err = append(left, path), errors.Join(err, loadErr)
			} else {
				progress = true
			}
		}
		waiting = left
	}
	return err
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("module %s: %w", filepath.Base(path), err)
	}
	return nil
}

// rootDevice loads the drivers of the root disk and returns its partition, which it finds by the UUID on the kernel's
// command line or, without one, by name. The partition may appear late.
func rootDevice(commandLine string) (string, error) {
	uuid := rootUUID(commandLine)
	moduleErr := LoadModules("/" + initrd.ModuleDir)
	if device, err := lookForRoot(uuid); device != "" || err != nil {
		return device, err
	}
	// Drivers of hypervisors that this machine does not run on refuse to load.
	moduleErr = errors.Join(moduleErr, LoadModules("/"+initrd.FallbackModuleDir))
	for end := time.Now().Add(rootTimeout); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if device, err := lookForRoot(uuid); device != "" || err != nil {
			return device, err
		}
	}
	if uuid != "" {
		return "", errors.Join(fmt.Errorf("no disk has the root file system %s", uuid), moduleErr)
	}
	return "", errors.Join(fmt.Errorf("no partition is named %s", RootName), moduleErr)
}

// lookForRoot returns the partition with the root file system, or "".
func lookForRoot(uuid string) (string, error) {
	paths, err := filepath.Glob("/sys/class/block/*/uevent")
	if err != nil {
		return "", err
	}
	for _, path := range paths {
		device := "/dev/" + filepath.Base(filepath.Dir(path))
		if uuid != "" && ext4UUID(device) == uuid || uuid == "" && partitionName(path) == RootName {
			return device, nil
		}
	}
	return "", nil
}

func rootUUID(commandLine string) string {
	for word := range strings.FieldsSeq(commandLine) {
		if uuid, ok := strings.CutPrefix(word, "root=UUID="); ok {
			return uuid
		}
	}
	return ""
}

// Offsets of an ext4 superblock, its magic number and its UUID.
const (
	superblock  = 1024
	magicOffset = 0x38
	uuidOffset  = 0x68
)

// ext4UUID returns the UUID of the ext4 on a device, or "".
func ext4UUID(device string) string {
	f, err := os.Open(device)
	if err != nil {
		return "" // just gone, or a drive without a medium
	}
	defer func() { _ = f.Close() }()
	block := make([]byte, 512)
	if _, err := f.ReadAt(block, superblock); err != nil || block[magicOffset] != 0x53 || block[magicOffset+1] != 0xef {
		return ""
	}
	id := block[uuidOffset : uuidOffset+16]
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:16])
}

func partitionName(uevent string) string {
	f, err := os.Open(uevent)
	if err != nil {
		return "" // just gone
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "PARTNAME="); ok {
			return name
		}
	}
	return ""
}

// switchRoot makes /root the root directory. The RAM disk stays in memory, a few megabytes.
func switchRoot() error {
	for _, dir := range []string{"/dev", "/proc", "/sys"} {
		if err := unix.Mount(dir, "/root"+dir, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", dir, err)
		}
	}
	return errors.Join(os.Chdir("/root"), unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."), os.Chdir("/"))
}

// putFiles copies the lab's files to the root file system and syncs them, because a power cut must not restore an older
// state than the lab has delivered.
func putFiles(from *os.Root) error {
	err := fs.WalkDir(from.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		f, err := from.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		return putFile("/"+path, f, info.Mode().Perm())
	})
	unix.Sync()
	return err
}

// putFile writes all of a file, or nothing.
func putFile(path string, content io.Reader, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temporary := path + ".lab-new"
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return os.Rename(temporary, path)
}
