//go:build root

package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/internal/racer"
	"cambium/internal/treetest"
)

func TestMain(m *testing.M) {
	ServeIfCalled(context.Background())
	racer.RunIfCalled()
	looptest.Main(m)
}

const program = "/proc/self/exe"

// odd is a file name that is not valid UTF-8.
const odd = "n\xff\xfee"

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func quiet(Report) {}

// mark is the name of the mark.
const mark = ".mark"

// run makes a complete copy.
func run(t *testing.T, r Request, report func(Report)) error {
	t.Helper()
	r.Mark = mark
	must(t, os.WriteFile(filepath.Join(r.To, mark), nil, 0o600))
	c, err := Start(t.Context(), program, r)
	must(t, err)
	err = c.Copy(report)
	if err == nil {
		_, err = c.Verify(report)
	}
	if err == nil {
		err = c.Complete()
	}
	return errors.Join(err, c.Close())
}

// disk returns the mount point of a new file system.
func disk(t *testing.T, kind string) string {
	t.Helper()
	d := looptest.New(t, 400<<20)
	if out, err := exec.Command("mkfs."+kind, "-q", d.Path).CombinedOutput(); err != nil {
		t.Fatalf("mkfs: %v: %s", err, out)
	}
	dir := filepath.Join(t.TempDir(), "m")
	must(t, os.Mkdir(dir, 0o755))
	must(t, unix.Mount(d.Path, dir, kind, 0, ""))
	return dir
}

func trees(t *testing.T) (from, to string) {
	t.Helper()
	from, to = t.TempDir(), t.TempDir()
	for _, name := range []string{"a", "b", odd} {
		must(t, os.WriteFile(filepath.Join(from, name), []byte("content of "+name), 0o640))
	}
	return from, to
}

func TestRootRun(t *testing.T) {
	from, to := trees(t)
	var reports []Report
	must(t, run(t, Request{From: from, To: to, Exact: true}, func(r Report) { reports = append(reports, r) }))
	if got, err := os.ReadFile(filepath.Join(to, "a")); err != nil || string(got) != "content of a" {
		t.Errorf("the copy holds %q, %v", got, err)
	}
	var ends []Report
	for _, r := range reports {
		if r.End {
			ends = append(ends, r)
		}
	}
	if len(ends) != 2 || ends[0].Phase != PhaseCopy || ends[1].Phase != PhaseVerify || ends[1].Files != 4 ||
		ends[1].Bytes == 0 || !reports[0].Begin {
		t.Errorf("reports are %+v, want two phases with three files and their directory", reports)
	}
	if err := run(t, Request{From: filepath.Join(from, "nowhere"), To: to}, quiet); !errors.Is(err, unix.ENOENT) ||
		!strings.Contains(err.Error(), "nowhere") {
		t.Errorf("got %v, want the kernel's reason and the name", err)
	}
}

// TestRootDifference: the error of a change names the file.
func TestRootDifference(t *testing.T) {
	from, to := trees(t)
	err := run(t, Request{From: from, To: to, Exact: true}, func(r Report) {
		if r.Phase == PhaseVerify && r.Begin {
			must(t, os.WriteFile(filepath.Join(from, odd), []byte("x"), 0o640))
		}
	})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q differs in size", odd)) {
		t.Errorf("got %v, want a difference in %q", err, odd)
	}
	if _, err := os.Lstat(filepath.Join(to, mark)); err != nil {
		t.Errorf("the mark of what is not complete: %v", err)
	}
}

// TestRootTargetIsFreeBetweenSteps: between two steps, nothing is open on the target, so that it can be unmounted.
func TestRootTargetIsFreeBetweenSteps(t *testing.T) {
	from, to := disk(t, "ext4"), disk(t, "ext4")
	must(t, os.WriteFile(filepath.Join(from, "a"), []byte("content"), 0o640))
	var st unix.Stat_t
	must(t, unix.Stat(to, &st))
	must(t, run(t, Request{From: from, To: to, Exact: true}, func(r Report) {
		if r.Phase != PhaseVerify || !r.Begin {
			return
		}
		node := filepath.Join(t.TempDir(), "node")
		must(t, unix.Unmount(to, 0))
		must(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(st.Dev)))
		f, err := os.OpenFile(node, os.O_RDONLY|unix.O_EXCL, 0)
		if err != nil {
			t.Errorf("the target is held: %v", err)
		} else {
			must(t, f.Close())
		}
		must(t, unix.Mount(node, to, "ext4", 0, ""))
	}))
}

// occupied returns a target in use by another process, for which a copying process waits.
func occupied(t *testing.T) (from, to string) {
	t.Helper()
	from, to = trees(t)
	file, err := os.Open(to)
	must(t, err)
	must(t, unix.Flock(int(file.Fd()), unix.LOCK_EX))
	t.Cleanup(func() { _ = file.Close() })
	return from, to
}

// waiting starts a process that waits for an occupied target, and returns once it does.
func waiting(t *testing.T, ctx context.Context) (*process, <-chan error) {
	t.Helper()
	from, to := occupied(t)
	p, err := start(ctx, program)
	must(t, err)
	alive, ended := make(chan struct{}, 100), make(chan error, 1)
	go func() {
		_, err := p.do(message{Phase: PhaseCopy, Request: &Request{From: from, To: to, Mark: mark}}, func(r Report) {
			if !r.Begin {
				alive <- struct{}{}
			}
		})
		ended <- err
	}()
	select {
	case <-alive:
	case <-time.After(time.Minute):
		t.Fatal("no progress is told")
	}
	return p, ended
}

func gone(p *process) bool { return errors.Is(unix.Kill(p.process.Pid(), 0), unix.ESRCH) }

func TestRootEndsWithItsContext(t *testing.T) {
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	p, ended := waiting(t, ctx)
	cancel(stopped)
	if err := <-ended; !errors.Is(err, stopped) {
		t.Errorf("got %v, want what stopped it", err)
	}
	if err := p.Close(); err != nil || !gone(p) {
		t.Errorf("got %v; the process is gone: %v", err, gone(p))
	}
}

// TestRootEndsWithItsAgent: if the agent is killed, the copying process notices only the end of its input.
func TestRootEndsWithItsAgent(t *testing.T) {
	p, ended := waiting(t, t.Context())
	if err := p.Close(); err != nil || !gone(p) {
		t.Errorf("got %v; the process is gone: %v", err, gone(p))
	}
	if err := <-ended; err == nil {
		t.Error("a target that was never free has been opened")
	}
}

func TestRootSaysHowItEnded(t *testing.T) {
	p, ended := waiting(t, t.Context())
	must(t, unix.Kill(p.process.Pid(), unix.SIGKILL))
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "the copying process ended") {
		t.Errorf("got %v, want that the process ended", err)
	}
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), "the copying process: killed by SIGKILL") {
		t.Errorf("got %v, want how", err)
	}
}

func TestRootRefusesUnknownRequests(t *testing.T) {
	for _, phase := range []string{"format", PhaseVerify} { // nothing has been copied yet
		p, err := start(t.Context(), program)
		must(t, err)
		if _, err := p.do(message{Phase: phase, Request: &Request{}}, quiet); err == nil {
			t.Errorf("request %s has succeeded", phase)
		}
		if err := p.Close(); err == nil || !strings.Contains(err.Error(), `unexpected request "`+phase+`"`) {
			t.Errorf("got %v, want what was not known", err)
		}
	}
}

// TestRootLeavesNoAccessTimes: Verify does not change access times.
func TestRootLeavesNoAccessTimes(t *testing.T) {
	from, to := disk(t, "ext4"), disk(t, "ext4")
	treetest.Fill(t, from)
	must(t, run(t, Request{From: from, To: to, Exact: true}, quiet))
	for _, name := range []string{"a/small", "dangling", "a/b", "fifo", "a", "lost+found"} {
		for _, dir := range []string{from, to} {
			var st unix.Stat_t
			must(t, unix.Lstat(filepath.Join(dir, name), &st))
			if want := (unix.Timespec{Sec: 1e9, Nsec: 1}); st.Atim != want {
				t.Errorf("%s was accessed at %v, want %v", name, st.Atim, want)
			}
		}
	}
}

// TestRootCopiesWhatMountsCover: a copy contains the files hidden by mounts in a tree. What is mounted there is neither
// read nor written.
func TestRootCopiesWhatMountsCover(t *testing.T) {
	from, to := disk(t, "ext4"), disk(t, "ext4")
	cover := func(dir, name string, data uintptr) {
		must(t, os.MkdirAll(filepath.Join(dir, name), 0o750))
		must(t, os.WriteFile(filepath.Join(dir, name, "covered"), []byte("covered"), 0o600))
		if data == unix.MS_BIND {
			must(t, unix.Mount(filepath.Join(dir, "other"), filepath.Join(dir, name), "", unix.MS_BIND, ""))
		} else {
			must(t, unix.Mount("tmpfs", filepath.Join(dir, name), "tmpfs", 0, ""))
		}
		t.Cleanup(func() { must(t, unix.Unmount(filepath.Join(dir, name), 0)) })
		must(t, os.WriteFile(filepath.Join(dir, name, "shown"), []byte("shown"), 0o600))
	}
	must(t, os.Mkdir(filepath.Join(from, "other"), 0o750))
	cover(from, "bound", unix.MS_BIND)
	cover(from, "mounted", 0)
	cover(to, "mounted", 0)
	must(t, run(t, Request{From: from, To: to}, quiet))
	for name, want := range map[string]bool{
		"bound/covered": true, "bound/shown": false, "other/shown": true,
		"mounted/shown": true, // of the target's own mount, which is still there
	} {
		if _, err := os.Stat(filepath.Join(to, name)); (err == nil) != want {
			t.Errorf("the target has %s: %v, want %v", name, err == nil, want)
		}
	}
	must(t, unix.Mount(to, to, "", unix.MS_BIND, ""))
	defer func() { must(t, unix.Unmount(to, 0)) }()
	if _, err := os.Stat(filepath.Join(to, "mounted", "covered")); err != nil {
		t.Errorf("below the target's mount: %v", err)
	}
	// The copies of the mounts are gone.
	table, err := os.ReadFile("/proc/self/mountinfo")
	if n := strings.Count(string(table), " "+from+" "); err != nil || n != 1 {
		t.Errorf("%s is mounted %d times, %v", from, n, err)
	}
}

// TestRootLongNameOfAClampedTime: the path of a file with a clamped time may be longer than any line.
func TestRootLongNameOfAClampedTime(t *testing.T) {
	from := disk(t, "ext4")
	d := looptest.New(t, 400<<20)
	if out, err := exec.Command("mkfs.ext4", "-q", "-I", "128", d.Path).CombinedOutput(); err != nil {
		t.Fatalf("mkfs: %v: %s", err, out)
	}
	to := filepath.Join(t.TempDir(), "m")
	must(t, errors.Join(os.Mkdir(to, 0o755), unix.Mount(d.Path, to, "ext4", 0, "")))
	dir, err := os.OpenRoot(from)
	must(t, err)
	name := strings.Repeat("d", 250)
	whole := time.Unix(1e9, 0)
	for range 300 {
		must(t, dir.Mkdir(name, 0o755))
		next, err := dir.OpenRoot(name)
		must(t, errors.Join(err, dir.Chtimes(".", whole, whole), dir.Close()))
		dir = next
	}
	must(t, dir.WriteFile("file", nil, 0o644))
	must(t, dir.Chtimes("file", whole, time.Unix(1e9, 1)))
	must(t, errors.Join(dir.Chtimes(".", whole, whole), dir.Close(), os.Chtimes(from, whole, whole)))
	must(t, os.Remove(filepath.Join(from, "lost+found")))
	must(t, os.Chtimes(from, whole, whole))
	must(t, run(t, Request{From: from, To: to, Exact: true}, quiet))
}
