// Package nstest provides tests with their own network and mount namespaces, links into a peer namespace that plays the
// rest of the world, and packet captures.
//
// It is only for tests. [Run] starts the test binary again inside new namespaces, so that they contain all goroutines
// and sockets of the test, and /sys shows their links. The machine's own network cannot be reached from there, and the
// kernel removes everything afterwards.
package nstest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/skiptest"
)

// inside is the environment variable with the name of the test that this process runs.
const inside = "CAMBIUM_NSTEST"

// Run calls body in new network and mount namespaces, in which only loopback is up. If namespaces are not permitted, it
// skips the test, or fails it in CI. It must be called from a top-level test, which must do nothing else.
func Run(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	if strings.Contains(t.Name(), "/") {
		t.Fatal("nstest.Run needs a top-level test")
	}
	if os.Getenv(inside) == t.Name() {
		enter(t)
		body(t)
		return
	}
	var output bytes.Buffer
	state, err := runInNamespaces(t, &output)
	switch {
	case err != nil:
		skiptest.Skip(t, fmt.Errorf("no namespaces: %w", err))
	case !state.Success():
		t.Errorf("in its namespaces: %s\n%s", state, output.Bytes())
	case bytes.Contains(output.Bytes(), []byte("--- SKIP: "+t.Name())):
		skiptest.Skip(t, fmt.Errorf("in its namespaces:\n%s", output.Bytes()))
	default:
		if testing.Verbose() {
			t.Logf("%s", output.Bytes())
		}
	}
}

// runInNamespaces runs this test in new namespaces. An unprivileged process gets a user namespace, too.
func runInNamespaces(t *testing.T, output io.Writer) (*os.ProcessState, error) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	args := []string{os.Args[0], "-test.run=^" + regexp.QuoteMeta(t.Name()) + "$", "-test.v", "-test.count=1"}
	if deadline, ok := t.Deadline(); ok {
		args = append(args, fmt.Sprintf("-test.timeout=%s", untilJustBefore(deadline)))
	}
	process, err := os.StartProcess(os.Args[0], args, &os.ProcAttr{
		Env:   append(os.Environ(), inside+"="+t.Name()),
		Files: []*os.File{nil, write, write},
		Sys:   attr,
	})
	write.Close()
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(output, read); err != nil {
		t.Error(err)
	}
	return process.Wait()
}

// enter makes the mount namespace private, mounts a /sys that shows the new network, and brings loopback up.
func enter(t *testing.T) {
	t.Helper()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatalf("make mounts private: %v", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		t.Fatalf("mount sysfs: %v", err)
	}
	setUp(t, routeHandle(t), "lo")
}
