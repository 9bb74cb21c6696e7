package nspawn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"cambium/lab/disk"
	"cambium/lab/machine"

	"golang.org/x/sys/unix"
)

// attached is a disk behind its loop device.
type attached struct {
	disk machine.Disk
	loop disk.Loop
}

// as is the name in the machine of a device that the host calls name: the disk itself or one of
// its partitions.
func (a *attached) as(name string) string {
	if a.disk.Node == "" {
		return name
	}
	return a.disk.Node + strings.TrimPrefix(strings.TrimPrefix(name, a.loop.Name), "p")
}

// diskGroup owns block devices, as on every Debian.
const diskGroup = 6

// appear makes the nodes of the disk in the machine's /dev. Its own tmpfs is reached through
// the file system of the machine's init; the host's /dev is never shown in there.
func (a *attached) appear(leader int) error {
	dev := fmt.Sprintf("/proc/%d/root/dev", leader)
	if err := node(filepath.Join(dev, a.as(a.loop.Name)), a.loop.Major, a.loop.Minor); err != nil {
		return err
	}
	for _, name := range a.loop.Partitions() {
		number, err := os.ReadFile("/sys/class/block/" + name + "/dev")
		if err != nil {
			continue // just gone
		}
		major, minor, _ := strings.Cut(strings.TrimSpace(string(number)), ":")
		x, err1 := strconv.ParseUint(major, 10, 32)
		y, err2 := strconv.ParseUint(minor, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if err := node(filepath.Join(dev, a.as(name)), uint32(x), uint32(y)); err != nil {
			return err
		}
	}
	for _, name := range a.disk.Names {
		link := filepath.Join(dev, name)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			return err
		}
		// Relative, as udev makes them: the machine's own /dev, not the host's.
		target := strings.Repeat("../", strings.Count(name, "/")) + a.as(a.loop.Name)
		if err := os.Symlink(target, link); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

func (a *attached) vanish(leader int) {
	dev := fmt.Sprintf("/proc/%d/root/dev", leader)
	for _, name := range append([]string{a.loop.Name}, a.loop.Partitions()...) {
		_ = os.Remove(filepath.Join(dev, a.as(name)))
	}
	for _, name := range a.disk.Names {
		_ = os.Remove(filepath.Join(dev, name))
	}
}

func node(path string, major, minor uint32) error {
	err := unix.Mknod(path, unix.S_IFBLK|0o660, int(unix.Mkdev(major, minor)))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("node %s: %w", path, err)
	}
	if err := os.Chown(path, 0, diskGroup); err != nil {
		return err
	}
	return os.Chmod(path, 0o660)
}

// device follows the kernel: partitions of the machine's disks appear in it and go from it.
func (m *Machine) device(e disk.Event) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.Current == nil {
		return
	}
	for _, a := range m.disks {
		if !strings.HasPrefix(e.Name, a.loop.Name+"p") {
			continue
		}
		path := fmt.Sprintf("/proc/%d/root/dev/%s", m.Current.leader, a.as(e.Name))
		if e.Action == "remove" {
			_ = os.Remove(path)
		} else {
			_ = node(path, e.Major, e.Minor)
		}
	}
}

// Attach gives the machine a disk.
func (m *Machine) Attach(_ context.Context, d machine.Disk) (machine.Attachment, error) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if _, exists := m.disks[d.ID]; exists {
		return machine.Attachment{}, fmt.Errorf("attach disk %s: %w", d.ID, os.ErrExist)
	}
	loop, err := disk.Attach(d.Image, d.ReadOnly)
	if err != nil {
		return machine.Attachment{}, err
	}
	a := &attached{disk: d, loop: loop}
	if m.Current != nil {
		if err := a.appear(m.Current.leader); err != nil {
			return machine.Attachment{}, errors.Join(err, loop.Detach())
		}
	}
	m.disks[d.ID] = a
	return a.attachment(), nil
}

func (a *attached) attachment() machine.Attachment {
	return machine.Attachment{Disk: a.disk, Path: "/dev/" + a.as(a.loop.Name)}
}

// Detach takes a disk away. One that is in use stays: the IaaS would refuse too.
func (m *Machine) Detach(_ context.Context, id string) error {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	a, ok := m.disks[id]
	if !ok {
		return fmt.Errorf("detach disk %s: %w", id, os.ErrNotExist)
	}
	if m.Current != nil {
		if mounted, err := mountedIn(m.Current.leader, a); err != nil {
			return err
		} else if mounted {
			return fmt.Errorf("detach disk %s: %w", id, unix.EBUSY)
		}
		a.vanish(m.Current.leader)
	}
	if err := a.loop.Detach(); err != nil {
		return err
	}
	delete(m.disks, id)
	return nil
}

// mountedIn looks for the device in the machine's own mount table.
func mountedIn(leader int, a *attached) (bool, error) {
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", leader))
	if err != nil {
		return false, err
	}
	for _, name := range append([]string{a.loop.Name}, a.loop.Partitions()...) {
		if bytes.Contains(table, []byte(" /dev/"+a.as(name)+" ")) {
			return true, nil
		}
	}
	return false, nil
}

// Resize grows an attached disk.
func (m *Machine) Resize(_ context.Context, id string, size int64) error {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	a, ok := m.disks[id]
	if !ok {
		return fmt.Errorf("resize disk %s: %w", id, os.ErrNotExist)
	}
	return a.loop.Resize(size)
}

// Disks returns what is attached.
func (m *Machine) Disks() []machine.Attachment {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	var all []machine.Attachment
	for _, a := range m.disks {
		all = append(all, a.attachment())
	}
	return all
}

// Leader is the machine's init as the host sees it, 0 if it is off.
func (m *Machine) Leader() int {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.Current == nil {
		return 0
	}
	return m.Current.leader
}

// Shell is the command that opens a shell, or runs args, in the machine.
func (m *Machine) Shell(args ...string) ([]string, error) {
	leader := m.Leader()
	if leader == 0 {
		return nil, fmt.Errorf("%s: %w", m.Spec.Name, machine.ErrNotRunning)
	}
	if len(args) == 0 {
		args = []string{"/bin/bash", "-l"}
	}
	enter := []string{"nsenter", "--target", strconv.Itoa(leader), "--mount", "--uts", "--ipc", "--net", "--pid",
		"--cgroup", "--root", "--wd", "env", "-i", "TERM=" + os.Getenv("TERM"), "HOME=/root", "LANG=C.UTF-8",
		"PATH=/var/vcap/bosh/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return append(enter, args...), nil
}

// Run runs a program in the machine.
func (m *Machine) Run(ctx context.Context, c machine.Command) error {
	argv, err := m.Shell(append(append([]string{"env"}, c.Env...), c.Args...)...)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	var words bytes.Buffer
	if cmd.Stderr == nil {
		cmd.Stderr = &words
	}
	if err := cmd.Run(); err != nil {
		return machine.Failed(c, m.Spec.Name, err, words.String())
	}
	return nil
}

// reach calls f with a directory that is the machine's root, running or not.
func (m *Machine) reach(f func(root string) error) error {
	if leader := m.Leader(); leader != 0 {
		return f(fmt.Sprintf("/proc/%d/root", leader))
	}
	return m.mounted(f)
}

// ReadFile reads a file of the machine.
func (m *Machine) ReadFile(path string) (data []byte, err error) {
	err = m.reach(func(root string) error {
		f, err := openIn(root, path, unix.O_RDONLY)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		var b bytes.Buffer
		_, err = b.ReadFrom(f)
		data = b.Bytes()
		return err
	})
	return data, err
}

// openIn opens below a root, so that absolute links in there mean the machine's files.
func openIn(root, path string, flags uint64) (*os.File, error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	fd, err := unix.Openat2(int(dir.Fd()), path, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// WriteFile writes a file of the machine, whole or not at all. Its directory exists.
func (m *Machine) WriteFile(f machine.File) error {
	return m.reach(func(root string) error {
		dir, err := openIn(root, filepath.Dir(f.Path), unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer func() { _ = dir.Close() }()
		name := f
		name.Path = filepath.Base(f.Path)
		return writeBelow(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), name)
	})
}
