//go:build root || bench || nightly

package storage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/internal/looptest"
	"cambium/internal/managedfs"
	"cambium/internal/vcap"
	"cambium/platform/device"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/internal/machine"
)

// bench holds an agent's disks, with a base directory and loop devices.
type bench struct {
	*machine.Machine
	*Ephemeral
	*Persistent
	*Migration
	t       testing.TB
	records *records
	log     *bytes.Buffer
	// short has the reasons why file systems are smaller than their disks, by their directories.
	short map[string]string
}

const gib = 1 << 30

func newBench(t testing.TB, o Options) *bench {
	t.Helper()
	looptest.Require(t)
	base := filepath.Join(t.TempDir(), "vcap")
	for _, dir := range []string{base, filepath.Join(base, "bosh"), filepath.Join(base, "instance")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b := &bench{t: t, records: &records{disks: map[string]settings.PersistentDisk{}}, log: &bytes.Buffer{},
		short: map[string]string{}}
	logger := logrus.New()
	logger.SetOutput(b.log)
	resolver, err := device.New(device.Options{TimeoutScale: 0.02}, logger.WithField("part", "device"))
	if err != nil {
		t.Fatal(err)
	}
	d := New(Config{Dirs: vcap.New(base), Options: o, Resolver: resolver, Known: b.records, Program: "/proc/self/exe",
		Shortfall: func(dir, text string) { b.short[dir] = text }, Log: logger.WithField("part", "disks")})
	b.Machine, b.Ephemeral, b.Persistent, b.Migration = d.Persistent.Machine, d.Ephemeral, d.Persistent, d.Migration
	b.Memory = func() (int64, error) { return 64 << 20, nil }
	b.InContainer = func() bool { return false }
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", b.log)
		}
	})
	return b
}

// disk creates a loop device and, unless cid is empty, records it as a persistent disk.
func (b *bench) disk(size int64, cid string) *looptest.Device {
	b.t.Helper()
	dev := looptest.New(b.t, size)
	if cid != "" {
		b.records.disks[cid] = settings.PersistentDisk{CID: cid, Hint: settings.DiskHint{Path: dev.Path}}
	}
	return dev
}

func (b *bench) ok(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// did checks the error of a function that also returns changes.
func (b *bench) did(_ []Change, err error) {
	b.t.Helper()
	b.ok(err)
}

// only returns the error and drops the changes.
func only(_ []Change, err error) error { return err }

func (b *bench) disks() Disks {
	return Disks{Ephemeral: b.Ephemeral, Persistent: b.Persistent, Migration: b.Migration}
}

// unmounted unmounts a disk and checks the reply to the Director.
func (b *bench) unmounted(cid, want string) {
	b.t.Helper()
	message, err := b.Unmount(context.Background(), cid)
	if err != nil || message != want {
		b.t.Fatalf("Unmount = %q, %v; want %q", message, err, want)
	}
}

// fails checks that err is set and contains all texts.
func (b *bench) fails(err error, texts ...string) {
	b.t.Helper()
	if err == nil {
		b.t.Fatalf("no error, want one with %q", texts)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			b.t.Errorf("error %q, want it to contain %q", err, text)
		}
	}
}

// tool runs a program on a device that the guard accepts.
func tool(t testing.TB, dev, name string, args ...string) string {
	t.Helper()
	if err := looptest.Guard(dev); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// mkfs creates a file system on a device that the guard accepts.
func mkfs(t testing.TB, dev, kind string, args ...string) {
	t.Helper()
	f, ok := managedfs.Find(kind)
	if !ok {
		t.Fatalf("%s is not a file system that the agent makes", kind)
	}
	tool(t, dev, f.Make[0], slices.Concat(f.Make[1:], args, []string{dev})...)
}

// filledBy calls fill with the mounted file system of a device.
func filledBy(t testing.TB, dev, kind string, fill func(dir string)) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "fill")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := mount.MountDevice(context.Background(), dev, dir, kind, nil); err != nil {
		t.Fatal(err)
	}
	fill(dir)
	if err := mount.Unmount(context.Background(), dir); err != nil {
		t.Fatal(err)
	}
}

// checksum returns a checksum of a device's data, which must not change while it is not mounted. Holes are skipped,
// since the images are large and empty.
func checksum(t testing.TB, d *looptest.Device) string {
	t.Helper()
	dev, err := os.OpenFile(d.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(dev.Sync(), dev.Close()); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(d.Image)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	for at := int64(0); ; {
		from, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return fmt.Sprintf("%x", sum.Sum(nil))
		}
		if err != nil {
			t.Fatal(err)
		}
		if at, err = f.Seek(from, unix.SEEK_HOLE); err != nil {
			t.Fatal(err)
		}
		block := make([]byte, 4096)
		for o := from / 4096 * 4096; o < at; o += 4096 {
			if _, err := f.ReadAt(block, o); err != nil && err != io.EOF {
				t.Fatal(err)
			}
			// The exact offsets of holes depend on the file system.
			if !bytes.Equal(block, zeros[:]) {
				fmt.Fprintf(sum, "%d:%s", o, block)
			}
		}
	}
}

var zeros [4096]byte

// sameDir reports whether two paths lead to the same directory.
func sameDir(a, b string) (bool, error) {
	ia, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	ib, err := os.Stat(b)
	return err == nil && os.SameFile(ia, ib), err
}

func mountedSource(t testing.TB, target string) string {
	t.Helper()
	e, ok, err := mount.At(target)
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		return ""
	}
	return e.Source
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func numberOf(t testing.TB, path string) blkdev.Number {
	t.Helper()
	n, err := blkdev.NumberOf(path)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (b *bench) setupEphemeral(path string, swap *uint64) error {
	var hint *settings.DiskHint
	if path != "" {
		hint = &settings.DiskHint{Path: path}
	}
	return only(b.Setup(context.Background(), hint, swap, "agent-1", true))
}

// usedEphemeral creates an ephemeral disk, no longer in use, with a file of the agent.
func (b *bench) usedEphemeral(t testing.TB, name, content string) *looptest.Device {
	t.Helper()
	dev := b.disk(256<<20, "")
	b.ok(b.setupEphemeral(dev.Path, nil))
	write(t, filepath.Join(b.Dirs.Data(), name), content)
	b.ok(mount.Unmount(context.Background(), b.Dirs.Data()))
	b.ok(looptest.SwapOff(dev.Path + "p1"))
	return dev
}

// killedAt calls do, which ends at the given step as if the agent were killed there.
func (b *bench) killedAt(step string, do func()) {
	b.CrashPoint = func(name string) {
		if name == step {
			panic("killed")
		}
	}
	defer func() {
		_ = recover()
		b.CrashPoint = func(string) {}
	}()
	do()
}
