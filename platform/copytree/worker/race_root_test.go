//go:build root

package worker

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/racer"
	"cambium/platform/copytree"
)

const (
	raceRounds = 1000
	raceLimit  = 5 * time.Minute
	racerUser  = 1234
	secret     = "for root only"
)

// snapshot describes everything in a directory.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	sum := sha256.New()
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err := errors.Join(err, unix.Lstat(path, &st)); err != nil {
			return err
		}
		fmt.Fprintln(sum, path, st.Mode, st.Uid, st.Gid, st.Size, st.Mtim, st.Ctim, st.Ino, st.Nlink)
		if e.Type().IsRegular() {
			data, err := os.ReadFile(path)
			fmt.Fprintln(sum, string(data))
			return err
		}
		return nil
	}))
	return fmt.Sprintf("%x", sum.Sum(nil))
}

// contested creates a tree that its user can change at any time, with directories of several depths, and files with two
// names in different ones.
func contested(t *testing.T, dir string) string {
	t.Helper()
	raced := filepath.Join(dir, "raced")
	for i := range 3 {
		inner := filepath.Join(raced, fmt.Sprint("d", i), "inner")
		must(t, os.MkdirAll(inner, 0o777))
		for _, name := range []string{"passwd", "secret", "own"} {
			must(t, os.WriteFile(filepath.Join(inner, name), []byte("harmless"), 0o666))
			must(t, os.WriteFile(filepath.Join(inner, "..", name), []byte("harmless"), 0o666))
		}
		if i > 0 {
			must(t, os.Link(filepath.Join(raced, "d0", "inner", "own"), filepath.Join(inner, "linked")))
		}
	}
	must(t, exec.Command("chown", "-R", strconv.Itoa(racerUser), raced).Run())
	return raced
}

// TestRootRacerNeverLeadsOut: another user's process replaces directories of both trees by links while they are copied,
// verified and copied again, as it can in bind-mounted directories. Root never leaves the trees: files outside are
// neither changed nor copied.
func TestRootRacerNeverLeadsOut(t *testing.T) {
	base := t.TempDir()
	must(t, unix.Mount("tmpfs", base, "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(base, unix.MNT_DETACH)) })
	must(t, errors.Join(os.Chmod(base, 0o755), os.Chmod(filepath.Dir(base), 0o755)))
	from, to, outside := filepath.Join(base, "from"), filepath.Join(base, "to"), filepath.Join(base, "outside")
	for _, dir := range []string{from, to, filepath.Join(outside, "inner")} {
		must(t, os.MkdirAll(dir, 0o755))
	}
	for _, name := range []string{"passwd", "secret", "inner/passwd", "inner/secret"} {
		must(t, os.WriteFile(filepath.Join(outside, name), []byte(secret), 0o600))
	}
	before := snapshot(t, outside)

	hostile := exec.Command(program)
	hostile.Env = []string{racer.Environment(outside, contested(t, from), contested(t, to))}
	hostile.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: racerUser, Gid: racerUser}}
	hostile.Stderr = os.Stderr
	output, err := hostile.StdoutPipe()
	must(t, err)
	must(t, hostile.Start())
	t.Cleanup(func() { _ = hostile.Process.Kill() })
	lines := bufio.NewScanner(output)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("the racer says %q", lines.Text())
	}

	must(t, os.WriteFile(filepath.Join(to, mark), nil, 0o600))
	source, err := openDetached(from, unix.MOUNT_ATTR_RDONLY)
	must(t, err)
	defer source.Close()
	target, err := openDetached(to, 0)
	must(t, err)
	defer target.Close()
	copying := copytree.New(mark, "trusted.own", false)
	outcomes := map[string]int{}
	deadline := time.Now().Add(raceLimit)
	for round := range raceRounds {
		if time.Now().After(deadline) {
			t.Fatalf("only %d rounds in %v", round, raceLimit)
		}
		outcome := "copied"
		if err := copying.Copy(t.Context(), source, target, &copytree.Counter{}); err != nil {
			outcome = "not copied"
		} else if _, err := copying.Verify(t.Context(), source, target, &copytree.Counter{}); err != nil {
			outcome = "different"
		}
		outcomes[outcome]++
		// A copy that failed has left the directory to root; the racer is to get in once more.
		must(t, errors.Join(os.Chown(filepath.Join(to, "raced"), racerUser, racerUser), os.Chmod(filepath.Join(to,
			"raced"), 0o777)))
	}
	must(t, hostile.Process.Signal(unix.SIGTERM))
	for _, tree := range []string{"source", "target"} {
		exchanges := -1
		if lines.Scan() {
			exchanges, _ = strconv.Atoi(lines.Text())
		}
		t.Logf("%d exchanges in the %s", exchanges, tree)
		if exchanges <= 0 {
			t.Errorf("no exchanges in the %s", tree)
		}
	}
	must(t, hostile.Wait())
	t.Logf("%d rounds: %v", raceRounds, outcomes)
	// Whether an exchange comes between two steps or between two passes depends on the machine; with neither, nothing
	// was raced.
	if outcomes["not copied"]+outcomes["different"] == 0 {
		t.Error("the racer never came between the steps of a copy, or of two passes")
	}

	if snapshot(t, outside) != before {
		t.Error("what is outside has changed")
	}
	must(t, filepath.WalkDir(to, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		if data, err := os.ReadFile(path); err != nil || bytes.Contains(data, []byte(secret)) {
			t.Errorf("%s holds %q, %v", path, data, err)
		}
		return nil
	}))
	// Left alone, the copy becomes whole.
	copying = copytree.New(mark, "trusted.own", true)
	must(t, copying.Copy(t.Context(), source, target, &copytree.Counter{}))
	_, err = copying.Verify(t.Context(), source, target, &copytree.Counter{})
	must(t, err)
	must(t, copying.Complete(target))
}
