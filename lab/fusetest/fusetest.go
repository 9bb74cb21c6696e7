//go:build linux

// Package fusetest serves disk images that fail, or whose writes are recorded: a FUSE file system in a separate
// process, for loop devices. The process is separate because a test that waits for the kernel may be blocked while the
// kernel writes to the files. It is only for tests.
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

// Mode is the behavior of an image.
type Mode string

// The modes. Reads never fail.
const (
	OK   Mode = "ok"
	EIO  Mode = "eio"  // writes and flushes fail
	Slow Mode = "slow" // reads, writes and flushes take Latency
)

// SlowBy returns a mode like Slow, with another latency.
func SlowBy(latency time.Duration) Mode { return Mode(latency.String()) }

// wait sleeps for the latency of a slow image.
func (m Mode) wait() {
	if latency, err := time.ParseDuration(string(m)); err == nil {
		time.Sleep(latency)
	} else if m == Slow {
		time.Sleep(Latency)
	}
}

// Latency is the latency of Slow.
const Latency = 100 * time.Millisecond

// Kinds of log entries. There is one log for all images, so that the order is known.
const (
	Wrote   = 'W' // data
	Zeroed  = 'Z' // a range, without its data
	Flushed = 'F' // everything written before is durable
	Marked  = 'M' // a mark by the test; the data is a name
)

// Header precedes the data of an entry.
type Header struct {
	Kind   byte
	Disk   byte // index of the image
	Offset int64
	Length int64
}

const serveVariable = "CAMBIUM_FUSETEST"

// serving is the server's configuration.
type serving struct {
	Mount  string
	Log    string // nothing is recorded if empty
	Images []string
}

// server is the FUSE server process.
type server struct {
	mu     sync.Mutex // guards the order of changes in the log
	log    *os.File   // nil if nothing is recorded
	images map[string]*image
}

// image is a file of the server.
type image struct {
	fs.Inode
	*server
	number byte
	file   *os.File
	size   uint64
	mode   atomic.Value // a Mode
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

// Setattr is called by open(2) with O_TRUNC. It ignores the size, since images keep theirs.
func (i *image) Setattr(ctx context.Context, f fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return i.Getattr(ctx, f, out)
}

// Open disables the kernel's cache, so that every write arrives at once.
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

// change changes the image as the mode permits, and records the change.
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

// record appends to the log, if there is one. The caller holds mu.
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

// Allocate implements discarding and zeroing, after which an image reads as zeros.
func (i *image) Allocate(_ context.Context, _ fs.FileHandle, at, size uint64, mode uint32) syscall.Errno {
	if mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) == 0 {
		return syscall.EOPNOTSUPP
	}
	const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	return i.change(Header{Kind: Zeroed, Offset: int64(at), Length: int64(size)}, nil, func() error {
		return unix.Fallocate(int(i.file.Fd()), punch, int64(at), int64(size))
	})
}

// ServeIfCalled runs the server, if this process was started as one. TestMain must call it first. The server ends when
// its standard input is closed.
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

// Commands of the test, one a line: "set IMAGE MODE", "mark NAME".
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

// Images are served images, by name below Dir.
type Images struct {
	Dir string
	Log string // path of the log; empty if nothing is recorded

	t    testing.TB
	stop func()
	mu   sync.Mutex
	in   io.WriteCloser
	out  *bufio.Reader
}

// Serve serves images until the end of the test. Everything that uses them must have ended by then.
func Serve(t testing.TB, paths ...string) *Images {
	t.Helper()
	return start(t, &Images{Dir: filepath.Join(t.TempDir(), "served")}, paths)
}

// Record is like Serve, and also writes a log.
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

// Stop stops the server before the end of the test. The log is then complete.
func (s *Images) Stop() { s.stop() }

// Path returns the path of an image in the mounted file system.
func (s *Images) Path(name string) string { return filepath.Join(s.Dir, name) }

// Set changes the mode of an image, and returns when the change is in effect.
func (s *Images) Set(name string, mode Mode) { s.t.Helper(); s.order(orderSet, name, mode) }

// Mark adds a mark to the log.
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
