//go:build root

package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/internal/vcap"
	"cambium/platform/copytree/worker"
	"cambium/platform/device"
	"cambium/platform/mount"
	"cambium/settings"
)

// The crash tests run the real sequences in a child process, which is killed with SIGKILL: by itself between two steps,
// or by the parent at a random moment. The parent then starts another child, as the supervisor would start the agent,
// and examines the disks.

// job describes the work of one child process.
type job struct {
	Base      string
	Ephemeral string
	Disks     map[string]string // CID to device
	Flow      string
	KillAt    int // the step before which the child kills itself; -1 for never
}

// flows lists the sequences of calls that a boot and the Director make.
var flows = map[string]func(Disks, job) error{
	"prepare": func(d Disks, j job) error {
		if _, err := d.Ephemeral.Setup(ctx, &settings.DiskHint{Path: j.Ephemeral}, nil, "agent-1", true); err != nil {
			return err
		}
		if err := boot(d); err != nil {
			return err
		}
		if err := d.Persistent.Mount(ctx, "old"); err != nil {
			return err
		}
		return d.Persistent.Mount(ctx, "new")
	},
}

// fileRecords are records that survive the child.
type fileRecords struct {
	records
	path string
}

func (r *fileRecords) ManagedCID() (string, error) {
	data, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(data), err
}
func (r *fileRecords) SetManagedCID(cid string) error {
	return os.WriteFile(r.path, []byte(cid), 0o600)
}

func TestMain(m *testing.M) {
	worker.ServeIfCalled(context.Background())
	if text := os.Getenv("CAMBIUM_CRASH_CHILD"); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	looptest.Main(m)
}

func child(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	logger := logrus.New()
	logger.SetOutput(os.Stderr)
	resolver, err := device.New(device.Options{}, logger.WithField("part", "device"))
	if err != nil {
		return err
	}
	r := &fileRecords{records: records{disks: map[string]settings.PersistentDisk{}},
		path: filepath.Join(j.Base, "bosh", "mounted")}
	for cid, path := range j.Disks {
		if err := looptest.Guard(path); err != nil {
			return err
		}
		r.disks[cid] = settings.PersistentDisk{CID: cid, Hint: settings.DiskHint{Path: path}}
	}
	d := New(Config{Dirs: vcap.New(j.Base), Resolver: resolver, Known: r, Program: "/proc/self/exe",
		Log: logger.WithField("part", "disks")})
	m := d.Persistent.Machine
	m.Memory = func() (int64, error) { return 16 << 20, nil }
	steps := 0
	m.CrashPoint = func(name string) {
		fmt.Println(name)
		if steps == j.KillAt {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
		steps++
	}
	return flows[j.Flow](d, j)
}

// world is one set of disks: one for the ephemeral data, one with a user's files, one blank.
type world struct {
	t        testing.TB
	job      job
	old, new *looptest.Device
	sum      string // of the user's files
}

func newWorld(t testing.TB, flow string) *world {
	t.Helper()
	looptest.Require(t)
	base := filepath.Join(t.TempDir(), "vcap")
	if err := os.MkdirAll(filepath.Join(base, "bosh"), 0o755); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, old: looptest.New(t, 48<<20), new: looptest.New(t, 64<<20)}
	w.job = job{Base: base, Ephemeral: looptest.New(t, 64<<20).Path, Flow: flow, KillAt: -1,
		Disks: map[string]string{"old": w.old.Path, "new": w.new.Path}}
	// The user's disk, made and filled before anything goes wrong.
	part := partitioned(t, w.old, "label: gpt\nstart=2048, name=\"bosh-partition-0\"\n")
	tool(t, part, "mkfs.ext4", "-qF", part)
	filledBy(t, part, "ext4", func(dir string) {
		for i := range 40 {
			sub := filepath.Join(dir, "d"+strconv.Itoa(i%5))
			if err := os.MkdirAll(sub, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(sub, "f"+strconv.Itoa(i)), strings.Repeat(strconv.Itoa(i), 1000*i))
		}
		w.sum = treeSum(t, dir)
	})
	return w
}

// treeSum returns a checksum of all names, modes and contents in a directory.
func treeSum(t testing.TB, dir string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", "cd \""+dir+"\" && find . -printf '%P %m %y\\n' -type f -exec sha256sum {} \\; | sort | sha256sum").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func (w *world) start(killAt int) *exec.Cmd {
	w.t.Helper()
	j := w.job
	j.KillAt = killAt
	text, err := json.Marshal(j)
	if err != nil {
		w.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(self)
	// A program with the race detector sleeps for a second when it ends, unless told not to.
	cmd.Env = append(os.Environ(), "CAMBIUM_CRASH_CHILD="+string(text), "GORACE=atexit_sleep_ms=0")
	return cmd
}

// run lets a child finish and returns the steps it went through.
func (w *world) run() []string {
	w.t.Helper()
	cmd := w.start(-1)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("after the crash: %v\n%s", err, stderr.String())
	}
	return strings.Fields(strings.ReplaceAll(string(out), " ", "_"))
}

// dirs of the agent under test.
func (w *world) dirs() vcap.Dirs { return vcap.New(w.job.Base) }

// checkPrepared checks the disks after any number of crashes and one complete run.
func (w *world) checkPrepared() {
	w.t.Helper()
	for target, part := range map[string]string{
		w.dirs().Data():                 w.job.Ephemeral + "p2",
		w.dirs().Store():                w.old.Path + "p1",
		w.dirs().StoreMigrationTarget(): w.new.Path + "p1",
	} {
		if got := mountedSource(w.t, target); got != part {
			w.t.Errorf("%s is %q, want %s", target, got, part)
		}
	}
	if got := treeSum(w.t, w.dirs().Store()); got != w.sum {
		w.t.Error("the user's files are not what they were")
	}
	if got := read(w.t, filepath.Join(w.job.Base, "bosh", "mounted")); got != "old" {
		w.t.Errorf("recorded %q, want old", got)
	}
	w.unmount()
	for _, part := range []string{w.job.Ephemeral + "p2", w.old.Path + "p1", w.new.Path + "p1"} {
		tool(w.t, part, "e2fsck", "-nf", part)
	}
}

func (w *world) unmount() {
	w.t.Helper()
	for _, target := range []string{w.dirs().StoreMigrationTarget(), w.dirs().Store(), w.dirs().Data()} {
		if err := mount.Unmount(ctx, target); err != nil {
			w.t.Fatal(err)
		}
	}
}

// from lists the first steps of flows before which a child is killed. Earlier steps belong to other flows.
var from = map[string]string{"migrate": "mark_migration_target"}

// crashes runs a flow once to count its steps, then kills it before each of them and at random moments. check examines
// the result of a second start.
func crashes(t *testing.T, flow string, random int, setup func(*world), check func(*world)) {
	t.Helper()
	w := newWorld(t, flow)
	setup(w)
	begin := time.Now()
	steps := w.run()
	took := time.Since(begin)
	check(w)
	if len(steps) < 4 {
		t.Fatalf("only the steps %v", steps)
	}
	for i, name := range steps {
		if i < slices.Index(steps, from[flow]) {
			continue
		}
		t.Run(fmt.Sprintf("before %d %s", i, name), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, flow)
			setup(w)
			out, err := w.start(i).CombinedOutput()
			if err == nil {
				t.Fatalf("the child was not killed:\n%s", out)
			}
			w.run()
			check(w)
		})
	}
	source := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	for i := range random {
		after := time.Duration(source.Int64N(int64(took)))
		t.Run(fmt.Sprintf("random %d after %v", i, after), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, flow)
			setup(w)
			for range 1 + i%2 { // every other time the second start is killed as well
				cmd := w.start(-1)
				cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(after)
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
			w.run()
			check(w)
		})
	}
}

func TestRootCrashPrepare(t *testing.T) {
	crashes(t, "prepare", 4, func(*world) {}, (*world).checkPrepared)
}
