package configdrive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/diskfs/go-diskfs/filesystem"
	"github.com/sirupsen/logrus"

	"cambium/infrastructure/internal/source"
	"cambium/internal/fattest"
	"cambium/internal/skiptest"
)

func quiet() *logrus.Entry {
	l := logrus.New()
	l.Out = io.Discard
	return logrus.NewEntry(l)
}

var files = map[string]string{
	"ec2/latest/meta-data.json": `{"instance-id":"i-1","public-keys":{"0":{"openssh-key":"ssh-rsa A"}}}`,
	"ec2/latest/user-data":      `{"agent_id":"drive"}`,
	"settings":                  `{"agent_id":"other"}`,
	"env":                       `{"agent_id":"cd"}`,
	"broken":                    "{\"agent_id\":\"canary\",}",
	"empty":                     "",
}

func makeFAT(t testing.TB, label string, content map[string]string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "drive.img")
	fattest.Make(t, out, 2<<20, filesystem.TypeFat12, label, content)
	return out
}

// machine is a root directory with dev, sys and run. Devices are image files.
type machine struct {
	t    testing.TB
	root string
}

func newMachine(t testing.TB) machine {
	m := machine{t, t.TempDir()}
	for _, dir := range []string{"dev/disk/by-label", "sys/class/block", "run/udev"} {
		if err := os.MkdirAll(filepath.Join(m.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m machine) write(path, content string) {
	m.t.Helper()
	full := filepath.Join(m.root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// attach makes an image appear as a device and, unless link is "", as a label link.
func (m machine) attach(name, image, link string) {
	m.t.Helper()
	m.write("sys/class/block/"+name+"/size", "4096\n")
	if err := os.Symlink(image, filepath.Join(m.root, "dev", name)); err != nil {
		m.t.Fatal(err)
	}
	if link != "" {
		if err := os.Symlink("../../"+name, filepath.Join(m.root, "dev/disk/by-label", link)); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m machine) drive(paths ...string) *Source {
	s := New(Options{DiskPaths: paths, MetaDataPath: "ec2/latest/meta-data.json", UserDataPath: "ec2/latest/user-data",
		Root: m.root, Log: quiet()})
	s.finder.enum.settled.Store(true) // waiting for devices has tests of its own
	return s
}

const byLabel = "/dev/disk/by-label/"

func TestConfigDrive(t *testing.T) {
	image := makeFAT(t, "config-2", files)
	partitioned := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(partitioned, append(make([]byte, 510), 0x55, 0xaa), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name  string
		setup func(machine) *Source
		from  string
	}{
		{"by link", func(m machine) *Source {
			m.attach("sdb", image, "config-2")
			return m.drive(byLabel + "config-2")
		}, byLabel + "config-2"},
		{"by label without a link", func(m machine) *Source {
			m.attach("sdb", image, "")
			return m.drive(byLabel + "config-2")
		}, byLabel + "config-2"},
		{"label in the other case", func(m machine) *Source {
			m.attach("sdb", image, "")
			return m.drive(byLabel + "CONFIG-2")
		}, byLabel + "CONFIG-2"},
		{"by device", func(m machine) *Source { m.attach("sdb", image, ""); return m.drive("/dev/sdb") }, "/dev/sdb"},
		{"by image", func(m machine) *Source { return m.drive(image) }, image},
		{"second path", func(m machine) *Source {
			m.attach("sdb", image, "config-2")
			return m.drive(byLabel+"CONFIG-3", byLabel+"config-2")
		}, byLabel + "config-2"},
		{"first medium without the file", func(m machine) *Source {
			m.attach("sda", makeFAT(t, "first", map[string]string{"x": "y"}), "first")
			m.attach("sdb", image, "config-2")
			return m.drive(byLabel+"first", byLabel+"config-2")
		}, byLabel + "config-2"},
		{"in a partition", func(m machine) *Source {
			m.attach("sdb", partitioned, "")
			m.attach("sdb1", image, "")
			return m.drive(byLabel + "config-2")
		}, byLabel + "config-2"},
		{"between foreign devices", func(m machine) *Source {
			m.attach("loop0", makeFAT(t, "other", nil), "")
			m.write("dev/zero1", strings.Repeat("\x00", 4096))
			m.write("sys/class/block/zero1/size", "8")
			m.write("sys/class/block/gone/size", "8")
			m.write("sys/class/block/sdz/size", "0")
			m.attach("vdz", image, "")
			return m.drive(byLabel + "config-2")
		}, byLabel + "config-2"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			before, err := os.ReadFile(image)
			if err != nil {
				t.Fatal(err)
			}
			s := c.setup(newMachine(t))
			answer, err := s.Settings(t.Context())
			if err != nil || string(answer.Raw.Reveal()) != files["ec2/latest/user-data"] {
				t.Fatalf("error %v", err)
			}
			if want := "ConfigDrive " + c.from + ":ec2/latest/user-data"; answer.From != want {
				t.Errorf("from %q, want %q", answer.From, want)
			}
			if key, err := s.PublicKey(t.Context()); key != "ssh-rsa A" || err != nil {
				t.Errorf("key %q, %v", key, err)
			}
			if id, err := s.InstanceID(t.Context()); id != "i-1" || err != nil {
				t.Errorf("instance id %q, %v", id, err)
			}
			if after, err := os.ReadFile(image); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the medium was written to (%v)", err)
			}
		})
	}
}

func TestSettingsPathStandsIn(t *testing.T) {
	image := makeFAT(t, "config-2", files)
	for _, o := range []Options{
		{DiskPaths: []string{image}, SettingsPath: "settings"},
		{DiskPaths: []string{image}, SettingsPath: "settings", UserDataPath: "not/there"},
	} {
		if answer, err := New(o).Settings(t.Context()); err != nil || string(answer.Raw.Reveal()) != files["settings"] {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestKindsOfFailure(t *testing.T) {
	image := makeFAT(t, "config-2", files)
	circle, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	// Cluster 3 follows cluster 2 follows cluster 3, in the first table after one sector.
	copy(circle[512+3:], []byte{0x03, 0x20, 0x00})
	damagedImage := filepath.Join(t.TempDir(), "damaged.img")
	if err := os.WriteFile(damagedImage, circle, 0o600); err != nil {
		t.Fatal(err)
	}
	m := newMachine(t)
	for _, c := range []struct {
		name string
		o    Options
		kind source.Kind
		text string
	}{
		{"no such label", Options{DiskPaths: []string{byLabel + "x", byLabel + "y"}, UserDataPath: "a"},
			source.Definite, "by-label/x: no such medium; /dev/disk/by-label/y: no such medium"},
		{"no paths", Options{UserDataPath: "a"}, source.Definite, "DiskPaths is empty"},
		{"no file named", Options{DiskPaths: []string{image}}, source.Definite, "UserDataPath is empty"},
		{"no such file", Options{DiskPaths: []string{image}, UserDataPath: "a/b"},
			source.Definite, "a/b: file does not exist"},
		{"no file system", Options{DiskPaths: []string{os.Args[0]}, UserDataPath: "a"},
			source.Definite, "no iso9660 or vfat"},
		{"not a device", Options{DiskPaths: []string{"/dev/null"}, UserDataPath: "a"}, source.Definite, "no such medium"},
		{"a directory", Options{DiskPaths: []string{t.TempDir()}, UserDataPath: "a"},
			source.Definite, "neither a block device"},
		{"damaged", Options{DiskPaths: []string{damagedImage}, UserDataPath: "a"}, source.Definite, "damaged"},
		{"bad document", Options{DiskPaths: []string{image}, UserDataPath: "broken"},
			source.NotYetThere, "not valid JSON at line 1"},
		{"empty document", Options{DiskPaths: []string{image}, UserDataPath: "empty"}, source.NotYetThere, "empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Root, c.o.Log = m.root, quiet()
			s := New(c.o)
			s.finder.enum.settled.Store(true)
			_, err := s.Settings(t.Context())
			if err == nil || source.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.text) ||
				strings.Contains(err.Error(), "canary") {
				t.Errorf("error %v of kind %d, want %q of kind %d", err, source.KindOf(err), c.text, c.kind)
			}
		})
	}
	if _, err := m.drive(image).metadata(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := New(Options{DiskPaths: []string{image}}).PublicKey(t.Context()); source.KindOf(err) != source.Definite {
		t.Errorf("no MetaDataPath: error %v, want a final one", err)
	}
	if _, err := New(Options{DiskPaths: []string{image},
		MetaDataPath: "none"}).PublicKey(t.Context()); source.KindOf(err) != source.Definite {
		t.Errorf("no metadata file: error %v, want a final one", err)
	}
}

func TestCD(t *testing.T) {
	plainISO := filepath.Join(t.TempDir(), "env.iso")
	tree := filepath.Join(t.TempDir(), "tree")
	if err := os.MkdirAll(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "env"), []byte(files["env"]), 0o600); err != nil {
		t.Fatal(err)
	}
	// As the vSphere CPI makes it: no extensions, the file is ENV.;1.
	if out, err := exec.Command("genisoimage", "-quiet", "-o", plainISO, tree).CombinedOutput(); err != nil {
		skiptest.Skip(t, fmt.Errorf("genisoimage: %w\n%s", err, out))
	}
	m := newMachine(t)
	m.attach("sr0", plainISO, "")
	cd := NewCD(CDOptions{FileName: "env", Root: m.root, Log: quiet()})
	answer, err := cd.Settings(t.Context())
	if err != nil || string(answer.Raw.Reveal()) != files["env"] || answer.From != "CDROM /dev/sr0:env" {
		t.Fatalf("from %q, %v", answer.From, err)
	}
	if key, err := cd.PublicKey(t.Context()); key != "" || err != nil {
		t.Errorf("key %q, %v; want none", key, err)
	}
	// An image cannot be ejected; that it was tried, and only now, is what counts here.
	if err := answer.Clear(t.Context()); err == nil || !strings.Contains(err.Error(), "eject") {
		t.Errorf("Clear: %v, want a failed eject", err)
	}
	if _, err := cd.Settings(t.Context()); err != nil {
		t.Errorf("second read: %v", err)
	}
	empty := NewCD(CDOptions{FileName: "env", Root: newMachine(t).root, Log: quiet()})
	empty.finder.enum.settled.Store(true)
	if _, err := empty.Settings(t.Context()); source.KindOf(err) != source.Definite {
		t.Errorf("no drive: error %v, want a final one", err)
	}
}

// appearing returns the channel through which the test sends the events of an enumeration.
func appearing(m machine, s *Source) chan struct{} {
	events := make(chan struct{}, 8)
	s.finder.enum.settled.Store(false)
	s.finder.enum.events = func() (<-chan struct{}, func()) { return events, func() {} }
	return events
}

func TestAMissingLabelIsFinalOnceDevicesAreEnumerated(t *testing.T) {
	image := makeFAT(t, "config-2", files)
	ask := func(t *testing.T, s *Source) (time.Duration, error) {
		start := time.Now()
		_, err := s.Settings(t.Context())
		return time.Since(start), err
	}
	t.Run("nothing appears", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t)
			s := m.drive(byLabel + "config-2")
			appearing(m, s)
			if took, err := ask(t, s); source.KindOf(err) != source.Definite || took != settleQuiet {
				t.Errorf("error %v after %v, want a final one after %v", err, took, settleQuiet)
			}
			if took, err := ask(t, s); source.KindOf(err) != source.Definite || took != 0 {
				t.Errorf("asked again: error %v after %v, want one at once", err, took)
			}
		})
	})
	t.Run("it appears while waited for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t)
			s := m.drive(byLabel + "config-2")
			events := appearing(m, s)
			time.AfterFunc(700*time.Millisecond, func() { events <- struct{}{} }) // another disk
			time.AfterFunc(1500*time.Millisecond, func() {
				m.attach("sdb", image, "")
				events <- struct{}{}
			})
			if took, err := ask(t, s); err != nil || took != 1500*time.Millisecond {
				t.Errorf("error %v after %v, want the settings after 1.5s", err, took)
			}
		})
	})
	t.Run("udev is busy", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t)
			m.write("run/udev/queue", "")
			s := m.drive(byLabel + "config-2")
			events := appearing(m, s)
			time.AfterFunc(4*time.Second, func() {
				m.attach("sdb", image, "config-2")
				os.Remove(filepath.Join(m.root, "run/udev/queue"))
				events <- struct{}{}
			})
			if took, err := ask(t, s); err != nil || took != 4*time.Second {
				t.Errorf("error %v after %v, want the settings after 4s", err, took)
			}
		})
	})
	t.Run("udev is busy for ever", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t)
			m.write("run/udev/queue", "")
			s := m.drive(byLabel + "config-2")
			appearing(m, s)
			if took, err := ask(t, s); source.KindOf(err) != source.Definite || took != settleBound {
				t.Errorf("error %v after %v, want a final one after %v", err, took, settleBound)
			}
		})
	})
	t.Run("the machine has been up for long", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t)
			m.write("proc/uptime", "130.52 200.10\n")
			s := m.drive(byLabel + "config-2")
			appearing(m, s)
			if took, err := ask(t, s); source.KindOf(err) != source.Definite || took != 0 {
				t.Errorf("error %v after %v, want a final one at once", err, took)
			}
		})
	})
	t.Run("events without end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t)
			s := m.drive(byLabel + "config-2")
			events := appearing(m, s)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				for ctx.Err() == nil {
					select {
					case events <- struct{}{}:
					case <-ctx.Done():
					}
					select {
					case <-time.After(300 * time.Millisecond):
					case <-ctx.Done():
					}
				}
			}()
			took, err := ask(t, s)
			cancel()
			if source.KindOf(err) != source.Definite || took > settleBound+time.Second {
				t.Errorf("error %v after %v, want a final one after %v", err, took, settleBound)
			}
		})
	})
}

func TestRealEventsAreHeard(t *testing.T) {
	m := newMachine(t)
	m.write("run/udev/queue", "")
	e := &enumeration{root: m.root}
	events, stop := e.listen()
	defer stop()
	if err := os.Remove(filepath.Join(m.root, "run/udev/queue")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-events:
	case <-time.After(10 * time.Second):
		t.Error("no event when udev's queue became empty")
	}
}

func TestDeviceThatHangsIsLeftBehindOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r reads
		hang := make(chan struct{})
		var started atomic.Int32
		stuck := func(context.Context) (found, error) {
			started.Add(1)
			<-hang
			return found{from: "late"}, nil
		}
		for range 3 {
			start := time.Now()
			_, err := r.runOrJoin(t.Context(), "key", "/dev/sr0", stuck)
			if took := time.Since(start); took != deviceTimeout || err == nil ||
				err.Error() != "/dev/sr0: no answer from the device in 10s" {
				t.Errorf("error %v after %v, want one after %v that names the device", err, took, deviceTimeout)
			}
		}
		if n := started.Load(); n != 1 {
			t.Errorf("%d reads hang, want one", n)
		}
		if _, err := r.runOrJoin(t.Context(), "other", "/dev/sr1",
			func(context.Context) (found, error) { return found{}, nil }); err != nil {
			t.Errorf("another device: %v", err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		cancel(why)
		if _, err := r.runOrJoin(ctx, "key", "/dev/sr0", stuck); !errors.Is(err, why) {
			t.Errorf("error %v, want the cause", err)
		}
		close(hang)
		synctest.Wait()
		if got, err := r.runOrJoin(t.Context(), "key", "/dev/sr0",
			func(context.Context) (found, error) { return found{from: "now"}, nil }); err != nil || got.from != "now" {
			t.Errorf("when it is back: %v, %v; want a new read", got, err)
		}
	})
}

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{"config-2": "config-2", `MY\x20DISK`: "MY DISK", `a\x`: `a\x`,
		`a\xzz`: `a\xzz`, `\x2f`: "/"} {
		if got := unescape(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
