package script

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"

	"cambium/internal/skiptest"
)

const stranger = 12345 // a user that is not the agent's

// TestHostileLogs puts something else in place of a script's log. The script runs all the same, at once, and
// what is not the job's own log stays as it was.
func TestHostileLogs(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, r Runner, log string)
		logged  string // where the output is, relative to base; "" if it is dropped
		warning string // in the agent's log; "" for nothing
		root    bool
	}{
		{name: "nothing there", prepare: func(*testing.T, Runner, string) {}, logged: "data/sys/log/j/pre-start.stdout.log"},
		{name: "a FIFO without a reader", prepare: func(t *testing.T, _ Runner, log string) { must(t, unix.Mkfifo(log, 0o600)) }, warning: "not a regular file"},
		{name: "a FIFO with a reader that never reads", prepare: func(t *testing.T, _ Runner, log string) {
			must(t, unix.Mkfifo(log, 0o600))
			reader, err := os.OpenFile(log, os.O_RDONLY|unix.O_NONBLOCK, 0)
			must(t, err)
			t.Cleanup(func() { reader.Close() })
		}, warning: "not a regular file"},
		{name: "a socket", prepare: func(t *testing.T, _ Runner, log string) {
			listener, err := net.Listen("unix", log)
			must(t, err)
			t.Cleanup(func() { listener.Close() })
		}, warning: "not a regular file"},
		{name: "a directory", prepare: func(t *testing.T, _ Runner, log string) { must(t, os.Mkdir(log, 0o755)) }, warning: "is a directory"},
		{name: "the job's directory is a file", prepare: func(t *testing.T, _ Runner, log string) {
			must(t, errors.Join(os.Remove(filepath.Dir(log)), os.WriteFile(filepath.Dir(log), nil, 0o600)))
		}, warning: "not a regular file"},
		{name: "a second name of another file", prepare: func(t *testing.T, r Runner, log string) {
			must(t, os.Link(filepath.Join(r.Dirs.Base(), "precious"), log))
		}, warning: "not a regular file"},
		{name: "a link of the agent's user below base", prepare: func(t *testing.T, r Runner, log string) {
			must(t, errors.Join(os.Mkdir(filepath.Join(r.Dirs.Base(), "store"), 0o755),
				os.Symlink(filepath.Join(r.Dirs.Base(), "store/moved.log"), log)))
		}, logged: "store/moved.log"},
		{name: "the job's directory is such a link, relative", prepare: func(t *testing.T, r Runner, log string) {
			must(t, errors.Join(os.MkdirAll(filepath.Join(r.Dirs.Base(), "store/logs"), 0o755), os.Remove(filepath.Dir(log)),
				os.Symlink("../../../store/logs", filepath.Dir(log))))
		}, logged: "store/logs/pre-start.stdout.log"},
		{name: "silenced", prepare: func(t *testing.T, _ Runner, log string) { must(t, os.Symlink("/dev/null", log)) }},
		{name: "a link of the agent's user that leaves base", prepare: func(t *testing.T, r Runner, log string) {
			must(t, os.Symlink(r.Dirs.Base()+"/../outside", log))
		}, warning: "a link points to"},
		{name: "a circle of links", prepare: func(t *testing.T, _ Runner, log string) { must(t, os.Symlink(log, log)) }, warning: "too many links"},
		{name: "a link of another user", root: true, prepare: func(t *testing.T, r Runner, log string) {
			must(t, errors.Join(os.Symlink(filepath.Join(r.Dirs.Base(), "precious"), log), os.Lchown(log, stranger, stranger)))
		}, warning: "user 12345 is not followed"},
		{name: "the job's directory is a link of another user", root: true, prepare: func(t *testing.T, r Runner, log string) {
			must(t, errors.Join(os.Remove(filepath.Dir(log)), os.Symlink(r.Dirs.Base(), filepath.Dir(log)),
				os.Lchown(filepath.Dir(log), stranger, stranger)))
		}, warning: "user 12345 is not followed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.root {
				skiptest.WithoutRoot(t, "to make files of another user")
			}
			r := runner(t)
			hook := test.NewLocal(r.Log.Logger)
			base := r.Dirs.Base()
			r.install(t, "j", "pre-start", "echo said; touch "+base+"/ran")
			must(t, os.WriteFile(filepath.Join(base, "precious"), []byte("precious"), 0o600))
			log := filepath.Join(r.Dirs.SysLog(), "j", "pre-start.stdout.log")
			must(t, os.MkdirAll(filepath.Dir(log), 0o770))
			c.prepare(t, r, log)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := r.RunAll(ctx, []string{"j"}, "pre-start", nil); err != nil {
				t.Fatalf("the script failed: %v", err)
			}
			if _, err := os.Stat(filepath.Join(base, "ran")); err != nil {
				t.Error("the script did not run")
			}
			if c.logged != "" {
				if got := content(t, filepath.Join(base, c.logged)); got != "said\n" {
					t.Errorf("the log has %q", got)
				}
			}
			if got := content(t, filepath.Join(base, "precious")); got != "precious" {
				t.Errorf("another file has become %q", got)
			}
			if _, err := os.Lstat(filepath.Join(filepath.Dir(base), "outside")); err == nil {
				t.Error("a file was made outside")
			}
			var warnings []string
			for _, entry := range hook.AllEntries() {
				if err, ok := entry.Data["error"].(error); ok {
					warnings = append(warnings, err.Error())
				}
			}
			if all := strings.Join(warnings, "\n"); c.warning == "" && all != "" || !strings.Contains(all, c.warning) {
				t.Errorf("logged %q, want %q", all, c.warning)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
