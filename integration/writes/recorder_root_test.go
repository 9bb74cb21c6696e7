//go:build root

package writes

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
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
)

// The recorder is a file system of images, served by a process of its own: the kernel writes to its files while a test
// that waits for the kernel may not run. Each image is below a loop device. What the kernel asks for is done to the
// image, and appended to one log for all of them, so that there is one order.

// Kinds of entries of the log.
const (
	wrote   = 'W' // data
	zeroed  = 'Z' // a range, without data
	flushed = 'F' // what was written before is on the disk, whatever happens
	marked  = 'M' // a test notes what it has been told by then; the data is a name
)

// header precedes the data of an entry.
type header struct {
	Kind   byte
	Disk   byte
	Offset int64
	Length int64
}

// serving is what the server is told.
type serving struct {
	Mount  string
	Log    string
	Images []string
}

const (
	serveVariable = "CAMBIUM_WRITES_SERVE"
	markName      = "mark"
)

// server is the recorder's process.
type server struct {
	mu  sync.Mutex // one write at a time: the log has their order
	log *os.File
}

func (s *server) append(h header, data []byte) syscall.Errno {
	text, err := binary.Append(nil, binary.LittleEndian, h)
	if err == nil {
		_, err = s.log.Write(append(text, data...))
	}
	return fs.ToErrno(err)
}

// image is a file of the recorder's file system; without a file it takes marks.
type image struct {
	fs.Inode
	*server
	number byte
	file   *os.File
	size   uint64
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
	if i.file == nil {
		return nil, syscall.EINVAL
	}
	n, err := i.file.ReadAt(to, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fs.ToErrno(err)
	}
	return fuse.ReadResultData(to[:n]), fs.OK
}

func (i *image) Write(_ context.Context, _ fs.FileHandle, data []byte, at int64) (uint32, syscall.Errno) {
	i.mu.Lock()
	defer i.mu.Unlock()
	h := header{Kind: marked, Length: int64(len(data))}
	if i.file != nil {
		h.Kind, h.Disk, h.Offset = wrote, i.number, at
		if _, err := i.file.WriteAt(data, at); err != nil {
			return 0, fs.ToErrno(err)
		}
	}
	return uint32(len(data)), i.append(h, data)
}

func (i *image) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.append(header{Kind: flushed, Disk: i.number}, nil)
}

// Allocate serves discarding and zeroing, after which these images read as zeros.
func (i *image) Allocate(_ context.Context, _ fs.FileHandle, at, size uint64, mode uint32) syscall.Errno {
	if i.file == nil || mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) == 0 {
		return syscall.EOPNOTSUPP
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := unix.Fallocate(int(i.file.Fd()), punch, int64(at), int64(size)); err != nil {
		return fs.ToErrno(err)
	}
	return i.append(header{Kind: zeroed, Disk: i.number, Offset: int64(at), Length: int64(size)}, nil)
}

const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE

// serveIfCalled is the recorder if this process was started as one. It ends with its standard input.
func serveIfCalled() {
	text := os.Getenv(serveVariable)
	if text == "" {
		return
	}
	if err := serve(text); err != nil {
		fmt.Fprintln(os.Stderr, "recorder:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(text string) error {
	var told serving
	if err := json.Unmarshal([]byte(text), &told); err != nil {
		return err
	}
	log, err := os.OpenFile(told.Log, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	s := &server{log: log}
	nodes := map[string]*image{markName: {server: s}}
	for n, path := range told.Images {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err != nil {
			return err
		}
		nodes[filepath.Base(path)] = &image{server: s, number: byte(n), file: f, size: uint64(info.Size())}
	}
	root := &fs.Inode{}
	mounted, err := fs.Mount(told.Mount, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "recorder", MaxWrite: 512 << 10,
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
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends, in whatever way
	if err := mounted.Unmount(); err != nil {
		return err
	}
	return log.Close()
}

// recorder is the test's side.
type recorder struct {
	mount, log string
	stop       func() error
}

// startRecorder serves images, below dir and under the same names. What is written to them is in the log.
func startRecorder(t testing.TB, dir string, images []string) *recorder {
	t.Helper()
	r := &recorder{mount: filepath.Join(dir, "recorded"), log: filepath.Join(dir, "log")}
	if err := os.Mkdir(r.mount, 0o700); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(serving{Mount: r.mount, Log: r.log, Images: images})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serveVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.stop = sync.OnceValue(func() error { return errors.Join(in.Close(), cmd.Wait()) })
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("stop the recorder: %v", err)
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the recorder said %q: %v", line, err)
	}
	return r
}

// attach makes a loop device on a served image.
func (r *recorder) attach(t testing.TB, name string) *looptest.Device {
	t.Helper()
	return looptest.Attach(t, filepath.Join(r.mount, name))
}

// mark notes in the log that something has been told to the caller by now.
func (r *recorder) mark(t testing.TB, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.mount, markName), []byte(name), 0); err != nil {
		t.Fatal(err)
	}
}
