package assets

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// nobody runs the script if the test is root, so that a mistake harms nothing of this machine.
const nobody = 65534

// FuzzRecord: whatever the record of a tree says, its removal changes nothing beside the tree.
func FuzzRecord(f *testing.F) {
	for _, record := range []string{
		"", "file /etc/passwd\n", "dir /d\nfile /d/x\nunlinked /a /b\npath new\n", "user vcap\ngroup vcap\nmember adm vcap\n",
		"file /../beside/victim\n", "file ../beside/victim\n", "file /out/victim\n", "file /out/../beside/victim\n",
		"file /up/victim\n",
		"dir /out/empty\n", "dir /../beside/empty\n", "unlinked /etc/passwd /../beside/made\n",
		"unlinked /etc/passwd /out/made\n",
		"unlinked -t /out\n", "file /out\n", "dir /out\n", "unlinked x /out\n", "file /out/with\n", "file /file\n",
		"user --root=/\n", "path added\nfile", "file /a\x00b\ndir\n",
	} {
		f.Add([]byte(record))
	}
	work, err := os.MkdirTemp("", "record-")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = os.RemoveAll(work) })
	script, err := Unpack(filepath.Join(work, "assets"))
	if err = errors.Join(err, os.Chmod(work, 0o755)); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, record []byte) {
		dir, err := os.MkdirTemp(work, "case-")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		root, beside := filepath.Join(dir, "root"), filepath.Join(dir, "beside")
		for path, content := range map[string]string{
			filepath.Join(root, "etc/passwd"):      "root:x:0:0::/:/bin/sh\n",
			filepath.Join(root, "etc/group"):       "root:x:0:\nadm:x:4:vcap\n",
			filepath.Join(root, "etc/environment"): "", filepath.Join(root, "var/vcap/bosh/etc/installed"): string(record),
			filepath.Join(beside, "victim"): "v", filepath.Join(beside, "with"): "w",
			filepath.Join(beside, "with.before-cambium"): "b",
			filepath.Join(beside, "empty/x"):             "",
		} {
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
				os.WriteFile(path, []byte(content), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(os.Remove(filepath.Join(beside, "empty/x")), os.Symlink(beside, filepath.Join(root, "out")),
			os.Symlink("../beside", filepath.Join(root, "up")),
			os.Symlink(filepath.Join(beside, "victim"), filepath.Join(root, "file"))); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), script, "--remove")
		cmd.Env = append(os.Environ(), "DESTDIR="+root)
		if os.Geteuid() == 0 {
			giveAway(t, dir)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		}
		before := list(t, beside)
		out, err := cmd.CombinedOutput()
		if after := list(t, beside); after != before {
			t.Errorf("beside the tree there is now %s, want %s; the script said %v: %s", after, before, err, out)
		}
	})
}

func giveAway(t *testing.T, dir string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, nobody, nobody))
	}); err != nil {
		t.Fatal(err)
	}
}

func list(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		data, _ := os.ReadFile(path) // a directory has none
		all = append(all, path+" "+d.Type().String()+" "+string(data))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, "\n")
}
