package configdrive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/infrastructure/internal/source"
	"cambium/internal/medium"
)

// deviceTimeout bounds reads from a device. A read that hangs in the kernel cannot be canceled, and its goroutine
// remains.
const deviceTimeout = 10 * time.Second

// errAbsent is returned for a missing device, which may still appear, and for a drive without a medium.
var errAbsent = errors.New("no such medium")

// finder reads files from media, found by path or label.
type finder struct {
	root  string
	log   *logrus.Entry
	enum  *enumeration
	reads *reads
}

func newFinder(root string, log *logrus.Entry) finder {
	root = cmp.Or(root, "/")
	return finder{root: root, log: log, enum: &enumeration{root: root}, reads: &reads{}}
}

// system returns the path of a device below the root. Paths of image files are unchanged.
func (f finder) system(path string) string {
	if strings.HasPrefix(path, "/dev/") {
		return filepath.Join(f.root, path)
	}
	return path
}

// untilSettled calls try again while it returns errAbsent and devices may still appear.
func (f finder) untilSettled(ctx context.Context, try func(context.Context) error) error {
	w := f.enum.watch()
	defer w.close()
	for {
		err := try(ctx)
		if !errors.Is(err, errAbsent) || !w.next(ctx) {
			return err
		}
	}
}

// found is a file read from a medium.
type found struct {
	body []byte
	from string
}

// readFrom reads the first of the named files from the medium at path.
func (f finder) readFrom(ctx context.Context, path string, names []string) (found, error) {
	key := path + "\x00" + strings.Join(names, "\x00")
	return f.reads.runOrJoin(ctx, key, path, func(ctx context.Context) (found, error) {
		body, from, err := f.readNow(ctx, path, names)
		return found{body, from}, err
	})
}

// reads holds the reads in progress, so that each device has at most one. A device that hangs in the kernel blocks a
// thread, and the agent retries while it waits for settings.
type reads struct {
	mu    sync.Mutex
	under map[string]*read // by key
}

type read struct {
	done  chan struct{} // closed once found and err are set
	found found
	err   error
}

// runOrJoin runs a read, or joins the one in progress, and waits for it for at most deviceTimeout.
func (r *reads) runOrJoin(ctx context.Context, key, path string,
	run func(context.Context) (found, error)) (found, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, deviceTimeout,
		fmt.Errorf("%s: no answer from the device in %v", path, deviceTimeout))
	defer cancel()
	r.mu.Lock()
	now := r.under[key]
	if now == nil {
		now = &read{done: make(chan struct{})}
		if r.under == nil {
			r.under = map[string]*read{}
		}
		r.under[key] = now
		go func() {
			now.found, now.err = run(ctx)
			r.mu.Lock()
			delete(r.under, key)
			r.mu.Unlock()
			close(now.done)
		}()
	}
	r.mu.Unlock()
	select {
	case <-now.done:
		return now.found, now.err
	case <-ctx.Done():
		return found{}, context.Cause(ctx)
	}
}

func (f finder) readNow(ctx context.Context, path string, names []string) (body []byte, from string, err error) {
	label := ""
	if filepath.Base(filepath.Dir(path)) == "by-label" {
		label = unescape(filepath.Base(path))
	}
	d, err := openDevice(f.system(path))
	if errors.Is(err, errAbsent) && label != "" {
		// udev is not running, or has not created the link.
		d, err = f.scan(ctx, label)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, err)
	}
	defer d.Close()
	v, err := medium.Open(ctx, d, d.size)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, damaged(err))
	}
	body, name, err := readVolume(v, names)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, damaged(err))
	}
	return body, describePath(path, name), nil
}

func describePath(path, name string) string { return path + ":" + strings.TrimPrefix(name, "/") }

// damaged marks errors of the medium's content as final. A read error of the device may be temporary.
func damaged(err error) error {
	if errors.Is(err, medium.ErrDamaged) || errors.Is(err, medium.ErrUnknown) {
		return source.Final(err)
	}
	return err
}

// unescape decodes udev's \x20 in link names.
func unescape(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if name[i] == '\\' && i+3 < len(name) && name[i+1] == 'x' {
			var c int
			if _, err := fmt.Sscanf(name[i+2:i+4], "%02x", &c); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(name[i])
	}
	return b.String()
}

// device is an open block device or image file.
type device struct {
	*os.File
	size int64
}

func openDevice(path string) (*device, error) {
	// O_NONBLOCK keeps a FIFO from blocking; the file type is checked below.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist),
		errors.Is(err, unix.ENXIO),
		errors.Is(err, unix.ENODEV),
		errors.Is(err, unix.ENOMEDIUM),
		errors.Is(err, unix.ENOTDIR):
		return nil, source.Final(errAbsent)
	case err != nil:
		return nil, err
	}
	d := &device{File: file}
	if err := d.prepare(path); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (d *device) prepare(path string) error {
	info, err := d.Stat()
	if err != nil {
		return err
	}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		d.size = info.Size()
		return nil
	case mode&fs.ModeDevice == 0 || mode&fs.ModeCharDevice != 0:
		return source.Final(errors.New("neither a block device nor an image file"))
	}
	if err := d.ready(); err != nil {
		return err
	}
	// O_NONBLOCK opens a CD drive without reading the disc: open it again.
	blocking, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOMEDIUM), errors.Is(err, unix.ENXIO):
		return source.Final(errAbsent)
	case err != nil:
		return err
	}
	d.File.Close()
	d.File = blocking
	if d.size, err = d.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	return nil
}

// scan searches all block devices, which include partitions, for a volume with the label.
func (f finder) scan(ctx context.Context, label string) (*device, error) {
	entries, err := os.ReadDir(filepath.Join(f.root, "sys/class/block"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		name := e.Name()
		if skipped(name) || f.empty(name) {
			continue
		}
		path := filepath.Join(f.root, "dev", strings.ReplaceAll(name, "!", "/"))
		d, err := openDevice(path)
		if err != nil {
			continue // in use, or without a medium
		}
		if v, err := medium.Open(ctx, d, d.size); err == nil && v.HasLabel(label) {
			f.log.WithFields(logrus.Fields{"device": path, "label": label}).Info("found a medium by its label")
			return d, nil
		}
		d.Close()
	}
	return nil, source.Final(errAbsent)
}

// skipped reports devices that contain no config drive and are slow or pointless to open.
func skipped(name string) bool {
	for _, prefix := range []string{"ram", "zram", "fd", "nbd", "mtdblock"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// empty reports whether a device has no medium, such as an unused loop device.
func (f finder) empty(name string) bool {
	size, err := os.ReadFile(filepath.Join(f.root, "sys/class/block", name, "size"))
	return err == nil && strings.TrimSpace(string(size)) == "0"
}
