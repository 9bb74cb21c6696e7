//go:build linux

// Package fusetest serves disk images that fail, or whose writes are recorded: a FUSE file system in a process of its
// own, for loop devices. The kernel writes to its files while a test that waits for the kernel may not run. For tests
// only.
package fusetest

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Mode selects the behavior of an image.
type Mode string

// The modes. Reads never fail.
const (
	OK   Mode = "ok"
	EIO  Mode = "eio"  // writes and flushes fail
	Slow Mode = "slow" // reads, writes and flushes take Latency
)

// SlowBy is Slow with another latency.
func SlowBy(latency time.Duration) Mode { return Mode(latency.String()) }

// wait takes the time of a slow image.
func (m Mode) wait() {
	if latency, err := time.ParseDuration(string(m)); err == nil {
		time.Sleep(latency)
	} else if m == Slow {
		time.Sleep(Latency)
	}
}

// Latency is that of a slow image.
const Latency = 100 * time.Millisecond

// Kinds of entries of a log. One log has what was done to all images, so that there is one order.
const (
	Wrote   = 'W' // data
	Zeroed  = 'Z' // a range, without data
	Flushed = 'F' // what was written before is on the disk, whatever happens
	Marked  = 'M' // a test notes what it has been told by then; the data is a name
)

// Header precedes the data of an entry.
type Header struct {
	Kind   byte
	Disk   byte // which of the images
	Offset int64
	Length int64
}

const serveVariable = "CAMBIUM_FUSETEST"

// serving is the configuration that the server gets.
type serving struct {
	Mount  string
	Log    string // empty: nothing is recorded
	Images []string
}

// server is the process that serves.
type server struct {
	mu     sync.Mutex // one change at a time: the log has their order
	log    *os.File   // nil: nothing is recorded
	images map[string]*image
}

// image is a file of the server.
type image struct {
	fs.Inode
	*server
	number byte
	file   *os.File
	size   uint64
	mode   atomic.Value // Mode
}

func (i *image) now() Mode {
	mode, _ := i.mode.Load().(Mode)
	return mode
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
	i.now().wait()
	n, err := i.file.ReadAt(to, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fs.ToErrno(err)
	}
	return fuse.ReadResultData(to[:n]), fs.OK
}

// change does something to the image, as the mode allows, and records it.
func (i *image) change(h Header, data []byte, do func() error) syscall.Errno {
	mode := i.now()
	if mode == EIO {
		return syscall.EIO
	}
	mode.wait()
	i.mu.Lock()
	defer i.mu.Unlock()
	err := do()
	if err == nil {
		h.Disk = i.number
		err = i.record(h, data)
	}
	return fs.ToErrno(err)
}

// record appends to the log, if there is one; the caller holds mu.
func (s *server) record(h Header, data []byte) error {
	if s.log == nil {
		return nil
	}
	text, err := binary.Append(nil, binary.LittleEndian, h)
	if err == nil {
		_, err = s.log.Write(append(text, data...))
	}
	return err
}

func (i *image) Write(_ context.Context, _ fs.FileHandle, data []byte, at int64) (uint32, syscall.Errno) {
	errno := i.change(Header{Kind: Wrote, Offset: at, Length: int64(len(data))}, data, func() error {
		_, err := i.file.WriteAt(data, at)
		return err
	})
	if errno != fs.OK {
		return 0, errno
	}
	return uint32(len(data)), fs.OK
}

func (i *image) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	return i.change(Header{Kind: Flushed}, nil, func() error { return nil })
}

// Allocate serves discarding and zeroing, after which these images read as zeros.
func (i *image) Allocate(_ context.Context, _ fs.FileHandle, at, size uint64, mode uint32) syscall.Errno {
	if mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) == 0 {
		return syscall.EOPNOTSUPP
	}
	const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	return i.change(Header{Kind: Zeroed, Offset: int64(at), Length: int64(size)}, nil, func() error {
		return unix.Fallocate(int(i.file.Fd()), punch, int64(at), int64(size))
	})
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
	s := &server{images: map[string]*image{}}
	if err := s.open(told); err != nil {
		return err
	}
	root := &fs.Inode{}
	_, err := fs.Mount(told.Mount, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "fusetest", MaxWrite: 512 << 10,
			DisableXAttrs: true},
		OnAdd: func(ctx context.Context) {
			for name, node := range s.images {
				root.AddChild(name, root.NewPersistentInode(ctx, node, fs.StableAttr{Mode: syscall.S_IFREG}), false)
			}
		},
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if err := s.obey(in.Text()); err != nil {
			return err
		}
		fmt.Println("ready")
	}
	// The end of this process is that of the connection. Nothing else ends it if another mount namespace has been made
	// meanwhile, which has a copy of the mount.
	return unix.Unmount(told.Mount, unix.MNT_DETACH)
}

func (s *server) open(told serving) (err error) {
	if told.Log != "" {
		if s.log, err = os.OpenFile(told.Log, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
			return err
		}
	}
	for n, path := range told.Images {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err != nil {
			return err
		}
		s.images[filepath.Base(path)] = &image{server: s, number: byte(n), file: f, size: uint64(info.Size())}
	}
	return nil
}

// Orders of the test, each a line: "set IMAGE MODE", "mark NAME".
const (
	orderSet  = "set"
	orderMark = "mark"
)

func (s *server) obey(order string) error {
	verb, rest, _ := strings.Cut(order, " ")
	name, mode, _ := strings.Cut(rest, " ")
	switch {
	case verb == orderMark:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.record(Header{Kind: Marked, Length: int64(len(rest))}, []byte(rest))
	case verb == orderSet && s.images[name] != nil:
		s.images[name].mode.Store(Mode(mode))
		return nil
	}
	return fmt.Errorf("unknown order %q", order)
}

// Images are served images, under their own names below Dir.
type Images struct {
	Dir string
	Log string // of what was done to them, if it is recorded

	t    testing.TB
	stop func()
	mu   sync.Mutex
	in   io.WriteCloser
	out  *bufio.Reader
}

// Serve serves images until the end of the test. What uses them must be gone by then.
func Serve(t testing.TB, paths ...string) *Images {
	t.Helper()
	return start(t, &Images{Dir: filepath.Join(t.TempDir(), "served")}, paths)
}

// Record is Serve with a log.
func Record(t testing.TB, paths ...string) *Images {
	t.Helper()
	dir := t.TempDir()
	return start(t, &Images{Dir: filepath.Join(dir, "served"), Log: filepath.Join(dir, "log")}, paths)
}

func start(t testing.TB, s *Images, paths []string) *Images {
	t.Helper()
	s.t = t
	if err := os.Mkdir(s.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(serving{Mount: s.Dir, Log: s.Log, Images: paths})
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
	s.stop = sync.OnceFunc(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Errorf("stop the image server: %v", err)
		}
	})
	t.Cleanup(s.stop)
	s.await()
	return s
}

// Stop ends the server before the end of the test: its log is complete then.
func (s *Images) Stop() { s.stop() }

// Path returns the path of an image in the mounted file system.
func (s *Images) Path(name string) string { return filepath.Join(s.Dir, name) }

// Set changes how an image behaves, and returns when it does.
func (s *Images) Set(name string, mode Mode) { s.t.Helper(); s.order(orderSet, name, mode) }

// Mark notes in the log that something has been told to the caller by now.
func (s *Images) Mark(name string) { s.t.Helper(); s.order(orderMark, name) }

func (s *Images) order(words ...any) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := fmt.Fprintln(s.in, words...); err != nil {
		s.t.Fatal(err)
	}
	s.await()
}

func (s *Images) await() {
	s.t.Helper()
	if line, err := s.out.ReadString('\n'); err != nil || line != "ready\n" {
		s.t.Fatalf("the image server said %q: %v", line, err)
	}
}
