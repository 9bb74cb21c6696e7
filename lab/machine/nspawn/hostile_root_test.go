//go:build root

package nspawn

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/skiptest"
	"cambium/internal/thread"
	"cambium/lab/disk"
	"cambium/lab/machine"
)

// host is a directory that stands for the host: no write to a tree may change it.
type host struct {
	dir    string
	before map[string]string
}

// links are files as fill takes them.
type links = map[string]string

func newHost(t *testing.T) host {
	t.Helper()
	h := host{dir: t.TempDir()}
	for _, name := range []string{"file", "machine-id", "loopX", "loopXp1", "disk/by-id/d-1"} {
		path := filepath.Join(h.dir, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(name), 0o604))
		if err != nil {
			t.Fatal(err)
		}
	}
	h.before = h.state(t)
	return h
}

func (h host) state(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(h.dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		content, _ := os.ReadFile(path) // a directory has none
		found[path] = fmt.Sprint(st.Ino, info.Mode(), st.Uid, st.Gid, string(content))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func (h host) unchanged(t *testing.T) {
	t.Helper()
	after := h.state(t)
	for path := range h.before {
		if h.before[path] != after[path] {
			t.Errorf("%s was %q and is %q", path, h.before[path], after[path])
		}
		delete(after, path)
	}
	if len(after) > 0 {
		t.Errorf("the host has new files: %v", after)
	}
}

// fill makes files in a directory: content that begins with "->" is the target of a link.
func fill(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if len(content) > 2 && content[:2] == "->" {
			err = errors.Join(err, os.Symlink(content[2:], path))
		} else {
			err = errors.Join(err, os.WriteFile(path, []byte(content), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestRootLinksOfAStemcell: what the lab writes into a machine's root stays in it, whatever links are there.
func TestRootLinksOfAStemcell(t *testing.T) {
	skiptest.WithoutRoot(t, "for mounts")
	const up = "../../../../../../../../../../../.."
	for name, c := range map[string]struct {
		links func(h host) links
		ok    bool // the machine can be made
	}{
		"temporary file": {func(h host) map[string]string {
			return map[string]string{"etc/machine-id.lab-new": "->" + h.dir + "/file"}
		}, true},
		"missing file": {func(h host) map[string]string {
			return map[string]string{"etc/machine-id.lab-new": "->" + h.dir + "/new"}
		}, true},
		"file": {func(h host) map[string]string {
			return map[string]string{"etc/machine-id": "->" + h.dir + "/machine-id"}
		}, true},
		"directory":       {func(h host) links { return links{"etc": "->" + h.dir} }, false},
		"relative":        {func(h host) links { return links{"etc": "->" + up + h.dir} }, false},
		"of files":        {func(h host) links { return links{"etc/x": "", "var": "->" + h.dir} }, false},
		"of files to new": {func(h host) links { return links{"etc/x": "", "var": "->" + h.dir + "/new"} }, false},
		"inside":          {func(h host) links { return links{"usr/etc/x": "", "etc": "->usr/etc"} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			h, tree := newHost(t), t.TempDir()
			fill(t, tree, c.links(h))
			m := &Machine{engine: Engine{Tree: tree}}
			file := machine.File{Path: "/var/file", Data: []byte("x"), Mode: 0o600}
			m.Begin(machine.Spec{Name: "hostile", Dir: t.TempDir(), Files: []machine.File{file}})
			if err := m.layer().Make(); err != nil {
				t.Fatal(err)
			}
			if err := m.bake(t.Context()); c.ok != (err == nil) {
				t.Errorf("the first files: %v", err)
			}
			h.unchanged(t)
			err := m.WriteFile(machine.File{Path: "/etc/machine-id", Data: []byte("y"), Mode: 0o600})
			if err != nil && c.ok {
				t.Errorf("another file: %v", err)
			}
			h.unchanged(t)
			if id, readErr := m.ReadFile("/etc/machine-id"); err == nil && (readErr != nil || string(id) != "y") {
				t.Errorf("the machine has %q, %v", id, readErr)
			}
		})
	}
}

// inRoot calls f with a thread whose root is dir, as that of a machine's init is.
func inRoot(t *testing.T, dir string, f func(leader int)) {
	t.Helper()
	leader, done, ended := make(chan int), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- thread.Run(func() error {
			if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Chroot(dir)); err != nil {
				return err
			}
			leader <- unix.Gettid()
			<-done
			return nil
		})
	}()
	select {
	case tid := <-leader:
		f(tid)
		close(done)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	case err := <-ended:
		t.Fatal(err)
	}
}

// TestRootLinksInDev: a machine's root can put what it likes into its /dev. Attaching and detaching a disk changes
// nothing but that.
func TestRootLinksInDev(t *testing.T) {
	skiptest.WithoutRoot(t, "for device nodes")
	for name, c := range map[string]struct {
		links func(h host) links
		ok    bool // the disk can be attached
	}{
		"nothing":         {func(h host) links { return links{"dev/null": ""} }, true},
		"node":            {func(h host) links { return links{"dev/loopX": "->" + h.dir + "/file"} }, true},
		"node as a file":  {func(h host) links { return links{"dev/loopX": "content"} }, true},
		"partition":       {func(h host) links { return links{"dev/loopXp1": "->" + h.dir + "/file"} }, true},
		"dev":             {func(h host) links { return links{"dev": "->" + h.dir} }, false},
		"disk":            {func(h host) links { return links{"dev/disk": "->" + h.dir} }, false},
		"disk, missing":   {func(h host) links { return links{"dev/disk": "->" + h.dir + "/new"} }, false},
		"by-id":           {func(h host) links { return links{"dev/disk/by-id": "->" + h.dir + "/disk"} }, false},
		"name of the CID": {func(h host) links { return links{"dev/disk/by-id/d-1": "->" + h.dir + "/file"} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			h, root := newHost(t), t.TempDir()
			fill(t, root, c.links(h))
			a := &attached{disk: machine.Disk{ID: "d-1", Names: []string{"disk/by-id/d-1"}},
				loop: disk.Loop{Name: "loopX", Major: 7, Minor: 250}}
			m := &Machine{disks: map[string]*attached{"d-1": a}}
			inRoot(t, root, func(leader int) {
				m.Current = &boot{leader: leader}
				err := a.appear(leader)
				if c.ok != (err == nil) {
					t.Errorf("attach: %v", err)
				}
				for _, action := range []string{"add", "remove", "add"} {
					m.device(disk.Event{Action: action, Name: "loopXp1", Major: 7, Minor: 251})
				}
				h.unchanged(t)
				if c.ok {
					for name, minor := range map[string]uint32{"loopX": 250, "loopXp1": 251} {
						var st unix.Stat_t
						err := unix.Lstat(filepath.Join(root, "dev", name), &st)
						good := st.Mode == unix.S_IFBLK|0o660 && st.Rdev == unix.Mkdev(7, minor) && st.Gid == diskGroup
						if err != nil || !good {
							t.Errorf("node %s: %v, mode %o, device %x, group %d", name, err, st.Mode, st.Rdev, st.Gid)
						}
					}
				}
				a.vanish(leader)
				h.unchanged(t)
			})
			if left, err := filepath.Glob(filepath.Join(root, "dev/loopX")); c.ok && (err != nil || len(left) > 0) {
				t.Errorf("%v is left, %v", left, err)
			}
		})
	}
}
