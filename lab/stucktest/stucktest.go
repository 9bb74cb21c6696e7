//go:build linux

// Package stucktest makes what a job can make to hold up those who look at it: a process that holds its own address
// space, and a file system that does not answer. For tests only; both need root.
package stucktest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// FileSystem is a FUSE file system with one file, in a directory of its own. It answers until it is told to be silent.
type FileSystem struct {
	Dir, File string
	node      *node
	server    *fuse.Server
	close     func() error
}

// node is the file. Its first reads fail: the kernel has dropped the lock of the address space for them.
type node struct {
	fs.Inode
	silent  atomic.Bool
	release chan struct{}
	next    chan struct{} // fails the read that waits
	reads   atomic.Int32
}

// failedReads is how often the kernel tries without the lock.
const failedReads = 2

func (n *node) answer() {
	if n.silent.Load() {
		<-n.release
	}
}

// Getattr is stat(2).
func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n.answer()
	out.Mode, out.Size = syscall.S_IFREG|0o644, 1<<20
	return fs.OK
}

// Open is open(2).
func (n *node) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	n.answer()
	return nil, 0, fs.OK
}

// Read is what a page fault waits for.
func (n *node) Read(context.Context, fs.FileHandle, []byte, int64) (fuse.ReadResult, syscall.Errno) {
	if n.reads.Add(1) > failedReads {
		select {
		case <-n.release:
		case <-n.next:
		}
	}
	return nil, syscall.EIO
}

// root is the directory.
type root struct {
	fs.Inode
	file *node
}

// OnAdd makes the file.
func (r *root) OnAdd(ctx context.Context) {
	r.AddChild("file", r.NewPersistentInode(ctx, r.file, fs.StableAttr{Mode: syscall.S_IFREG}), true)
}

// Mount mounts a file system that answers at dir.
func Mount(dir string) (*FileSystem, error) {
	n := &node{release: make(chan struct{}), next: make(chan struct{})}
	zero := time.Duration(0)
	server, err := fs.Mount(dir, &root{file: n}, &fs.Options{AttrTimeout: &zero, EntryTimeout: &zero,
		MountOptions: fuse.MountOptions{DirectMount: true, AllowOther: true}})
	if err != nil {
		return nil, err
	}
	f := &FileSystem{Dir: dir, File: filepath.Join(dir, "file"), node: n, server: server}
	f.close = sync.OnceValue(f.end)
	return f, nil
}

// Silence makes it answer no more.
func (f *FileSystem) Silence() { f.node.silent.Store(true) }

// Close answers all that waits, and unmounts. It may be called again.
func (f *FileSystem) Close() error { return f.close() }

func (f *FileSystem) end() error {
	f.node.silent.Store(false)
	close(f.node.release)
	if err := f.server.Unmount(); err != nil {
		return unix.Unmount(f.Dir, unix.MNT_DETACH)
	}
	return nil
}

// Process holds its own address space: reads of its command line, its environment or its map wait.
type Process struct {
	Pid  int
	cmd  *exec.Cmd
	fuse *FileSystem
}

const variable = "CAMBIUM_STUCKTEST"

// Start starts a process of the test's program that uses a file system at dir, and returns when it is stuck. Files are
// inherited by it.
func Start(dir string, files ...*os.File) (*Process, error) {
	f, err := Mount(dir)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{variable + "=" + f.File}
	cmd.ExtraFiles = files
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	p := &Process{Pid: cmd.Process.Pid, cmd: cmd, fuse: f}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return nil, fmt.Errorf("the process did not begin: %w: %w", err, p.Close())
	}
	tried := time.Now()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		// Readahead may have made more reads without the lock: the next one has it, or the one after.
		if time.Since(tried) > 2*time.Second {
			tried = time.Now()
			select {
			case f.node.next <- struct{}{}:
			default:
			}
		}
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.Pid))
		}()
		select {
		case <-read:
			time.Sleep(10 * time.Millisecond) // nothing announces that a lock is held
		case <-time.After(2 * time.Second):
			return p, nil
		}
	}
	return nil, fmt.Errorf("the process does not hold its address space after %d reads: %w", f.node.reads.Load(), p.Close())
}

// Close ends process and file system.
func (p *Process) Close() error {
	_ = p.cmd.Process.Kill()
	err := p.fuse.Close()
	_ = p.cmd.Wait()
	return err
}

// touch reads a page, of which the last read may fail.
func touch(page []byte) {
	defer func() { _ = recover() }()
	fmt.Println(page[0])
}

// init is the process.
func init() {
	path := os.Getenv(variable)
	if path == "" {
		return
	}
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "stucktest:", err)
			os.Exit(1)
		}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	fail(err)
	page, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE)
	fail(err)
	fmt.Println("begun")
	var stuck sync.WaitGroup
	waiting := make(chan struct{})
	stuck.Go(func() {
		runtime.LockOSThread()
		for n := 0; ; n++ { // waits for the lock, and lets no reader pass
			more, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			fail(err)
			fail(unix.Munmap(more))
			if n == 0 {
				close(waiting)
			}
		}
	})
	<-waiting
	stuck.Go(func() {
		debug.SetPanicOnFault(true)
		for {
			touch(page) // takes the lock to read
		}
	})
	stuck.Wait()
	os.Exit(0)
}
