package jobs

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/jobs/monit"
)

func TestTable(t *testing.T) {
	two, ended := 2, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var out strings.Builder
	if err := show(&out, []Job{
		{Name: "router", State: "running", PID: 41, Uptime: 3723, MemoryKB: 51200, Restarts: &two, Ended: &ended,
			EndReason: "killed by SIGSEGV", Log: "/var/vcap/sys/log/router/router.log", Lines: []string{"served"}},
		{Name: "db", State: "failing", Error: "process is not running", Log: "/var/vcap/sys/log/db/db.log",
			Lines: []string{"no space"}},
	}, false); err != nil {
		t.Fatal(err)
	}
	const want = `NAME    STATE         PID     UPTIME      MEMORY  RESTARTS  LAST END
router  running        41     1h2m3s      50 MiB         2  2026-01-02T03:04:05Z killed by SIGSEGV
db      failing         -          -       0 MiB         -  -

db: process is not running

db: last lines of /var/vcap/sys/log/db/db.log
  no space
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestExplain: why the supervisor does not answer is in the agent's status or seen at its port, and not in the error of
// a connection.
func TestExplain(t *testing.T) {
	refused := errors.New("connection refused")
	stranger, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Close() }()
	taken := &monit.Client{URL: "http://" + stranger.Addr().String()}
	want := fmt.Sprintf(`process %d ("jobs.test") of user %d has its port %s`, os.Getpid(), os.Getuid(), stranger.Addr())
	if got := explain(&status.Document{}, taken, refused); !strings.Contains(got.Error(), want) {
		t.Errorf("got %v, want %s in it", got, want)
	}
	free := &monit.Client{URL: "http://127.0.0.1:1"}
	for _, c := range []struct {
		warnings []string
		want     string
	}{
		{[]string{status.JobsWithheld + ": disk-1 is missing"}, "no job is started: disk-1 is missing"},
		{[]string{status.PortTaken + ": process 7 (web) has it"}, "monit's port is taken: process 7 (web) has it; end that process"},
		{nil, "the supervisor does not answer; 'sudo agent doctor' shows more: connection refused"},
	} {
		if got := explain(&status.Document{Warnings: c.warnings}, free, refused); got.Error() != c.want {
			t.Errorf("%q: %v, want %s", c.warnings, got, c.want)
		}
	}
}

// TestLastLines: a job owns its log directory. Escape sequences are not printed, a link out of it is not followed.
func TestLastLines(t *testing.T) {
	base := t.TempDir()
	dirs := vcap.New(base)
	dir := filepath.Join(dirs.JobLogs(), "a")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 5000) + "\none\n\x1b[2Jtwo\nthree\nfour\n"
	secret := filepath.Join(base, "secret")
	for path, text := range map[string]string{filepath.Join(dir, "a.log"): long, secret: "secret"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(lastLines(dirs, filepath.Join(dir, "a.log")), "|"); !strings.HasSuffix(got,
		"two|three|four") || strings.Contains(got, "\x1b") {
		t.Errorf("got %q", got)
	}
	if err := os.Symlink(secret, filepath.Join(dir, "b.log")); err != nil {
		t.Fatal(err)
	}
	if got := lastLines(dirs, filepath.Join(dir, "b.log")); got != nil {
		t.Errorf("a link out of the directory was followed: %q", got)
	}
}
