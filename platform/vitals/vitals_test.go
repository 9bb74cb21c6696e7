package vitals

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// gauge returns a gauge for captured files, with a clock and disks of the test.
func gauge(t *testing.T, capture string) (*Gauge, *time.Time, string) {
	t.Helper()
	root := t.TempDir()
	if err := os.CopyFS(root, os.DirFS(filepath.Join("testdata", capture))); err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_000_000, 0)
	g := &Gauge{root: root, now: func() time.Time { return now }, last: map[string]usage{}}
	first, err := g.sample()
	if err != nil {
		t.Fatal(err)
	}
	g.older, g.newer = first, first
	return g, &now, root
}

func write(t *testing.T, root, path, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(root, path), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestGolden(t *testing.T) {
	for capture, want := range map[string]string{
		"jammy": `{"cpu":{"sys":"10.0","user":"30.0","wait":"5.0"},"load":["0.12","0.30","1.25"],` +
			`"mem":{"kb":"4096064","percent":"25"},"swap":{"kb":"2097151","percent":"25"},"uptime":{"secs":86400}}`,
		"small": `{"cpu":{"sys":"10.0","user":"30.0","wait":"5.0"},"load":["0.00","0.01","0.05"],` +
			`"mem":{"kb":"500000","percent":"50"},"swap":{"kb":"0","percent":"0"},"uptime":{}}`,
	} {
		t.Run(capture, func(t *testing.T) {
			g, now, root := gauge(t, capture)
			*now = now.Add(30 * time.Second)
			// 1,000 ticks: 200 user, 100 nice, 100 system, 450 idle, 50 waiting, the rest others'.
			if capture == "jammy" {
				write(t, root, "proc/stat", "cpu  10132353 290796 3084819 46828933 16733 30 25225 175668 7 7\n")
			} else {
				write(t, root, "proc/stat", "cpu  200 100 100 550 50\n")
			}
			v, err := g.Measure(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			v.Disk = nil
			got, err := json.Marshal(v)
			if err != nil || string(got) != want {
				t.Errorf("got %s, %v, want %s", got, err, want)
			}
		})
	}
}

func TestCPUFirstValueIsNotTheAverageSinceBoot(t *testing.T) {
	g, now, root := gauge(t, "jammy")
	if c, err := g.cpu(); err != nil || c != (CPU{Sys: "0.0", User: "0.0", Wait: "0.0"}) {
		t.Errorf("got %+v, %v, want zero: no time has passed", c, err)
	}
	step := func(after time.Duration, stat, wantUser string) {
		t.Helper()
		*now = now.Add(after)
		write(t, root, "proc/stat", stat)
		if c, err := g.cpu(); err != nil || c.User != wantUser {
			t.Errorf("got user %q, %v, want %q", c.User, err, wantUser)
		}
	}
	// user grows, idle grows; nothing else moves.
	step(time.Second, "cpu  10132253 290696 3084719 46828483 16683 0 25195 175628\n", "100.0")
	step(time.Second, "cpu  10132253 290696 3084719 46828583 16683 0 25195 175628\n", "50.0")
	step(10*time.Second, "cpu  10132253 290696 3084719 46829383 16683 0 25195 175628\n", "10.0")
	// An average since the sample before the last: the busy second at the start is in it until
	// the window has moved on.
	step(10*time.Second, "cpu  10132253 290696 3084719 46830383 16683 0 25195 175628\n", "0.0")
	step(10*time.Second, "cpu  10133253 290696 3084719 46830383 16683 0 25195 175628\n", "100.0")
	// Counters that went back start a new account.
	step(10*time.Second, "cpu  5 0 0 5 0 0 0 0\n", "0.0")
	step(10*time.Second, "cpu  10 0 0 10 0 0 0 0\n", "50.0")
}

func TestDisks(t *testing.T) {
	g := New("/", "/proc", "/proc/self")
	v, err := g.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, there := v.Disk["system"]; !there {
		t.Errorf("got %v, want the system's disk", v.Disk)
	}
	if _, there := v.Disk["ephemeral"]; !there {
		t.Errorf("got %v, want /proc, which is a mount point", v.Disk)
	}
	if _, there := v.Disk["persistent"]; there {
		t.Errorf("got %v, want no disk at a plain directory", v.Disk)
	}
	g = New("/", "/no-such-directory", "/")
	if v, err = g.Measure(t.Context()); err != nil || len(v.Disk) != 2 {
		t.Errorf("got %v, %v, want what is missing left out", v.Disk, err)
	}
}

func TestFull(t *testing.T) {
	for _, tc := range []struct {
		st   unix.Statfs_t
		want Disk
	}{
		// Blocks kept for root count as free.
		{unix.Statfs_t{Blocks: 1000, Bfree: 585, Bavail: 500, Files: 1000, Ffree: 664},
			Disk{Percent: "42", InodePercent: "34"}},
		{unix.Statfs_t{Blocks: 3, Bfree: 1}, Disk{Percent: "67", InodePercent: "0"}},
		{unix.Statfs_t{}, Disk{Percent: "0", InodePercent: "0"}},
		{unix.Statfs_t{Blocks: 5, Bfree: 9}, Disk{Percent: "0", InodePercent: "0"}},
	} {
		if got := full(tc.st); got != tc.want {
			t.Errorf("got %+v, want %+v", got, tc.want)
		}
	}
}

func TestDamage(t *testing.T) {
	for path, contents := range map[string][]string{
		"proc/stat":    {"", "cpu", "cpu a b c d e", "intr 1 2 3 4 5 6", "cpu  1 2 3"},
		"proc/meminfo": {"", "MemTotal: x kB", "MemTotal"},
		"proc/loadavg": {"", "1 2", "a b c"},
		"proc/uptime":  {"", "x", "-1 2"},
	} {
		for _, content := range contents {
			g, _, root := gauge(t, "jammy")
			write(t, root, path, content)
			if v, err := g.Measure(t.Context()); err == nil {
				t.Errorf("%s with %q: got %+v, want an error", path, content, v)
			}
		}
	}
}

func FuzzMeasure(f *testing.F) {
	f.Add("cpu  1 2 3 4 5 6 7 8 9 10\n", "MemTotal: 5 kB\nMemAvailable: 9 kB\n", "0.1 0.2 0.3 1/2 3\n", "1.5 2\n")
	f.Fuzz(func(t *testing.T, stat, meminfo, loadavg, uptime string) {
		root := t.TempDir()
		if err := os.Mkdir(filepath.Join(root, "proc"), 0o755); err != nil {
			t.Fatal(err)
		}
		for path, content := range map[string]string{"proc/stat": stat, "proc/meminfo": meminfo, "proc/loadavg": loadavg,
			"proc/uptime": uptime} {
			write(t, root, path, content)
		}
		// Only that it does not panic; the numbers are judged above.
		_, _ = New(root, "/a", "/b").Measure(t.Context())
	})
}
