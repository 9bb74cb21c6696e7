package monit

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestHostilePidfiles: a job owns the directory of its pid file, and can put anything there. Nothing blocks, and no more
// than a number is read.
func TestHostilePidfiles(t *testing.T) {
	dir := t.TempDir()
	pidfile := filepath.Join(dir, "a.pid")
	text := []byte("check process a with pidfile " + pidfile + "\n")
	if err := os.WriteFile(filepath.Join(dir, "0000_a.monitrc"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &Client{JobFiles: filepath.Join(dir, "*.monitrc")}
	for _, s := range []struct {
		name  string
		make  func() error
		alive bool
	}{
		{"none", func() error { return nil }, false},
		{"own", func() error { return os.WriteFile(pidfile, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600) }, true},
		{"no number", func() error { return os.WriteFile(pidfile, []byte("x"), 0o600) }, false},
		{"pipe without a writer", func() error { return unix.Mkfifo(pidfile, 0o600) }, true},
		{"endless device", func() error { return os.Symlink("/dev/zero", pidfile) }, true},
		{"directory", func() error { return os.Mkdir(pidfile, 0o700) }, true},
		{"link to itself", func() error { return os.Symlink(pidfile, pidfile) }, true},
		// The kernel makes each process that opens it wait for the lease, for 45 seconds.
		{"lease", func() error {
			if err := os.WriteFile(pidfile, []byte("1\n"), 0o600); err != nil {
				return err
			}
			file, err := os.Open(pidfile)
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = file.Close() })
			_, err = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
			return err
		}, true},
		{"a terabyte", func() error { return os.WriteFile(pidfile, nil, 0o600) }, false},
	} {
		t.Run(s.name, func(t *testing.T) {
			if err := s.make(); err != nil {
				t.Fatal(err)
			}
			if s.name == "a terabyte" {
				if err := os.Truncate(pidfile, 1<<40); err != nil {
					t.Fatal(err)
				}
			}
			answer := make(chan bool, 1)
			go func() { answer <- mayRun(c.checks()["a"]) }()
			select {
			case got := <-answer:
				if got != s.alive {
					t.Errorf("alive: got %v, want %v", got, s.alive)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("still reading after 10 seconds")
			}
			if err := os.RemoveAll(pidfile); err != nil {
				t.Fatal(err)
			}
		})
	}
}
