//go:build linux

// Package stucktest creates what a job can use to block its observers: a process that locks its own address space, and
// a file system that does not answer. It is only for tests, which need root.
package stucktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// FileSystem is a FUSE file system with one file, mounted in its own directory. It answers until Silence is called.
type FileSystem struct {
	Dir, File string
	node      *node
	server    *fuse.Server
	close     func() error
}

// node is the file. After Silence, reads do not return.
type node struct {
	fs.Inode
	silent  atomic.Bool
	release chan struct{}
	reads   chan struct{} // receives a value when a read waits
}

func (n *node) answer() {
	if n.silent.Load() {
		<-n.release
	}
}

// Getattr implements stat(2).
func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n.answer()
	out.Mode, out.Size = syscall.S_IFREG|0o644, 1<<20
	return fs.OK
}

// Open implements open(2). Writers bypass the page cache.
func (n *node) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	n.answer()
	if flags&syscall.O_ACCMODE == syscall.O_RDWR {
		return nil, fuse.FOPEN_DIRECT_IO, fs.OK
	}
	return nil, 0, fs.OK
}

// Read implements read(2). The pages that are read stay locked until it answers.
func (n *node) Read(context.Context, fs.FileHandle, []byte, int64) (fuse.ReadResult, syscall.Errno) {
	select {
	case n.reads <- struct{}{}:
	default:
	}
	<-n.release
	return nil, syscall.EIO
}

// root is the directory with the file.
type root struct {
	fs.Inode
	file *node
}

// OnAdd creates the file.
func (r *root) OnAdd(ctx context.Context) {
	r.AddChild("file", r.NewPersistentInode(ctx, r.file, fs.StableAttr{Mode: syscall.S_IFREG}), true)
}

// Mount mounts a file system that answers at dir.
func Mount(dir string) (*FileSystem, error) {
	n := &node{release: make(chan struct{}), reads: make(chan struct{}, 1)}
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

// Silence stops the file system from answering.
func (f *FileSystem) Silence() { f.node.silent.Store(true) }

// Close answers all waiting calls and unmounts the file system. It may be called twice.
func (f *FileSystem) Close() error { return f.close() }

func (f *FileSystem) end() error {
	f.node.silent.Store(false)
	close(f.node.release)
	if err := f.server.Unmount(); err != nil {
		return unix.Unmount(f.Dir, unix.MNT_DETACH)
	}
	return nil
}

// Process locks its own address space. Reads of its command line or environment block, and on older kernels those of
// its memory map.
type Process struct {
	Pid  int
	cmd  *exec.Cmd
	fuse *FileSystem
}

const variable = "CAMBIUM_STUCKTEST"

// startLimit bounds the time until a process is stuck.
const startLimit = time.Minute

// Start starts a process of the test binary that uses a file system at dir, and returns when the process is stuck. The
// process inherits files.
func Start(dir string, files ...*os.File) (*Process, error) {
	f, err := Mount(dir)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{variable + "=" + f.File}
	cmd.ExtraFiles = files
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	p := &Process{Pid: cmd.Process.Pid, cmd: cmd, fuse: f}
	select {
	case <-f.node.reads:
	case <-time.After(startLimit):
		return nil, errors.Join(errors.New("the process does not read"), p.Close())
	}
	if err := in.Close(); err != nil { // tells it to go on
		return nil, errors.Join(err, p.Close())
	}
	for end := time.Now().Add(startLimit); time.Now().Before(end); {
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
	return nil, errors.Join(errors.New("the process does not hold its address space"), p.Close())
}

// Close ends the process and unmounts the file system.
func (p *Process) Close() error {
	_ = p.cmd.Process.Kill()
	err := p.fuse.Close()
	_ = p.cmd.Wait()
	return err
}

// init runs the process. One thread reads a page, which stays locked. Another maps the file without the page cache: the
// kernel holds the address space and waits for the locked page, because it drops the cached pages first.
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
	cached, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	fail(err)
	direct, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	fail(err)
	go func() { _, _ = unix.Read(cached, make([]byte, 1)) }()
	_, _ = io.Copy(io.Discard, os.Stdin) // until the read is under way
	_, err = unix.Mmap(direct, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE)
	fail(err)
	os.Exit(0)
}
