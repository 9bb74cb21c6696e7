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

	"cambium/internal/rootdir"
	"cambium/lab/disk"
	"cambium/lab/machine"

	"golang.org/x/sys/unix"
)

// attached is a disk with its loop device.
type attached struct {
	disk machine.Disk
	loop disk.Loop
}

// nodeName returns the machine's name of a device that the host calls name: the disk or one of its partitions.
func (a *attached) nodeName(name string) string {
	if a.disk.Node == "" {
		return name
	}
	return a.disk.Node + strings.TrimPrefix(strings.TrimPrefix(name, a.loop.Name), "p")
}

// diskGroup is the group of block devices on Debian.
const diskGroup = 6

// devices calls f with the machine's /dev, which it reaches through the root of the machine's init. The host's /dev is
// never visible in the machine. The machine controls all of it, but links cannot lead out.
func devices(leader int, f func(dev *os.Root) error) error {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root", leader))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	dev, err := rootdir.Open(root, "dev")
	if err != nil {
		return fmt.Errorf("the machine's /dev: %w", err)
	}
	defer func() { _ = dev.Close() }()
	return f(dev)
}

// appear creates the nodes of the disk in the machine's /dev.
func (a *attached) appear(leader int) error {
	return devices(leader, func(dev *os.Root) error {
		if err := node(dev, a.nodeName(a.loop.Name), a.loop.Major, a.loop.Minor); err != nil {
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
			if err := node(dev, a.nodeName(name), uint32(x), uint32(y)); err != nil {
				return err
			}
		}
		for _, name := range a.disk.Names {
			if err := dev.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				return err
			}
			// Relative, as udev makes them: the machine's own /dev, not the host's.
			target := strings.Repeat("../", strings.Count(name, "/")) + a.nodeName(a.loop.Name)
			if err := dev.Symlink(target, name); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
		}
		return nil
	})
}

// vanish removes the nodes that appear has created, as far as they exist.
func (a *attached) vanish(leader int) {
	_ = devices(leader, func(dev *os.Root) error {
		for _, name := range append([]string{a.loop.Name}, a.loop.Partitions()...) {
			_ = dev.Remove(a.nodeName(name))
		}
		for _, name := range a.disk.Names {
			_ = dev.Remove(name)
		}
		return nil
	})
}

// node creates a device node. It replaces anything else with that name.
func node(dev *os.Root, name string, major, minor uint32) error {
	dir, err := dev.Open(".")
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	device := unix.Mkdev(major, minor)
	mknod := func() error { return unix.Mknodat(int(dir.Fd()), name, unix.S_IFBLK|0o660, int(device)) }
	err = mknod()
	if errors.Is(err, unix.EEXIST) && !isNode(dev, name, device) {
		if err = dev.RemoveAll(name); err == nil {
			err = mknod()
		}
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("node %s: %w", name, err)
	}
	// mknod(2) applies the umask of this process.
	return errors.Join(dev.Lchown(name, 0, diskGroup), dev.Chmod(name, 0o660))
}

func isNode(dev *os.Root, name string, device uint64) bool {
	info, err := dev.Lstat(name)
	if err != nil || info.Mode().Type() != os.ModeDevice {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Rdev == device
}

// device handles a kernel event: it adds and removes nodes of partitions.
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
		_ = devices(m.Current.leader, func(dev *os.Root) error {
			if e.Action == "remove" {
				return dev.Remove(a.nodeName(e.Name))
			}
			return node(dev, a.nodeName(e.Name), e.Major, e.Minor)
		})
	}
}

// Attach attaches a disk.
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
	return machine.Attachment{Disk: a.disk, Path: "/dev/" + a.nodeName(a.loop.Name)}
}

// Detach detaches a disk. It fails if the disk is in use, as on an IaaS.
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

// mountedIn reports whether the device is in the machine's mount table.
func mountedIn(leader int, a *attached) (bool, error) {
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", leader))
	if err != nil {
		return false, err
	}
	for _, name := range append([]string{a.loop.Name}, a.loop.Partitions()...) {
		if bytes.Contains(table, []byte(" /dev/"+a.nodeName(name)+" ")) {
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

// Disks returns the attached disks.
func (m *Machine) Disks() []machine.Attachment {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	var all []machine.Attachment
	for _, a := range m.disks {
		all = append(all, a.attachment())
	}
	return all
}

// Leader returns the host's pid of the machine's init, or 0 if the machine is off.
func (m *Machine) Leader() int {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.Current == nil {
		return 0
	}
	return m.Current.leader
}

// Shell returns the command that opens a shell, or runs args, in the machine.
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

// reach calls f with a directory that is the machine's root, whether it runs or not.
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

// openIn opens a path below root and resolves links, even absolute ones, within root.
func openIn(root, path string, flags uint64) (*os.File, error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	fd, err := unix.Openat2(int(dir.Fd()), path,
		&unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// WriteFile writes all of a file of the machine, or nothing. Its directory must exist.
func (m *Machine) WriteFile(f machine.File) error {
	return m.reach(func(root string) error {
		dir, err := openIn(root, filepath.Dir(f.Path), unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer func() { _ = dir.Close() }()
		below, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
		if err != nil {
			return err
		}
		defer func() { _ = below.Close() }()
		name := f
		name.Path = filepath.Base(f.Path)
		return writeBelow(below, name)
	})
}
