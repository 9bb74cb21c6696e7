package mount

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode"

	"golang.org/x/sys/unix"
)

func TestParseOptions(t *testing.T) {
	for _, c := range []struct {
		options []string
		flags   uintptr
		data    string
	}{
		{nil, 0, ""},
		{[]string{"noatime", "nodev"}, unix.MS_NOATIME | unix.MS_NODEV, ""},
		{[]string{"noatime,data=ordered", "discard"}, unix.MS_NOATIME, "data=ordered,discard"},
		{[]string{"ro", "rw"}, 0, ""},
		{[]string{"defaults", "nofail", "x-systemd.automount", "X-mount.mkdir=0700", "comment=x", " ", "_netdev"}, 0, ""},
		{[]string{"noexec,nosuid", "barrier=0"}, unix.MS_NOEXEC | unix.MS_NOSUID, "barrier=0"},
	} {
		flags, data := parseOptions(c.options)
		if flags != c.flags || data != c.data {
			t.Errorf("ParseOptions(%q) = %#x, %q; want %#x, %q", c.options, flags, data, c.flags, c.data)
		}
	}
}

// TestOptionPairs: both options of a pair together must have no effect, which detects a swapped row.
func TestOptionPairs(t *testing.T) {
	for _, pair := range [][2]string{{"ro", "rw"}, {"nosuid", "suid"}, {"nodev", "dev"}, {"noexec", "exec"},
		{"sync", "async"},
		{"noatime", "atime"}, {"nodiratime", "diratime"}, {"relatime", "norelatime"}, {"strictatime", "nostrictatime"},
		{"lazytime", "nolazytime"}, {"silent", "loud"}, {"mand", "nomand"},
		{"nosymfollow", "symfollow"}, {"iversion", "noiversion"}} {
		if flags, _ := parseOptions([]string{pair[0]}); flags == 0 {
			t.Errorf("%s sets nothing", pair[0])
		}
		if flags, _ := parseOptions(pair[:]); flags != 0 {
			t.Errorf("%s then %s leaves %#x", pair[0], pair[1], flags)
		}
	}
}

// TestReleased: a device that is gone is not in use. One that cannot be opened for other reasons may be.
func TestReleased(t *testing.T) {
	dir := t.TempDir()
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	for source, fails := range map[string]bool{filepath.Join(dir, "gone"): false, loop: true} {
		if released, err := Released(Entry{Source: source}, false); released == fails || (err != nil) != fails {
			t.Errorf("Released of %s = %v, %v", filepath.Base(source), released, err)
		}
	}
}

// TestManyDescriptorsTakeLittleMemory: a job may have a million files open while its descriptors are searched for a
// device.
func TestManyDescriptorsTakeLittleMemory(t *testing.T) {
	const many = 10_000
	for range many {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
	}
	visited, most := 0, uint64(0)
	before := heapInUse()
	found := anyDescriptor("/proc/self", func(string) bool {
		if visited++; visited%1000 == 1 {
			most = max(most, heapInUse())
		}
		return false
	})
	if found || visited < many {
		t.Errorf("visited %d descriptors and found %v; want at least %d and none", visited, found, many)
	}
	if used := int64(most) - int64(before); used > 128<<10 {
		t.Errorf("%d KiB in use for %d descriptors, want at most 128", used>>10, many)
	} else {
		t.Logf("%d KiB in use for %d descriptors", used>>10, many)
	}
	if !anyDescriptor("/proc/self", func(link string) bool { to, _ := os.Readlink(link); return to == "/dev/null" }) {
		t.Error("an open file was not found")
	}
}

func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestNamesOfBusyProcessesAreHarmless: the names of a job's process or file must not control the terminal on which a
// busy disk is reported.
func TestNamesOfBusyProcessesAreHarmless(t *testing.T) {
	for _, p := range []Process{
		{PID: 7, Command: "\x1b]0;x\a", Path: "/var/vcap/store/\x1b[2J\nready"},
		{PID: 7, Command: "a\x9bm", Path: "/\u202eb", Namespace: "mnt:[1]"},
		{Command: "/dev/sdb\r", Path: "/mnt\x1b"},
	} {
		if got := p.String(); strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("got %q", got)
		}
	}
}
