package mount

import (
	"testing"

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
		{[]string{"defaults", "nofail", "x-systemd.automount", "comment=x", " ", "_netdev"}, 0, ""},
		{[]string{"noexec,nosuid", "barrier=0"}, unix.MS_NOEXEC | unix.MS_NOSUID, "barrier=0"},
	} {
		flags, data := ParseOptions(c.options)
		if flags != c.flags || data != c.data {
			t.Errorf("ParseOptions(%q) = %#x, %q; want %#x, %q", c.options, flags, data, c.flags, c.data)
		}
	}
}

// Each pair must cancel itself; a swapped row would not.
func TestOptionPairs(t *testing.T) {
	for _, pair := range [][2]string{{"ro", "rw"}, {"nosuid", "suid"}, {"nodev", "dev"}, {"noexec", "exec"}, {"sync", "async"},
		{"noatime", "atime"}, {"nodiratime", "diratime"}, {"relatime", "norelatime"}, {"strictatime", "nostrictatime"},
		{"lazytime", "nolazytime"}, {"silent", "loud"}, {"mand", "nomand"}} {
		if flags, _ := ParseOptions([]string{pair[0]}); flags == 0 {
			t.Errorf("%s sets nothing", pair[0])
		}
		if flags, _ := ParseOptions(pair[:]); flags != 0 {
			t.Errorf("%s then %s leaves %#x", pair[0], pair[1], flags)
		}
	}
}

func TestVisibleIsTheTopmost(t *testing.T) {
	all := []Entry{{Target: "/a", Source: "lower"}, {Target: "/b", Source: "other"}, {Target: "/a", Source: "upper"}}
	if e, ok, _ := visible(all, "/a"); !ok || e.Source != "upper" {
		t.Errorf("visible = %+v, %v; want the upper one", e, ok)
	}
	if _, ok, _ := visible(all, "/c"); ok {
		t.Error("something is visible where nothing is mounted")
	}
}
