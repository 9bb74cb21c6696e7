//go:build linux

// Package fusetest serves disk images with I/O errors to loop devices: a FUSE file system in a process of its own,
// since the kernel writes to its files while a test that waits for the kernel cannot run. For tests only.
package fusetest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Mode is how an image behaves.
type Mode string

// The modes. Reads never fail.
const (
	OK   Mode = "ok"
	EIO  Mode = "eio"  // writes and flushes fail
	Slow Mode = "slow" // reads, writes and flushes take Latency
)

// Latency is that of a slow image.
const Latency = 100 * time.Millisecond

const serveVariable = "CAMBIUM_FUSETEST"

// serving is what the server is told.
type serving struct {
	Mount  string
	Images []string
}

// image is a file of the server.
type image struct {
	fs.Inode
	file *os.File
	size uint64
	mode atomic.Value // Mode
}

var _ = (interface {
	fs.NodeGetattrer
	fs.NodeSetattrer
	fs.NodeOpener
	fs.NodeReader
	fs.NodeWriter
	fs.NodeFsyncer
	fs.NodeAllocater
})((*image)(nil))

func (i *image) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size = syscall.S_IFREG|0o600, i.size
	return fs.OK
}

// Setattr is asked for by open(2) with O_TRUNC; images keep their size.
func (i *image) Setattr(ctx context.Context, f fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return i.Getattr(ctx, f, out)
}

// Open keeps the kernel from caching: every write arrives when it is made.
func (i *image) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, fs.OK
}

func (i *image) Read(_ context.Context, _ fs.FileHandle, to []byte, at int64) (fuse.ReadResult, syscall.Errno) {
	if i.mode.Load() == Slow {
		time.Sleep(Latency)
	}
	n, err := i.file.ReadAt(to, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fs.ToErrno(err)
	}
	return fuse.ReadResultData(to[:n]), fs.OK
}

// fails is the errno of whatever changes the image.
func (i *image) fails() syscall.Errno {
	switch i.mode.Load() {
	case EIO:
		return syscall.EIO
	case Slow:
		time.Sleep(Latency)
	}
	return fs.OK
}

func (i *image) Write(_ context.Context, _ fs.FileHandle, data []byte, at int64) (uint32, syscall.Errno) {
	if errno := i.fails(); errno != fs.OK {
		return 0, errno
	}
	n, err := i.file.WriteAt(data, at)
	return uint32(n), fs.ToErrno(err)
}

func (i *image) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno { return i.fails() }

// Allocate serves discarding and zeroing, after which these images read as zeros.
func (i *image) Allocate(_ context.Context, _ fs.FileHandle, at, size uint64, mode uint32) syscall.Errno {
	if mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) == 0 {
		return syscall.EOPNOTSUPP
	}
	if errno := i.fails(); errno != fs.OK {
		return errno
	}
	const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	return fs.ToErrno(unix.Fallocate(int(i.file.Fd()), punch, int64(at), int64(size)))
}

// ServeIfCalled is the server if this process was started as one; TestMain calls it first. The server ends with its
// standard input.
func ServeIfCalled() {
	text := os.Getenv(serveVariable)
	if text == "" {
		return
	}
	if err := serve(text); err != nil {
		fmt.Fprintln(os.Stderr, "fusetest:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(text string) error {
	var told serving
	if err := json.Unmarshal([]byte(text), &told); err != nil {
		return err
	}
	nodes := map[string]*image{}
	for _, path := range told.Images {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err != nil {
			return err
		}
		nodes[filepath.Base(path)] = &image{file: f, size: uint64(info.Size())}
	}
	root := &fs.Inode{}
	_, err := fs.Mount(told.Mount, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "fusetest", MaxWrite: 512 << 10,
			DisableXAttrs: true},
		OnAdd: func(ctx context.Context) {
			for name, node := range nodes {
				root.AddChild(name, root.NewPersistentInode(ctx, node, fs.StableAttr{Mode: syscall.S_IFREG}), false)
			}
		},
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var name string
		var mode Mode
		if _, err := fmt.Sscan(in.Text(), &name, &mode); err != nil || nodes[name] == nil {
			return fmt.Errorf("unknown order %q", in.Text())
		}
		nodes[name].mode.Store(mode)
		fmt.Println("ready")
	}
	// The end of this process is that of the connection. Nothing else ends it if another mount namespace has been made
	// meanwhile, which has a copy of the mount.
	return unix.Unmount(told.Mount, unix.MNT_DETACH)
}

// Images are served images, under their own names below Dir.
type Images struct {
	Dir string

	t   testing.TB
	mu  sync.Mutex
	in  io.WriteCloser
	out *bufio.Reader
}

// Serve serves images until the end of the test. What uses them must be gone by then.
func Serve(t testing.TB, paths ...string) *Images {
	t.Helper()
	s := &Images{Dir: filepath.Join(t.TempDir(), "served"), t: t}
	if err := os.Mkdir(s.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(serving{Mount: s.Dir, Images: paths})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serveVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	// An interrupt on the terminal is for the test, which removes its loop devices first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	s.in, s.out = in, bufio.NewReader(out)
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Errorf("stop the image server: %v", err)
		}
	})
	s.await()
	return s
}

func (s *Images) await() {
	s.t.Helper()
	if line, err := s.out.ReadString('\n'); err != nil || line != "ready\n" {
		s.t.Fatalf("the image server said %q: %v", line, err)
	}
}

// Path is where the kernel finds an image.
func (s *Images) Path(name string) string { return filepath.Join(s.Dir, name) }

// Set changes how an image behaves, and returns when it does.
func (s *Images) Set(name string, mode Mode) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := fmt.Fprintln(s.in, name, mode); err != nil {
		s.t.Fatal(err)
	}
	s.await()
}
