package looptest

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Main runs the tests of a package in their own mount namespace; call it from TestMain. The mounts of a test disappear
// with its process, whatever happens to it, and no other process can copy them into its namespace and keep them alive.
func Main(m *testing.M) {
	const inside = "CAMBIUM_LOOPTEST_INSIDE"
	if os.Geteuid() != 0 || os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	self, err := os.Executable()
	if err != nil {
		fail(err)
	}
	p, err := os.StartProcess(self, os.Args, &os.ProcAttr{
		Env:   append(os.Environ(), inside+"=yes"),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM},
	})
	if err != nil {
		fail(err)
	}
	// On a timeout go test sends SIGQUIT to get stacks; pass it on to the process that runs the
	// tests.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGQUIT, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		for s := range signals {
			_ = p.Signal(s)
		}
	}()
	state, err := p.Wait()
	if err != nil {
		fail(err)
	}
	os.Exit(state.ExitCode())
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "looptest:", err)
	os.Exit(1)
}
