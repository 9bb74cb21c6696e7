package logs

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"cambium/internal/vcap"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"
)

func collector(t testing.TB) Collector {
	t.Helper()
	root := t.TempDir()
	log := logrus.New()
	log.SetOutput(t.Output())
	c := Collector{Dirs: vcap.New(filepath.Join(root, "var/vcap")), Root: root, Log: logrus.NewEntry(log)}
	for _, dir := range []string{c.Dirs.SysLog(), c.Dirs.BoshLog(), c.Dirs.Tmp(), filepath.Join(root, "var/log")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(c.Dirs.DataSys(), c.Dirs.Sys()); err != nil {
		t.Fatal(err)
	}
	return c
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
}

// files reads an archive: what is in it, by name.
func files(t testing.TB, data []byte) map[string]string {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := got[h.Name]; twice {
			t.Errorf("%s is in the archive twice", h.Name)
		}
		if !strings.HasPrefix(h.Name, "./") {
			t.Errorf("%s does not begin with ./", h.Name)
		}
		got[h.Name] = string(content)
	}
}

func names(m map[string]string) string {
	var all []string
	for name := range m {
		if !strings.HasSuffix(name, "/") {
			all = append(all, strings.TrimPrefix(name, "./"))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func collect(t testing.TB, c Collector, s Selection) map[string]string {
	t.Helper()
	var b bytes.Buffer
	if err := c.Collect(t.Context(), s, &b); err != nil {
		t.Fatal(err)
	}
	return files(t, b.Bytes())
}

func TestSelections(t *testing.T) {
	c := collector(t)
	for _, name := range []string{"a/a.log", "a/deep/er/x.log", "a/.hidden.log", "b/b.log", "b/b.txt", "top.log"} {
		write(t, filepath.Join(c.Dirs.SysLog(), name), name)
	}
	write(t, filepath.Join(c.Dirs.BoshLog(), "current"), "agent")
	write(t, filepath.Join(c.Root, "var/log/syslog"), "system")
	for _, s := range []struct {
		types   string
		filters []string
		want    string
	}{
		{"job", nil, "a/.hidden.log a/a.log a/deep/er/x.log b/b.log b/b.txt top.log"},
		{"job", []string{}, "a/.hidden.log a/a.log a/deep/er/x.log b/b.log b/b.txt top.log"},
		{"job", []string{"**/*"}, "a/.hidden.log a/a.log a/deep/er/x.log b/b.log b/b.txt top.log"},
		{"job", []string{"*.log"}, "top.log"},
		{"job", []string{"**/*.log"}, "a/.hidden.log a/a.log a/deep/er/x.log b/b.log top.log"},
		{"job", []string{"a"}, "a/.hidden.log a/a.log a/deep/er/x.log"},
		{"job", []string{"a/", "./b/*.txt"}, "a/.hidden.log a/a.log a/deep/er/x.log b/b.txt"},
		{"job", []string{"a/**/x.log"}, "a/deep/er/x.log"},
		{"job", []string{"{a,b}/?.log"}, "a/a.log b/b.log"},
		{"job", []string{"nothing/*"}, ""},
		{"agent", nil, "current"},
		{"system", nil, "var/log/syslog"},
		{"job,agent,system", []string{"top.log", "current", "syslog"}, "current top.log var/log/syslog"},
	} {
		if got := names(collect(t, c, Selection{s.types, s.filters})); got != s.want {
			t.Errorf("%s %q: got %q, want %q", s.types, s.filters, got, s.want)
		}
	}
	for _, s := range []Selection{{"", nil}, {"jobs", nil}, {"job,other", nil}, {"job", []string{"/etc/*"}},
		{"job", []string{"../../*"}}, {"job", []string{"a/../../x"}}, {"job", []string{"[a"}}} {
		if err := c.Collect(t.Context(), s, io.Discard); err == nil {
			t.Errorf("%v: got no error", s)
		}
	}
}

func TestHostileLogDirectories(t *testing.T) {
	c := collector(t)
	secret := filepath.Join(c.Root, "etc/shadow")
	write(t, secret, "canary")
	write(t, filepath.Join(c.Root, "var/log/syslog"), "system canary")
	job := filepath.Join(c.Dirs.SysLog(), "job")
	write(t, filepath.Join(job, "real.log"), "real")
	for name, target := range map[string]string{
		"absolute.log": secret, "relative.log": "../../../../../../etc/shadow",
		"system.log": filepath.Join(c.Root, "var/log/syslog"),
		"dir":        filepath.Join(c.Root, "etc"), "inside.log": "real.log", "loop.log": "loop.log", "dangling.log": "nowhere",
	} {
		if err := os.Symlink(target, filepath.Join(job, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(job, "pipe.log"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := collect(t, c, Selection{Types: "job"})
	if names(got) != "job/inside.log job/real.log" || got["./job/inside.log"] != "real" {
		t.Errorf("got %v", got)
	}
	for name, content := range got {
		if strings.Contains(content, "canary") {
			t.Errorf("%s holds what is outside of the log directory", name)
		}
	}
	// The agent's own directory may link to the system's logs, as stemcells do, and no further.
	for name, target := range map[string]string{"current": filepath.Join(c.Root, "var/log/syslog"), "evil": secret} {
		if err := os.Symlink(target, filepath.Join(c.Dirs.BoshLog(), name)); err != nil {
			t.Fatal(err)
		}
	}
	if got := collect(t, c, Selection{Types: "agent"}); names(got) != "current" || got["./current"] != "system canary" {
		t.Errorf("agent: got %v", got)
	}
}

// disturbing is a writer that does something to the logs in the middle of the first file.
type disturbing struct {
	bytes.Buffer
	once func()
}

func (d *disturbing) Write(p []byte) (int, error) {
	if d.once != nil && d.Len() > 10_000 {
		d.once()
		d.once = nil
	}
	return d.Buffer.Write(p)
}

func TestFilesThatChangeWhileTheyAreRead(t *testing.T) {
	c := collector(t)
	at := func(name string) string { return filepath.Join(c.Dirs.SysLog(), name) }
	var noise bytes.Buffer
	for i := range 150_000 {
		fmt.Fprintf(&noise, "%d ", uint32(i)*2654435761)
	}
	write(t, at("a.log"), noise.String())
	write(t, at("b-shrinks.log"), strings.Repeat("b", 100_000))
	write(t, at("c-grows.log"), "c")
	write(t, at("d-vanishes.log"), "d")
	d := &disturbing{once: func() {
		f, err := os.OpenFile(at("a.log"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString("grown")
		f.Close()
		os.Truncate(at("b-shrinks.log"), 10)
		os.Remove(at("d-vanishes.log"))
	}}
	if err := c.Collect(t.Context(), Selection{Types: "job"}, d); err != nil {
		t.Fatal(err)
	}
	got := files(t, d.Bytes())
	if names(got) != "a.log b-shrinks.log c-grows.log" || got["./a.log"] != noise.String() ||
		got["./b-shrinks.log"] != strings.Repeat("b", 10) {
		t.Errorf("got %s, %d bytes of a, %q", names(got), len(got["./a.log"]), got["./b-shrinks.log"])
	}
	// A file that shrinks between its size being noted and its end being read.
	p := &packing{c: c, ctx: t.Context(), buffer: make([]byte, 10), progress: newReporter(c)}
	var filled strings.Builder
	if err := p.copy(&filled, strings.NewReader("short"), 100); err != nil ||
		filled.String() != "short"+strings.Repeat("\x00", 95) {
		t.Errorf("got %q, %v; want zeros at the end", filled.String(), err)
	}
}

func TestCollectWhileLogsAreWritten(t *testing.T) {
	c := collector(t)
	path := filepath.Join(c.Dirs.SysLog(), "busy.log")
	write(t, path, strings.Repeat("line\n", 1000))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Error(err)
				return
			}
			f.WriteString(strings.Repeat("line\n", 500))
			f.Close()
			os.Truncate(path, 5000) // as copytruncate does
		}
	}()
	for range 50 {
		got := collect(t, c, Selection{Types: "job"})
		if text := strings.TrimRight(got["./busy.log"], "\x00"); strings.Trim(text, "line\n") != "" || len(text) == 0 {
			t.Fatalf("got %.60q", text)
		}
	}
	cancel()
	<-done
}

func TestErrorsOfTheReceiverAndTheCaller(t *testing.T) {
	c := collector(t)
	write(t, filepath.Join(c.Dirs.SysLog(), "a.log"), "a")
	full := errors.New("disk full")
	if err := c.Collect(t.Context(), Selection{Types: "job"}, failing{full}); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("canceled")
	cancel(why)
	if err := c.Collect(ctx, Selection{Types: "job"}, io.Discard); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestBundle(t *testing.T) {
	c := collector(t)
	write(t, filepath.Join(c.Dirs.SysLog(), "a.log"), "a")
	owner, uid := "", uint32(os.Geteuid())
	if uid == 0 {
		owner, uid = "daemon", 1
	}
	b, err := c.Bundle(t.Context(), Selection{Types: "job"}, owner)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(b.Path)
	if err != nil || names(files(t, data)) != "a.log" || b.SHA512 != fmt.Sprintf("sha512:%x", sha512.Sum512(data)) {
		t.Errorf("got %+v, %v", b, err)
	}
	info, err := os.Stat(b.Path)
	if err != nil || info.Mode().Perm() != fs.FileMode(0o600) || info.Sys().(*syscall.Stat_t).Uid != uid {
		t.Errorf("got %v, %v; want mode 0600 and user %s", info, err, owner)
	}
	if err := os.Remove(b.Path); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []struct {
		s     Selection
		owner string
	}{{Selection{Types: "job"}, "no-such-user"}, {Selection{Types: "x"}, ""}} {
		if _, err := c.Bundle(t.Context(), bad.s, bad.owner); err == nil {
			t.Errorf("%v: got no error", bad)
		}
	}
	if left, _ := os.ReadDir(c.Dirs.Tmp()); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestRotation(t *testing.T) {
	c := collector(t)
	r := Rotation{Root: c.Root, LogDir: "/var/vcap/data/sys/log", MaxSize: "10M", Log: c.Log}
	const upper = "/var/vcap/data/sys/log/*.log /var/vcap/data/sys/log/.*.log " +
		"/var/vcap/data/sys/log/*/*.log /var/vcap/data/sys/log/*/.*.log "
	const lower = "/var/vcap/data/sys/log/*/*/*.log /var/vcap/data/sys/log/*/*/.*.log "
	const options = "  missingok\n  rotate 7\n  compress\n  copytruncate\n  size=10M\n}\n"
	expect := func(name, want string) {
		t.Helper()
		path, got, err := r.File()
		if err != nil || string(got) != want || path != filepath.Join(c.Root, "etc/logrotate.d/vcap") {
			t.Errorf("%s: got %s with %q, %v; want %q", name, path, got, err, want)
		}
	}
	expect("no configuration", upper+"{\n  su root root\n"+options+lower+"{\n  su vcap vcap\n"+options)
	conf := "weekly\n# use the syslog group\nsu root syslog\ninclude /etc/logrotate.d\n"
	if err := os.MkdirAll(filepath.Join(c.Root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.Root, "etc/logrotate.conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	expect("stock stemcell, with a user for all logs", upper+lower+"{\n"+options)
	r.MaxSize = "1M\n}\n/etc/passwd {"
	if _, _, err := r.File(); err == nil {
		t.Error("an invalid size: got no error")
	}
}

func TestRotationHook(t *testing.T) {
	c := collector(t)
	hook := filepath.Join(t.TempDir(), "hook")
	ran := hook + ".ran"
	if err := os.WriteFile(hook, []byte("#!/bin/sh\necho x >> "+ran+"\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	Rotation{Hook: hook, Log: c.Log}.RunHook(t.Context())
	if _, err := os.Stat(ran); err != nil {
		t.Error("the hook did not run")
	}
	Rotation{Hook: "/nonexistent", Log: c.Log}.RunHook(t.Context())
}

// What cannot be packed is left out and named in the log, be it a file or a whole source; the others are packed.
func TestWhatCannotBePackedIsNamed(t *testing.T) {
	c := collector(t)
	log, logged := test.NewNullLogger()
	c.Log = logrus.NewEntry(log)
	write(t, filepath.Join(c.Dirs.SysLog(), "a.log"), "a")
	if err := errors.Join(os.Remove(c.Dirs.BoshLog()), os.WriteFile(c.Dirs.BoshLog(), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	c.Journal = func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, "from the journal")
		return err
	}
	write(t, filepath.Join(c.Root, "var/log/z.log"), "z")
	got := collect(t, c, Selection{Types: "job,agent,system"})
	if names(got) != "a.log var/log/z.log" {
		t.Errorf("got %s", names(got))
	}
	var named []string
	for _, e := range logged.AllEntries() {
		if e.Message == "not added to the log archive" {
			named = append(named, fmt.Sprint(e.Data["path"]))
		}
	}
	if want := []string{c.Dirs.BoshLog(), currentName}; !slices.Equal(named, want) {
		t.Errorf("the log names %q, want %q", named, want)
	}
}

// brokenPipe ends an archive in the middle of a file.
type brokenPipe struct{ left int }

func (b *brokenPipe) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

// An archive that cannot be written is an error: no file is blamed for it.
func TestAnArchiveThatCannotBeWritten(t *testing.T) {
	c := collector(t)
	for i := range 5 {
		noise := make([]byte, 1<<20)
		for n := range noise {
			noise[n] = byte(rand.N(256))
		}
		write(t, filepath.Join(c.Dirs.SysLog(), fmt.Sprint(i, ".log")), string(noise))
	}
	err := c.Collect(t.Context(), Selection{Types: "job"}, &brokenPipe{left: 2 << 20})
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
}
