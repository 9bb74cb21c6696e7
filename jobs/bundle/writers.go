package bundle

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A package may have tens of thousands of small files, and creating a file costs far more than reading it from the
// archive. So a few writers create small files from memory while the archive is read further.
const (
	smallFile  = 32 << 10
	maxWriters = 4
	// pendingFiles bounds the number of small files of an archive that are in memory.
	pendingFiles = 32
	// flushEvery is the number of small files after which writeback starts while the archive is read further, so that
	// the final sync has less to write.
	flushEvery = 4096
)

// owner is the owner of all unpacked files.
type owner struct{ uid, gid int }

// isDefault reports whether new files have this owner without a chown.
func (o owner) isDefault() bool { return o.uid == os.Geteuid() && o.gid == os.Getegid() }

// pending is a file to create.
type pending struct {
	root  *os.Root
	rel   string
	mode  fs.FileMode
	mtime time.Time
	data  []byte
}

// writer creates files one after the other. All files of a directory have the same writer, so that entries with the
// same name replace each other in the order of the archive.
type writer struct {
	owner owner
	queue chan pending
	// dir is the directory of the last file. The next file is usually in the same directory, which then need not be
	// resolved again.
	dir  *os.File
	near dirKey
}

// writers create small files in parallel.
type writers struct {
	all     []*writer
	seed    maphash.Seed
	buffers chan []byte
	open    sync.WaitGroup // counts files that are not created yet
	ended   sync.WaitGroup
	added   int
	flushes atomic.Bool // a writeback is running

	mu  sync.Mutex // guards err
	err error
}

func newWriters(o owner) *writers {
	w := &writers{seed: maphash.MakeSeed(), buffers: make(chan []byte, pendingFiles)}
	for range min(maxWriters, runtime.GOMAXPROCS(0)) {
		one := &writer{owner: o, queue: make(chan pending, pendingFiles)}
		w.all = append(w.all, one)
		w.ended.Go(func() {
			for p := range one.queue {
				w.fail(one.make(p, func(to descriptor) error {
					_, err := to.Write(p.data)
					return err
				}))
				w.buffers <- p.data[:0]
				w.open.Done()
			}
			one.forget()
		})
	}
	for range pendingFiles {
		w.buffers <- nil
	}
	return w
}

func (w *writers) fail(err error) {
	if err == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
}

func (w *writers) fault() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// add reads a small file and passes it to a writer. A later call of add or wait returns the writer's error.
func (w *writers) add(p pending, content io.Reader, size int64) error {
	if err := w.fault(); err != nil {
		return err
	}
	buffer := <-w.buffers
	if int64(cap(buffer)) < size {
		buffer = make([]byte, size, smallFile)
	}
	p.data = buffer[:size]
	if _, err := io.ReadFull(content, p.data); err != nil {
		w.buffers <- buffer[:0]
		return fmt.Errorf("unpack %s: %w", p.rel, err)
	}
	w.open.Add(1)
	n := maphash.Comparable(w.seed, dirKey{p.root, path.Dir(p.rel)}) % uint64(len(w.all))
	w.all[n].queue <- p
	if w.added++; w.added%flushEvery == 0 {
		w.flush(p.root)
	}
	return nil
}

// flush starts writeback of the files written so far, and does not wait. The final sync reports its errors.
func (w *writers) flush(root *os.Root) {
	if !w.flushes.CompareAndSwap(false, true) {
		return
	}
	w.ended.Go(func() {
		defer w.flushes.Store(false)
		if dir, err := root.Open("."); err == nil {
			defer dir.Close()
			_ = unix.Syncfs(int(dir.Fd()))
		}
	})
}

// wait returns when all files are created. Call it before names are changed. The writers also forget their directories,
// which may be what changes.
func (w *writers) wait() error {
	w.open.Wait()
	for _, one := range w.all {
		one.forget()
	}
	return w.fault()
}

// stop ends the writers.
func (w *writers) stop() {
	for _, one := range w.all {
		close(one.queue)
	}
	w.ended.Wait()
}

func (w *writer) forget() {
	if w.dir != nil {
		w.dir.Close()
		w.dir = nil
	}
}

// openParent opens the existing directory of a file. It is resolved by the root and so cannot be outside.
func (w *writer) openParent(key dirKey) (int, error) {
	if w.dir == nil || w.near != key {
		w.forget()
		dir, err := key.root.OpenFile(key.rel, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return 0, err
		}
		w.dir, w.near = dir, key
	}
	return int(w.dir.Fd()), nil
}

// make creates a file, and fill writes its content. It uses a bare descriptor, because an os.File (poller, finalizer)
// takes a considerable part of the time of a small file.
func (w *writer) make(p pending, fill func(descriptor) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("unpack %s: %w", p.rel, err)
		}
	}()
	dir, err := w.openParent(dirKey{p.root, path.Dir(p.rel)})
	if err != nil {
		return err
	}
	fd, err := create(dir, path.Base(p.rel))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if err := fill(descriptor(fd)); err != nil {
		return err
	}
	if !w.owner.isDefault() {
		if err := unix.Fchown(fd, w.owner.uid, w.owner.gid); err != nil {
			return fmt.Errorf("set owner: %w", err)
		}
	}
	// After chown, which clears setuid and setgid bits.
	if err := unix.Fchmod(fd, bits(p.mode)); err != nil {
		return fmt.Errorf("set mode: %w", err)
	}
	return setTime(fd, p.mtime)
}

// descriptor is an open file to write to.
type descriptor int

func (d descriptor) Write(p []byte) (written int, err error) {
	for written < len(p) {
		n, err := unix.Write(int(d), p[written:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return written, fmt.Errorf("write: %w", err)
		}
		written += n
	}
	return written, nil
}

// begin starts writeback (sync_file_range) without waiting for it.
func (d descriptor) begin() { _ = unix.SyncFileRange(int(d), 0, 0, unix.SYNC_FILE_RANGE_WRITE) }

// bits converts a mode for the kernel.
func bits(mode fs.FileMode) uint32 {
	b := uint32(mode.Perm())
	for flag, bit := range map[fs.FileMode]uint32{fs.ModeSetuid: unix.S_ISUID, fs.ModeSetgid: unix.S_ISGID,
		fs.ModeSticky: unix.S_ISVTX} {
		if mode&flag != 0 {
			b |= bit
		}
	}
	return b
}

// create creates a file. It replaces an earlier entry with the same name, as tar does, and never writes through it,
// because it could be a link.
func create(dir int, base string) (int, error) {
	for replaced := false; ; replaced = true {
		fd, err := unix.Openat(dir, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err == nil || replaced || err != unix.EEXIST {
			return fd, err
		}
		// Fails for a directory.
		if err := unix.Unlinkat(dir, base, 0); err != nil {
			return -1, err
		}
	}
}

// setTime sets the modification time, which make compares in the sources of a package.
func setTime(fd int, t time.Time) error {
	if t.IsZero() || t.Unix() < 0 {
		return nil
	}
	spec := unix.NsecToTimespec(t.UnixNano())
	times := [2]unix.Timespec{spec, spec}
	// utimensat(2) with a NULL path, by descriptor; package unix only has the way through /proc.
	if _, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0,
		0); errno != 0 {
		return fmt.Errorf("set time: %w", errno)
	}
	return nil
}

// contextReader fails when its context has ended.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}
