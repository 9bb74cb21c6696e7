//go:build root

package lab

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"cambium/internal/skiptest"
)

// TestRootALockOfAnotherUserKeepsNoLab: after a crash another user of the host cannot have the lab pass for one that is
// up, also if a former version left the directory of the locks open.
func TestRootALockOfAnotherUserKeepsNoLab(t *testing.T) {
	skiptest.WithoutRoot(t, "to be another user, too")
	name, dir := fmt.Sprintf("lock-%d", os.Getpid()), t.TempDir()
	if err := errors.Join(os.MkdirAll(locks, 0o755), os.Chmod(locks, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(lockPath(name)) })
	crashed, err := lock(name, filepath.Join(dir, name))
	if err == nil {
		err = crashed.Close()
	}
	if err != nil {
		t.Fatal(err)
	}

	other := exec.Command("flock", "--shared", lockPath(name), "-c", "echo locked; read end")
	other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	end, err1 := other.StdinPipe()
	out, err2 := other.StdoutPipe()
	if err := errors.Join(err1, err2, other.Start()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(end.Close(), other.Wait()) }()
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "" { // the end of the output: it was denied
		t.Errorf("another user has %s %s", lockPath(name), line)
	}
	if Held(name) {
		t.Error("the lab passes for one that is up")
	}
	if err := Clean(dir, name); err != nil {
		t.Errorf("clean: %v", err)
	}
	again, err := lock(name, filepath.Join(dir, name))
	if err != nil {
		t.Fatalf("up: %v", err)
	}
	if !Held(name) {
		t.Error("the lab that is up passes for a leftover")
	}
	_ = again.Close()
}
