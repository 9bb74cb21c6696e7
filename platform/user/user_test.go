package user

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"cambium/internal/command"
	"cambium/internal/secret"

	"cambium/internal/skiptest"
	"cambium/platform"
	"cambium/platform/platformtest"
	"golang.org/x/sys/unix"
)

// ids returns ids to which the test may change the owner of files: any for root, otherwise its own.
func ids() (uid, gid int) {
	if os.Geteuid() == 0 {
		return 1500, 1500
	}
	return os.Geteuid(), os.Getegid()
}

// stemcell returns a machine in a temporary directory. vcap has the test's own ids, so that files can be given to it.
func stemcell(t *testing.T) *Accounts {
	t.Helper()
	uid, gid := ids()
	a := &Accounts{Root: t.TempDir(), Log: platformtest.Quiet()}
	for name, content := range map[string]string{
		"etc/passwd": fmt.Sprintf("root:x:0:0:root:/root:/bin/bash\n# kept\nbroken line\n"+
			"vcap:x:%d:%d:BOSH:/home/vcap:/bin/bash\n+nis::::::\n", os.Geteuid(), os.Getegid()),
		"etc/shadow": "root:$6$old:19000:0:99999:7:::\nvcap:*:19000:0:99999:7:::\n",
		"etc/group": "root:x:0:\nvcap:x:7:syslog\nadmin:x:8:vcap\nbosh_sudoers:x:9:\nbosh_sshers:x:10:vcap\n" +
			"other:x:11:\n",
		"etc/gshadow": "root:*::\nvcap:!::syslog\nadmin:!::vcap\nbosh_sudoers:!::\nbosh_sshers:!::vcap\nother:!::\n",
		"etc/subuid":  "vcap:100000:65536\n",
		"etc/subgid":  "vcap:100000:65536\n",
		"etc/login.defs": fmt.Sprintf("# comment\nUID_MIN %d\nUID_MAX 60000\nGID_MIN %d\nGID_MAX 60000\n"+
			"PASS_MAX_DAYS\t60\n", uid, gid),
		"etc/skel/.rc":    "alias l=ls\n",
		"home/vcap/.keep": "",
	} {
		put(t, a, name, content)
	}
	if err := os.Chmod(a.joinRoot("etc/shadow"), 0o640); err != nil {
		t.Fatal(err)
	}
	if uid == os.Geteuid() { // only one number may be given away, and vcap must not have it
		put(t, a, "etc/passwd", "root:x:0:0:root:/root:/bin/bash\n# kept\nbroken line\n"+
			"vcap:x:7:7:BOSH:/home/vcap:/bin/bash\n+nis::::::\n")
	}
	return a
}

func put(t *testing.T, a *Accounts, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(a.joinRoot(path)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.joinRoot(path), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, a *Accounts, path string) string {
	t.Helper()
	data, err := os.ReadFile(a.joinRoot(path))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func once(t *testing.T, a *Accounts, want Desired) ([]Change, error) {
	return platform.Converge(t.Context(), a, Diff, want)
}

// converge also checks that no temporary file is left.
func converge(t *testing.T, a *Accounts, want Desired) []string {
	t.Helper()
	changes := platformtest.Converge(t, a, Diff, want)
	left, err := filepath.Glob(a.joinRoot("etc/*.*"))
	if err != nil || !reflect.DeepEqual(left, []string{a.joinRoot("etc/.pwd.lock"), a.joinRoot("etc/login.defs")}) &&
		len(changes) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
	return changes
}

func TestPasswords(t *testing.T) {
	a := stemcell(t)
	before := get(t, a, "etc/passwd")
	got := converge(t, a, Desired{Passwords: map[string]secret.String{"root": secret.New("$6$new"),
		"vcap": secret.New("")}})
	if want := []string{"set password of root"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q: vcap has none already", got, want)
	}
	want := "root:$6$new:" + today() + ":0:99999:7:::\nvcap:*:19000:0:99999:7:::\n"
	if got := get(t, a, "etc/shadow"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if info, err := os.Stat(a.joinRoot("etc/shadow")); err != nil || info.Mode() != 0o640 {
		t.Errorf("got mode %v, %v, want 0640 as before", info.Mode(), err)
	}
	if get(t, a, "etc/passwd") != before {
		t.Error("passwd was written although nothing in it changed")
	}

	put(t, a, "etc/shadow", "root:$6$new:1::::::\n")
	converge(t, a, Desired{Passwords: map[string]secret.String{"vcap": secret.New("$6$v")}})
	if !strings.Contains(get(t, a, "etc/shadow"), "vcap:$6$v:"+today()+":0:60:7:::\n") {
		t.Errorf("got %q, want a line for vcap", get(t, a, "etc/shadow"))
	}

	for name, hash := range map[string]string{"nobody": "x", "root": "a:b", "vcap": "a\nb"} {
		_, err := once(t, a, Desired{Passwords: map[string]secret.String{name: secret.New(hash)}})
		if err == nil || strings.Contains(err.Error(), hash) && name != "nobody" {
			t.Errorf("%s: got %v, want an error without the hash", name, err)
		}
	}
}

func TestKeys(t *testing.T) {
	a := stemcell(t)
	uid, gid := os.Geteuid(), os.Getegid()
	put(t, a, "etc/passwd", fmt.Sprintf("vcap:x:%d:%d::/home/vcap:/bin/bash\nnew:x:%d:%d::/home/new:/bin/sh\n", uid, gid,
		uid, gid))
	converge(t, a, Desired{Keys: map[string][]string{"vcap": {"ssh-rsa A one", "ssh-rsa B two\n", ""},
		"new": {"ssh-rsa C"}}})
	if got := get(t, a, "home/vcap/.ssh/authorized_keys"); got != "ssh-rsa A one\nssh-rsa B two" {
		t.Errorf("got %q", got)
	}
	for path, mode := range map[string]fs.FileMode{"home/vcap/.ssh": fs.ModeDir | 0o700,
		"home/vcap/.ssh/authorized_keys": 0o600, "home/new": fs.ModeDir | 0o700} {
		if info, err := os.Lstat(a.joinRoot(path)); err != nil || info.Mode() != mode {
			t.Errorf("%s: got %v, %v, want %v", path, info, err, mode)
		}
	}
	if err := os.Chmod(a.joinRoot("home/vcap/.ssh/authorized_keys"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := converge(t, a, Desired{Keys: map[string][]string{"vcap": {"ssh-rsa A one",
		"ssh-rsa B two"}}}); len(got) != 1 {
		t.Errorf("got %q, want the mode set right", got)
	}
	// Existing ones can stay, after the others and once.
	for _, want := range []string{"ssh-rsa C\nssh-rsa A one\nssh-rsa B two", "ssh-rsa C\nssh-rsa A one\nssh-rsa B two"} {
		_, err := once(t, a, Desired{Keys: map[string][]string{"vcap": {"ssh-rsa C\n"}}, KeepKeys: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := get(t, a, "home/vcap/.ssh/authorized_keys"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	made, err := once(t, a, Desired{Keys: map[string][]string{"vcap": {"ssh-rsa C"}}, KeepKeys: true})
	if len(made) != 0 || err != nil {
		t.Errorf("a third time made %q, %v", made, err)
	}
	if _, err := once(t, a, Desired{Keys: map[string][]string{"nobody": nil}}); !errors.Is(err, errNoUser) {
		t.Errorf("got %v, want ErrNoUser", err)
	}
}

// TestKeysDoNotFollowLinksOutOfTheHome: the owner of a home may have created links to make root write elsewhere.
func TestKeysDoNotFollowLinksOutOfTheHome(t *testing.T) {
	for name, prepare := range map[string]func(a *Accounts) error{
		"directory": func(a *Accounts) error { return os.Symlink(a.joinRoot("etc"), a.joinRoot("home/vcap/.ssh")) },
		"file": func(a *Accounts) error {
			return errors.Join(os.Mkdir(a.joinRoot("home/vcap/.ssh"), 0o700),
				os.Symlink(a.joinRoot("etc/group"), a.joinRoot("home/vcap/.ssh/authorized_keys")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := stemcell(t)
			put(t, a, "etc/passwd", fmt.Sprintf("vcap:x:%d:%d::/home/vcap:/bin/bash\n", os.Geteuid(), os.Getegid()))
			before := get(t, a, "etc/group")
			if err := prepare(a); err != nil {
				t.Fatal(err)
			}
			_, err := once(t, a, Desired{Keys: map[string][]string{"vcap": {"ssh-rsa EVIL"}}})
			if name == "directory" && err == nil {
				t.Error("a link out of the home was followed")
			}
			if get(t, a, "etc/group") != before {
				t.Error("a file outside of the home was written")
			}
			if _, err := os.Lstat(a.joinRoot("etc/authorized_keys")); err == nil {
				t.Error("a file outside of the home was made")
			}
		})
	}
}

// TestSSHDirectoryOfAnotherKind: a user can replace .ssh with anything. The agent does not wait for a FIFO, which would
// end the boot, and does not give the user a directory of root through a link.
func TestSSHDirectoryOfAnotherKind(t *testing.T) {
	for name, prepare := range map[string]func(a *Accounts) error{
		"pipe": func(a *Accounts) error { return unix.Mkfifo(a.joinRoot("home/vcap/.ssh"), 0o600) },
		"file": func(a *Accounts) error { return os.WriteFile(a.joinRoot("home/vcap/.ssh"), nil, 0o600) },
		"link to a directory of another user": func(a *Accounts) error {
			return errors.Join(os.Mkdir(a.joinRoot("home/vcap/roots"), 0o711), os.Symlink("roots", a.joinRoot("home/vcap/.ssh")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := stemcell(t)
			// The account of a user other than the one that the test runs as, for whom root's directory is not its own.
			put(t, a, "etc/passwd", fmt.Sprintf("vcap:x:%d:%d::/home/vcap:/bin/bash\n", os.Geteuid()+1, os.Getegid()))
			if err := prepare(a); err != nil {
				t.Fatal(err)
			}
			failed := make(chan error, 1)
			go func() {
				_, err := once(t, a, Desired{Keys: map[string][]string{"vcap": {"ssh-rsa A"}}})
				failed <- err
			}()
			select {
			case err := <-failed:
				if err == nil {
					t.Error("got no error")
				}
			case <-time.After(10 * time.Second):
				t.Fatal("still waiting after 10 seconds")
			}
			if info, err := os.Stat(a.joinRoot("home/vcap/roots")); err == nil && info.Mode().Perm() != 0o711 {
				t.Errorf("the directory of another user has become %v", info.Mode())
			}
		})
	}
}

// TestKeysOverOddFiles: whatever a user makes of the file, reading it neither hangs nor exhausts memory, and it is
// replaced.
func TestKeysOverOddFiles(t *testing.T) {
	for name, prepare := range map[string]func(path string) error{
		"pipe":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"huge":      func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<40)) },
		"dead link": func(path string) error { return os.Symlink("nowhere", path) },
	} {
		t.Run(name, func(t *testing.T) {
			a := stemcell(t)
			put(t, a, "etc/passwd", fmt.Sprintf("vcap:x:%d:%d::/home/vcap:/bin/bash\n", os.Geteuid(), os.Getegid()))
			if err := errors.Join(os.Mkdir(a.joinRoot("home/vcap/.ssh"), 0o700),
				prepare(a.joinRoot("home/vcap/.ssh/authorized_keys"))); err != nil {
				t.Fatal(err)
			}
			converge(t, a, Desired{Keys: map[string][]string{"vcap": {"ssh-rsa A"}}})
			if got := get(t, a, "home/vcap/.ssh/authorized_keys"); got != "ssh-rsa A" {
				t.Errorf("got %q", got)
			}
		})
	}
}

var session = Session{Name: "bosh_ab12", HomeBase: "/var/vcap/bosh_ssh", Keys: []string{"ssh-rsa AAAA"}}

func TestSession(t *testing.T) {
	a := stemcell(t)
	uid, gid := ids()
	want := Desired{Sessions: []Session{session}}
	if got := converge(t, a, want); !reflect.DeepEqual(got, []string{"add user bosh_ab12"}) {
		t.Errorf("got %q", got)
	}
	for path, line := range map[string]string{
		"etc/passwd":  fmt.Sprintf("bosh_ab12:x:%d:%d::/var/vcap/bosh_ssh/bosh_ab12:/bin/bash\n+nis", uid, gid),
		"etc/shadow":  "\nbosh_ab12:*:" + today() + ":0:60:7:::\n",
		"etc/group":   fmt.Sprintf("\nbosh_ab12:x:%d:\n", gid),
		"etc/gshadow": "\nbosh_ab12:!::\n",
		"etc/subuid":  "\nbosh_ab12:165536:65536\n",
		"etc/subgid":  "\nbosh_ab12:165536:65536\n",
	} {
		if got := get(t, a, path); !strings.Contains(got, line) {
			t.Errorf("%s: got %q, want %q in it", path, got, line)
		}
	}
	const groups = "root:x:0:\nvcap:x:7:syslog,bosh_ab12\nadmin:x:8:vcap,bosh_ab12\nbosh_sudoers:x:9:bosh_ab12\n" +
		"bosh_sshers:x:10:vcap,bosh_ab12\nother:x:11:\n"
	if got := get(t, a, "etc/group"); !strings.HasPrefix(got, groups) {
		t.Errorf("got %q, want %q first", got, groups)
	}
	for path, mode := range map[string]fs.FileMode{"": fs.ModeDir | 0o700, "/.ssh": fs.ModeDir | 0o700,
		"/.ssh/authorized_keys": 0o600, "/.rc": 0o644, "/..": fs.ModeDir | 0o755} {
		info, err := os.Lstat(a.joinRoot("var/vcap/bosh_ssh/bosh_ab12" + path))
		if err != nil || info.Mode() != mode {
			t.Errorf("home%s: got %v, %v, want %v", path, info, err, mode)
			continue
		}
		if path != "/.." && owner(info) != uid {
			t.Errorf("home%s: belongs to %d, want %d", path, owner(info), uid)
		}
	}
	check(t, a)

	changed := session
	changed.Keys = []string{"ssh-rsa OTHER"}
	changed.Groups = []string{"vcap", "other"}
	if got := converge(t, a, Desired{Sessions: []Session{changed}}); !reflect.DeepEqual(got,
		[]string{"set groups of bosh_ab12", "set authorized keys of bosh_ab12"}) {
		t.Errorf("got %q", got)
	}
	if _, err := a.Lookup("bosh_ab12"); err != nil {
		t.Error(err)
	}
	check(t, a)
}

func TestSkeleton(t *testing.T) {
	a := stemcell(t)
	uid, _ := ids()
	skeleton := a.joinRoot("etc/skel")
	put(t, a, "etc/skel/dir/tool", "#!")
	err := errors.Join(os.Chmod(skeleton+"/dir", 0o750), os.Chmod(skeleton+"/dir/tool", fs.ModeSetuid|0o755),
		os.Chmod(skeleton+"/.rc", 0o400), os.Symlink(a.joinRoot("etc/shadow"), skeleton+"/link"))
	if err != nil {
		t.Fatal(err)
	}
	converge(t, a, Desired{Sessions: []Session{session}})
	home := a.joinRoot("var/vcap/bosh_ssh/bosh_ab12")
	for path, mode := range map[string]fs.FileMode{"/dir": fs.ModeDir | 0o750, "/dir/tool": 0o755, "/.rc": 0o400,
		"/link": fs.ModeSymlink | 0o777} {
		if info, err := os.Lstat(home + path); err != nil || info.Mode() != mode || owner(info) != uid {
			t.Errorf("%s: got %v, %v, want %v of %d", path, info, err, mode, uid)
		}
	}
	if info, err := os.Stat(home + "/link"); err != nil || info.Mode() != 0o640 || owner(info) != os.Geteuid() {
		t.Errorf("behind the link: %v, %v", info, err)
	}
	if got := get(t, a, "var/vcap/bosh_ssh/bosh_ab12/dir/tool"); got != "#!" {
		t.Errorf("got %q", got)
	}

	a = stemcell(t)
	if err := unix.Mkfifo(a.joinRoot("etc/skel/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := once(t, a, Desired{Sessions: []Session{session}}); err == nil ||
		!strings.Contains(err.Error(), "/etc/skel") || !strings.Contains(err.Error(), "pipe") {
		t.Errorf("got %v, want an error about the pipe", err)
	}
}

// check verifies the files with the shadow tools.
func check(t *testing.T, a *Accounts) {
	t.Helper()
	for _, c := range [][]string{{"pwck", "-r", "-q", a.joinRoot("etc/passwd"), a.joinRoot("etc/shadow")},
		{"grpck", "-r", a.joinRoot("etc/group"), a.joinRoot("etc/gshadow")}} {
		if command.Find(c[0]) == "" {
			t.Logf("no %s here to judge the files", c[0])
			continue
		}
		r, err := command.Run(t.Context(), command.Cmd{Name: c[0], Args: c[1:]})
		for line := range strings.Lines(string(r.Stdout) + string(r.Stderr)) {
			// Homes and members are looked up on the machine of the test, where they are not.
			elsewhere := strings.Contains(line, "does not exist") || strings.Contains(line, "no user") ||
				strings.Contains(line, "delete member")
			if strings.Contains(line, "bosh_") && !elsewhere {
				t.Errorf("%s: %s (%v)", c[0], strings.TrimSpace(line), err)
			}
		}
	}
}

func TestSessionRefused(t *testing.T) {
	for name, s := range map[string]Session{
		"root":          {Name: "root", HomeBase: "/var/vcap/bosh_ssh"},
		"colon":         {Name: "bosh_a:x", HomeBase: "/b"},
		"line break":    {Name: "bosh_a\nroot", HomeBase: "/b"},
		"path":          {Name: "../../etc", HomeBase: "/b"},
		"option":        {Name: "-rf", HomeBase: "/b"},
		"empty":         {HomeBase: "/b"},
		"long":          {Name: "bosh_" + strings.Repeat("a", 30), HomeBase: "/b"},
		"unknown group": {Name: "bosh_a", HomeBase: "/b", Groups: []string{"nobody-here"}},
		"foreign group": {Name: "other", HomeBase: "/b"},
	} {
		t.Run(name, func(t *testing.T) {
			a := stemcell(t)
			before := get(t, a, "etc/passwd")
			if _, err := once(t, a, Desired{Sessions: []Session{s}}); err == nil {
				t.Error("accepted")
			}
			if get(t, a, "etc/passwd") != before {
				t.Error("passwd changed")
			}
		})
	}
}

func TestSessionsRemove(t *testing.T) {
	skiptest.WithoutRoot(t, "to make several users")
	a := stemcell(t)
	before := make(map[string]string)
	for _, f := range []string{"passwd", "shadow", "group", "gshadow", "subuid", "subgid"} {
		before[f] = get(t, a, "etc/"+f)
	}
	sessions := Sessions{Accounts: a, HomeBase: "/var/vcap/bosh_ssh"}
	for _, name := range []string{"bosh_one", "bosh_two", "someone"} {
		if err := sessions.Create(t.Context(), name, "ssh-rsa "+name); err != nil {
			t.Fatal(err)
		}
	}
	account, err := a.Lookup("bosh_one")
	if err != nil {
		t.Fatal(err)
	}
	put(t, a, "var/mail/bosh_one", "mail")
	if err := os.Chown(a.joinRoot("var/mail/bosh_one"), account.UID, account.GID); err != nil {
		t.Fatal(err)
	}
	put(t, a, "var/mail/bosh_two", "of root")

	if err := sessions.Remove(t.Context(), func(name string) bool { return name != "bosh_two" }); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"var/vcap/bosh_ssh/bosh_one": false, "var/mail/bosh_one": false,
		"var/vcap/bosh_ssh/bosh_two": true, "var/vcap/bosh_ssh/someone": true} {
		if _, err := os.Lstat(a.joinRoot(path)); (err == nil) != want {
			t.Errorf("%s: there %v, want %v", path, err == nil, want)
		}
	}
	if err := sessions.Remove(t.Context(), func(string) bool { return true }); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"root", "vcap", "someone"} {
		if _, err := a.Lookup(name); err != nil {
			t.Errorf("%s was removed as well: %v", name, err)
		}
	}
	if _, err := os.Lstat(a.joinRoot("var/mail/bosh_two")); err != nil {
		t.Error("mail of another user was removed")
	}
	if _, err := Diff(State{Accounts: map[string]Account{"root": {}}}, Desired{Remove: []string{"root"}}); err == nil {
		t.Error("root was about to be removed")
	}
	for f, want := range before {
		got := strings.ReplaceAll(get(t, a, "etc/"+f), ",someone", "")
		for line := range strings.Lines(want) {
			if !strings.Contains(got, line) && f != "group" && f != "gshadow" {
				t.Errorf("%s: lost %q", f, line)
			}
		}
		if strings.Contains(got, "bosh_one") || strings.Contains(got, "bosh_two") {
			t.Errorf("%s: still names a removed user: %q", f, got)
		}
	}
}

func TestNumbersOfRunningProcessesAreNotReused(t *testing.T) {
	db := &database{passwd: &table{fields: 7}, loginDefs: map[string]string{"UID_MIN": "1000", "UID_MAX": "1002"},
		runningUIDs: map[int]bool{1000: true}}
	db.passwd.parse([]byte("vcap:x:1001:1001:::\n"))
	if got, err := db.freeUID(); err != nil || got != 1002 {
		t.Errorf("got %d, %v, want 1002", got, err)
	}
	db.runningUIDs[1002] = true
	if got, err := db.freeUID(); err == nil {
		t.Errorf("got %d, want none to be free", got)
	}
	delete(db.runningUIDs, 1000)
	if got, err := db.freeUID(); err != nil || got != 1000 {
		t.Errorf("got %d, %v, want the gap at 1000", got, err)
	}
}

func TestSessionAfterACrashInTheMiddle(t *testing.T) {
	a := stemcell(t)
	_, gid := ids()
	put(t, a, "etc/group", get(t, a, "etc/group")+fmt.Sprintf("bosh_ab12:x:%d:\n", gid))
	put(t, a, "etc/shadow", get(t, a, "etc/shadow")+"bosh_ab12:*:1::::::\n")
	put(t, a, "var/vcap/bosh_ssh/bosh_ab12/.ssh/authorized_keys", "of an earlier one")
	converge(t, a, Desired{Sessions: []Session{session}})
	if got := get(t, a, "var/vcap/bosh_ssh/bosh_ab12/.ssh/authorized_keys"); got != "ssh-rsa AAAA" {
		t.Errorf("got %q", got)
	}
	if got := strings.Count(get(t, a, "etc/group"), "bosh_ab12:x"); got != 1 {
		t.Errorf("got %d groups of the name, want one", got)
	}
	check(t, a)
}

// TestEveryCut interrupts the addition and removal of a user after each write, as a power cut would. The next attempt
// must end in the same state as an undisturbed one.
func TestEveryCut(t *testing.T) {
	skiptest.WithoutRoot(t, "to make several users")
	files := []string{"etc/group", "etc/gshadow", "etc/shadow", "etc/subuid", "etc/subgid", "etc/passwd"}
	read := func(a *Accounts) (contents []string) {
		for _, f := range files {
			contents = append(contents, get(t, a, f))
		}
		return contents
	}
	added := Desired{Sessions: []Session{session}}
	removed := Desired{Remove: []string{session.Name}}
	a := stemcell(t)
	without := read(a)
	converge(t, a, added)
	with := read(a)
	for name, tc := range map[string]struct {
		from, to []string
		want     Desired
	}{"addition": {without, with, added}, "removal": {with, without, removed}} {
		for cut := range len(files) + 1 {
			t.Run(fmt.Sprintf("%s after %d", name, cut), func(t *testing.T) {
				a := stemcell(t)
				if name == "removal" {
					put(t, a, "var/vcap/bosh_ssh/bosh_ab12/x", "") // not removed yet, and without an account
				}
				for i, f := range files {
					put(t, a, f, tc.from[i])
					if i < cut {
						put(t, a, f, tc.to[i])
					}
				}
				converge(t, a, tc.want)
				for i, got := range read(a) {
					if got != tc.to[i] {
						t.Errorf("%s: got %q, want %q", files[i], got, tc.to[i])
					}
				}
			})
		}
	}
}

func TestLock(t *testing.T) {
	want := Desired{Passwords: map[string]secret.String{"root": secret.New("new")}}
	t.Run("held by another", func(t *testing.T) {
		a := stemcell(t)
		f, err := os.OpenFile(a.joinRoot("etc/.pwd.lock"), os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := platform.Converge(ctx, a, Diff, want); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline", err)
		}
		if got := get(t, a, "etc/shadow"); strings.Contains(got, "new") {
			t.Errorf("written without the lock: %q", got)
		}
		done := make(chan error)
		go func() {
			_, err := once(t, a, want)
			done <- err
		}()
		f.Close()
		if err := <-done; err != nil {
			t.Errorf("got %v after the lock was free", err)
		}
	})
	for name, leave := range map[string]func(path string) error{
		"left by a program that was killed": func(path string) error {
			return os.WriteFile(path, []byte("1\x00"), 0o600)
		},
		"a link": func(path string) error { return os.Symlink("passwd", path) },
	} {
		t.Run(name, func(t *testing.T) {
			a := stemcell(t)
			if err := leave(a.joinRoot("etc/shadow.lock")); err != nil {
				t.Fatal(err)
			}
			before := get(t, a, "etc/passwd")
			converge(t, a, want)
			if got := get(t, a, "etc/passwd"); got != before {
				t.Errorf("passwd is %q, was %q", got, before)
			}
		})
	}
}

func FuzzTable(f *testing.F) {
	f.Add([]byte("root:x:0:0:root:/root:/bin/sh\n# c\n\n+nis::::::\nvcap:x:1000:1000:::\n"), "bosh_a")
	f.Add([]byte("a:b:c:d:e:f:g"), "a")
	f.Add([]byte(":::::::\n::::::\n\n\n"), "x")
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		if !validName.MatchString(name) {
			return
		}
		parsed := &table{fields: 7}
		parsed.parse(data)
		if got := parsed.bytes(); !bytes.Equal(got, data) && !bytes.Equal(got, append(bytes.Clone(data), '\n')) {
			t.Fatalf("got %q, want %q unchanged", got, data)
		}
		for r := range parsed.all {
			if _, err := account(r); err != nil {
				continue
			}
		}
		others := func() (lines []string) {
			for _, line := range parsed.lines {
				if r := parsed.record(line); r == nil || r[0] != name {
					lines = append(lines, line)
				}
			}
			return lines
		}
		before := others()
		parsed.set(name, "x", "1", "1", "", "/", "/bin/sh")
		if r, there := parsed.find(name); !there || r[2] != "1" {
			t.Fatalf("got %q, %v after adding", r, there)
		}
		if got := others(); !reflect.DeepEqual(got, before) {
			t.Fatalf("adding changed other lines: %q, want %q", got, before)
		}
		parsed.remove(name)
		if _, there := parsed.find(name); there {
			t.Fatal("still there")
		}
		if got := others(); !reflect.DeepEqual(got, before) {
			t.Fatalf("removing changed other lines: %q, want %q", got, before)
		}
		parsed.edit(func([]string) {})
		if got := others(); !reflect.DeepEqual(got, before) {
			t.Fatalf("editing nothing changed lines: %q, want %q", got, before)
		}
	})
}

// TestPlanAfter: a plan after other changes starts from the state that they leave.
func TestPlanAfter(t *testing.T) {
	a := stemcell(t)
	put(t, a, "etc/passwd", fmt.Sprintf("vcap:x:%d:%d::/home/vcap:/bin/bash\n", os.Geteuid(), os.Getegid()))
	keys := func(keep bool, keys ...string) Desired {
		return Desired{Keys: map[string][]string{"vcap": keys}, KeepKeys: keep}
	}
	first := keys(true, "ssh-rsa A")
	first.Passwords = map[string]secret.String{"vcap": secret.New("$6$v")}
	both := keys(false, "ssh-rsa A", "ssh-rsa B")
	both.Passwords = first.Passwords
	planAfter := func(want Desired) ([]Change, error) {
		have, err := a.Observe(t.Context(), want)
		if err != nil {
			return nil, err
		}
		changes, err := Diff(have, first)
		if err != nil {
			return nil, err
		}
		return Diff(have.After(changes), want)
	}
	for _, want := range []struct {
		after Desired
		more  int
	}{{first, 0}, {keys(false, "ssh-rsa A"), 0}, {both, 1}} {
		planned, err := planAfter(want.after)
		if err != nil || len(planned) != want.more {
			t.Errorf("planned %v, %v; want %d changes", planned, err, want.more)
		}
	}
	planned, err := planAfter(both)
	if err != nil {
		t.Fatal(err)
	}
	converge(t, a, first)
	if done := converge(t, a, both); fmt.Sprint(done) != fmt.Sprint(planned) {
		t.Errorf("planned %v, done %v", planned, done)
	}
}
