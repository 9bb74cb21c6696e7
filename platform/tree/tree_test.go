package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"cambium/internal/vcap"
	"cambium/platform"
	"cambium/platform/platformtest"
)

// machine returns the state of a new stemcell.
func machine() State {
	dir := Found{Exists: true, Type: fs.ModeDir, Mode: 0o755}
	return State{
		Users:  map[string]int{"root": 0, "vcap": 1000, "_chrony": 110},
		Groups: map[string]int{"root": 0, "vcap": 1000, "syslog": 105, "utmp": 43, "_chrony": 111},
		Paths: map[string]Found{"/tmp": dir, "/var/tmp": dir, "/var/log": dir, "/opt": dir, "/var/opt": dir, "/home": dir,
			"/dev/shm": {Exists: true, Type: fs.ModeDir, Mode: 0o777 | fs.ModeSticky, MountRoot: true, Tmpfs: true,
				Flags: NoDev | NoSuid},
			"/var/vcap/data": {Exists: true, Type: fs.ModeDir, Mode: 0o755, MountRoot: true}},
	}
}

func TestPlanOnAFreshMachine(t *testing.T) {
	changes, err := Diff(machine(), Table(vcap.New(""),
		Options{JobDirTmpfs: true, SettingsTmpfs: true, RunDirSize: "32m"}))
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(platformtest.Texts(changes), "\n")
	want, err := os.ReadFile("testdata/fresh.golden")
	if err != nil {
		t.Fatal(err)
	}
	if got+"\n" != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestPlanHasEveryRow(t *testing.T) {
	d := vcap.New("")
	row := func(e Entry) string {
		return fmt.Sprintf("%d %s %s %s:%s %s %s %s", e.Kind, e.Path, octal(e.Mode), e.Owner.User, e.Owner.Group, e.Source,
			e.Size, e.Flags)
	}
	have := make(map[string]bool)
	for _, e := range Table(d, Options{JobDirTmpfs: true, SettingsTmpfs: true}) {
		have[row(e)] = true
	}
	for _, want := range []Entry{
		{Path: "/var/vcap/data/sys", Mode: 0o750, Owner: rootVcap},
		{Path: "/var/vcap/data/sys/log", Mode: 0o750, Owner: rootVcap},
		{Path: "/var/vcap/data/sys/run", Kind: Tmpfs, Size: "16m", Mode: 0o770 | fs.ModeSticky, Owner: rootVcap},
		{Path: "/var/vcap/sys", Kind: Symlink, Source: "/var/vcap/data/sys"},
		{Path: "/var/vcap/data/jobs", Kind: Tmpfs, Size: "100m", Mode: 0o750, Owner: rootVcap},
		{Path: "/var/vcap/data/sensitive_blobs", Kind: Tmpfs, Size: "100m", Mode: 0o700, Owner: rootVcap},
		{Path: "/var/vcap/data/packages", Mode: 0o755, Owner: rootVcap},
		{Path: "/var/vcap/data/dynamic_disks", Mode: 0o700, Owner: rootVcap},
		{Path: "/var/vcap/data/blobs", Mode: 0o700, Owner: rootVcap},
		{Path: "/var/vcap/data/tmp", Mode: 0o755, Owner: rootOnly},
		{Path: "/var/vcap/data/root_tmp", Mode: 0o777 | fs.ModeSticky, Owner: rootVcap},
		{Path: "/tmp", Kind: Bind, Source: "/var/vcap/data/root_tmp", Flags: NoDev | NoSuid | NoExec},
		{Path: "/var/tmp", Kind: Bind, Source: "/var/vcap/data/root_tmp", Flags: NoDev | NoSuid | NoExec},
		{Path: "/var/vcap/data/root_log", Mode: 0o771, Owner: Owner{"root", "syslog"}},
		{Path: "/var/vcap/data/root_log/audit", Mode: 0o750, Owner: Owner{User: "root"}},
		{Path: "/var/vcap/data/root_log/sysstat", Mode: 0o755, Owner: rootOnly},
		{Path: "/var/vcap/data/root_log/btmp", Kind: File, Mode: 0o600, Owner: Owner{"root", "utmp"}},
		{Path: "/var/vcap/data/root_log/wtmp", Kind: File, Mode: 0o664, Owner: Owner{"root", "utmp"}},
		{Path: "/var/vcap/data/root_log/lastlog", Kind: File, Mode: 0o664, Owner: Owner{"root", "utmp"}},
		{Path: "/var/vcap/data/root_log/chrony", Mode: 0o700, Owner: Owner{"_chrony", "_chrony"}},
		{Path: "/var/log", Kind: Bind, Source: "/var/vcap/data/root_log", Flags: NoDev | NoSuid | NoExec},
		{Path: "/opt", Kind: Bind, Source: "/var/vcap/data/root_opt", Flags: NoDev},
		{Path: "/var/opt", Kind: Bind, Source: "/var/vcap/data/root_var_opt", Flags: NoDev},
		{Path: "/home", Kind: Bind, Source: "/home", Flags: NoDev | NoSuid},
		{Path: "/dev/shm", Kind: Mounted, Flags: NoDev | NoSuid | NoExec},
		{Path: "/run/shm", Kind: Mounted, Flags: NoDev | NoSuid | NoExec},
		{Path: "/var/vcap/bosh/settings", Kind: Tmpfs, Size: "16m", Mode: 0o700, Owner: rootOnly,
			Flags: NoDev | NoSuid | NoExec},
		{Path: "/var/vcap/bosh/canrestart", Kind: Tmpfs, Size: "16m", Mode: 0o740, Owner: rootVcap,
			Flags: NoDev | NoSuid | NoExec},
		{Path: "/var/vcap/store", Mode: 0o700, Owner: rootOnly},
		{Path: "/var/vcap/bosh_ssh", Mode: 0o755, Owner: rootOnly},
		{Path: "/var/vcap/instance/disks", Mode: 0o755, Owner: rootOnly},
	} {
		if !have[row(want)] {
			t.Errorf("no row %s", row(want))
		}
	}
	for _, e := range Table(d, Options{UseDefaultTmpDir: true}) {
		if e.Kind == Bind && e.Group == Temp {
			t.Errorf("%s is bound although the stemcell wants the default", e.Path)
		}
		if e.Kind == Tmpfs && e.Path != d.SysRun() {
			t.Errorf("%s is in memory without being asked for", e.Path)
		}
	}
}

func TestDiff(t *testing.T) {
	dir := func(mode fs.FileMode, uid, gid int) Found {
		return Found{Exists: true, Type: fs.ModeDir, Mode: mode, UID: uid, GID: gid}
	}
	link := func(to string) Found { return Found{Exists: true, Type: fs.ModeSymlink, LinkTo: to} }
	mounted := Found{Exists: true, Type: fs.ModeDir, MountRoot: true}
	flagged := func(flags Flags) Found {
		found := mounted
		found.Flags = flags
		return found
	}
	memory := func(dev, ino uint64) Found {
		found := mounted
		found.Tmpfs, found.Dev, found.Ino = true, dev, ino
		return found
	}
	shared, linked := Entry{Mode: 0o750, Owner: rootVcap}, Entry{Kind: Symlink, Source: "/y"}
	unowned := Entry{Mode: 0o750, Owner: Owner{"root", "nobody-here"}, OrRoot: true}
	for _, tc := range []struct {
		name string
		have Found
		want Entry
		do   []string
		err  string
	}{
		{"directory as wanted", dir(0o750, 0, 1000), shared, nil, ""},
		{"directory too open", dir(0o777, 0, 1000), shared, []string{"set mode of /x to 0750"}, ""},
		{"directory of another owner", dir(0o750, 5, 1000), shared, []string{"set owner of /x to root:vcap"}, ""},
		{"group of another program", dir(0o750, 0, 4), Entry{Mode: 0o750, Owner: Owner{User: "root"}}, nil, ""},
		{"job's own mode stays", dir(0o700, 5, 5), Entry{Mode: 0o750, Owner: rootVcap, CreateOnly: true}, nil, ""},
		{"setgid bit is not wanted", dir(0o750|fs.ModeSetgid, 0, 1000), shared, []string{"set mode of /x to 0750"}, ""},
		{"file where a directory belongs", Found{Exists: true}, Entry{Mode: 0o750}, nil, "/x is a file"},
		{"unknown owner", Found{}, Entry{Mode: 0o750, Owner: Owner{"root", "nobody-here"}}, nil, `no group "nobody-here"`},
		{"unknown owner, root will do", Found{}, unowned, []string{"make directory /x, mode 0750"}, ""},
		{"only for a user that is not there", Found{}, Entry{Mode: 0o750, IfUser: "nobody-here"}, nil, ""},
		{"no link yet", Found{}, linked, []string{"link /x to /y"}, ""},
		{"link as wanted", link("/y"), linked, nil, ""},
		{"link elsewhere", link("/z"), linked, []string{"link /x to /y"}, ""},
		{"empty directory gives way to a link", Found{Exists: true, Type: fs.ModeDir, Empty: true}, linked,
			[]string{"link /x to /y"}, ""},
		{"content is kept", dir(0o755, 0, 0), linked, []string{"set aside what is at /x", "link /x to /y"}, ""},
		{"file is kept", Found{Exists: true}, linked, []string{"set aside what is at /x", "link /x to /y"}, ""},
		{"mount point is not replaced", mounted, linked, nil, "is a mount point"},
		{"bound without flags", flagged(NoDev), Entry{Kind: Bind, Source: "/x", Flags: NoDev | NoSuid},
			[]string{"set mount flags of /x to nodev,nosuid"}, ""},
		{"bound with more flags", flagged(NoDev | NoExec), Entry{Kind: Bind, Source: "/x", Flags: NoDev}, nil, ""},
		{"a foreign volume", mounted, Entry{Kind: Bind, Source: "/y", Flags: NoDev},
			[]string{"set mount flags of /x to nodev"}, ""},
		{"a foreign tmpfs", memory(1, 2), Entry{Kind: Bind, Source: "/y", Flags: NoDev},
			[]string{"bind /y to /x (nodev)"}, ""},
		{"bound from memory already", memory(3, 4), Entry{Kind: Bind, Source: "/same"}, nil, ""},
		{"not a mount, no flags", dir(0o755, 0, 0), Entry{Kind: Mounted, Flags: NoDev}, nil, ""},
		{"memory, mode of an older agent", Found{Exists: true, Type: fs.ModeDir, MountRoot: true, Tmpfs: true,
			Mode: 0o777 | fs.ModeSticky, GID: 1000},
			Entry{Kind: Tmpfs, Size: "16m", Mode: 0o770 | fs.ModeSticky, Owner: rootVcap}, []string{"set mode of /x to 1770"},
			""},
		{"memory, other mount there", mounted, Entry{Kind: Tmpfs, Size: "16m"}, nil, ""},
		{"memory, smuggled option", Found{}, Entry{Kind: Tmpfs, Size: "16m,mode=0777"}, nil, `size "16m,mode=0777"`},
		{"memory, no size", Found{}, Entry{Kind: Tmpfs}, nil, `size ""`},
		{"memory on a file", Found{Exists: true}, Entry{Kind: Tmpfs, Size: "50%"}, nil, "not a directory to mount on"},
		{"nothing to set", Found{}, Entry{Kind: Existing, Mode: 0o660}, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			have := machine()
			have.Paths["/x"] = tc.have
			have.Paths["/same"] = Found{Exists: true, Type: fs.ModeDir, Dev: 3, Ino: 4}
			tc.want.Path = "/x"
			got, err := Diff(have, []Entry{tc.want})
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("got error %v, want %q", err, tc.err)
			}
			if !reflect.DeepEqual(platformtest.Texts(got), tc.do) {
				t.Errorf("got %q, want %q", platformtest.Texts(got), tc.do)
			}
		})
	}
}

// TestNothingIsDoneInParts: an error for one entry prevents all changes, since other entries may be below it.
func TestNothingIsDoneInParts(t *testing.T) {
	have := State{Paths: map[string]Found{"/file": {Exists: true}}}
	want := []Entry{{Path: "/first", Mode: 0o755}, {Path: "/file", Mode: 0o755}, {Path: "/file/below", Mode: 0o755}}
	got, err := Diff(have, want)
	if err == nil || !strings.Contains(err.Error(), "/file is a file") || len(got) != 0 {
		t.Errorf("got %q, %v; want no change, and why", got, err)
	}
}

func TestDiffKnowsThatAFreshMountIsEmpty(t *testing.T) {
	have := machine()
	have.Paths["/m"] = Found{Exists: true, Type: fs.ModeDir}
	have.Paths["/m/job"] = Found{Exists: true, Type: fs.ModeDir, Mode: 0o770}
	got, err := Diff(have, []Entry{{Path: "/m", Kind: Tmpfs, Size: "1m", Mode: 0o755}, {Path: "/m/job", Mode: 0o770}})
	want := []string{"mount tmpfs at /m, size 1m, mode 0755", "make directory /m/job, mode 0770"}
	if err != nil || !reflect.DeepEqual(platformtest.Texts(got), want) {
		t.Errorf("got %q, %v, want %q", platformtest.Texts(got), err, want)
	}
}

func TestWarnings(t *testing.T) {
	have := machine()
	have.Paths["/tmp"] = Found{Exists: true, Type: fs.ModeDir, MountRoot: true, Ino: 1}
	delete(have.Groups, "syslog")
	got := strings.Join(Warnings(have, Table(vcap.New(""), Options{})), "\n")
	for _, want := range []string{"mounted at /tmp; it is left alone", `no group "syslog"`} {
		if !strings.Contains(got, want) {
			t.Errorf("got %q, want %q in it", got, want)
		}
	}
}

func TestConvergeWithoutPrivileges(t *testing.T) {
	root := t.TempDir()
	k := &Kernel{Root: root, Log: platformtest.Quiet()}
	old := filepath.Join(root, "base/sys")
	if err := os.MkdirAll(old, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(old, "worth"), []byte("keeping"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/gone", filepath.Join(root, "base/other")); err != nil {
		t.Fatal(err)
	}
	want := []Entry{
		{Path: "/base/data/sys", Mode: 0o750},
		{Path: "/base/sys", Kind: Symlink, Source: "/base/data/sys"},
		{Path: "/base/other", Kind: Symlink, Source: "/base/data"},
		{Path: "/base/data/wtmp", Kind: File, Mode: 0o664},
		{Path: "/base/data/tmp", Mode: 0o777 | fs.ModeSticky},
	}
	changes := platformtest.Converge(t, k, Diff, want)
	if len(changes) != 6 {
		t.Errorf("got %q, want six changes", changes)
	}
	if got, err := os.ReadFile(filepath.Join(root, "base/sys.set-aside-1/worth")); err != nil || string(got) != "keeping" {
		t.Errorf("what was in the way is lost: %q, %v", got, err)
	}
	for path, target := range map[string]string{"base/sys": "/base/data/sys", "base/other": "/base/data"} {
		if got, err := os.Readlink(filepath.Join(root, path)); err != nil || got != target {
			t.Errorf("%s: got link to %q, %v, want %q", path, got, err, target)
		}
	}
	for path, mode := range map[string]fs.FileMode{"base/data/sys": fs.ModeDir | 0o750, "base/data/wtmp": 0o664,
		"base/data/tmp": fs.ModeDir | fs.ModeSticky | 0o777} {
		if info, err := os.Lstat(filepath.Join(root, path)); err != nil || info.Mode() != mode {
			t.Errorf("%s: got %v, %v, want %v", path, info, err, mode)
		}
	}
}

// TestLinksOfOthersAreNotFollowed: users other than root can write to some directories. A link that they create must
// not make root change another file.
func TestLinksOfOthersAreNotFollowed(t *testing.T) {
	root := t.TempDir()
	victim := filepath.Join(root, "shadow")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "dir", "raced"} {
		if err := os.Symlink(victim, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	k := &Kernel{Root: root, Log: platformtest.Quiet()}
	for _, e := range []Entry{{Path: "/file", Kind: File, Mode: 0o664, NoFollow: true},
		{Path: "/dir", Mode: 0o755, NoFollow: true}} {
		_, err := platform.Converge(t.Context(), k, Diff, []Entry{e})
		if err == nil || !strings.Contains(err.Error(), "symbolic link") {
			t.Errorf("%s: got %v, want the link refused", e.Path, err)
		}
	}
	raced := Entry{Path: "/raced", Kind: File, Mode: 0o664}
	for _, c := range []Change{{Op: OpMake, Entry: raced, UID: -1, GID: -1},
		{Op: OpSetMode, Entry: Entry{Path: "/raced", Mode: 0o664, NoFollow: true}}} {
		if _, err := k.Apply(t.Context(), []Change{c}); err == nil || !strings.Contains(err.Error(), "symbolic link") {
			t.Errorf("%s: got %v, want the link refused", c, err)
		}
	}
	if info, err := os.Stat(victim); err != nil || info.Mode() != 0o600 {
		t.Errorf("got %v, %v, want what the links lead to untouched", info.Mode(), err)
	}
	d := vcap.New("")
	for _, e := range append(JobDirs(d, []string{"x"}), Select(Table(d, Options{}), Log)...) {
		if strings.HasPrefix(e.Path, d.RootLog()+"/") != e.NoFollow && !strings.HasSuffix(e.Path, "/x") {
			t.Errorf("%s: follows links %v", e.Path, !e.NoFollow)
		}
	}
}

// TestReplacedJobDirs: whatever a job puts in place of its directories causes no error and is not changed.
func TestReplacedJobDirs(t *testing.T) {
	k := &Kernel{Root: t.TempDir(), Log: platformtest.Quiet()}
	d := vcap.New("/base")
	for _, dir := range []string{d.SysLog(), d.SysRun(), "/elsewhere"} {
		if err := os.MkdirAll(k.joinRoot(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("/elsewhere", k.joinRoot(d.SysRun()+"/x")),
		os.WriteFile(k.joinRoot(d.SysLog()+"/x"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	want := JobDirs(d, []string{"x"})
	for i := range want {
		want[i].Owner = Owner{} // no accounts here
	}
	have, err := k.Observe(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if texts := strings.Join(Warnings(have, want), "\n"); !strings.Contains(texts, d.SysRun()+"/x is a symbolic link") ||
		!strings.Contains(texts, d.SysLog()+"/x is a file") {
		t.Errorf("warned %q", texts)
	}
	for range 2 {
		if _, err := platform.Converge(t.Context(), k, Diff, want); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(k.joinRoot("/elsewhere")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("what the link leads to has become %v, %v", info, err)
	}
	if info, err := os.Stat(k.joinRoot(d.Data() + "/x")); err != nil || info.Mode().Perm() != 0o770 {
		t.Errorf("the directory that was missing: %v, %v", info, err)
	}
	// Replaced between the look and the change.
	raced := Change{Op: OpMake, Entry: want[1], UID: -1, GID: -1}
	if _, err := k.Apply(t.Context(), []Change{raced}); err != nil {
		t.Error(err)
	}
}

func TestJobDirs(t *testing.T) {
	d := vcap.New("")
	changes, err := Diff(machine(), JobDirs(d, []string{"router"}))
	want := []string{"make directory /var/vcap/data/sys/log/router, mode 0770",
		"make directory /var/vcap/data/sys/run/router, mode 0770", "make directory /var/vcap/data/router, mode 0770"}
	if err != nil || !reflect.DeepEqual(platformtest.Texts(changes), want) {
		t.Errorf("got %q, %v, want %q", platformtest.Texts(changes), err, want)
	}
	for _, job := range []string{"../../../../etc", "..", ".", "", "a/../../b"} {
		if changes, err := Diff(machine(), JobDirs(d, []string{job})); err == nil || len(changes) != 0 {
			t.Errorf("job %q: got %q, %v, want an error", job, platformtest.Texts(changes), err)
		}
	}
}
