//go:build vm && soak

package vm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cambium/integration/writes/replay"
	"cambium/internal/status"
	"cambium/lab"
	"cambium/lab/baseline"
	"cambium/lab/disk"
	"cambium/lab/fusetest"
	"cambium/lab/labtest"
	"cambium/lab/machine"
	"cambium/lab/machine/qemu"
)

var (
	writesStates = flag.Int("states", 0, "how many states of each agent are tried; 0: as many as usual")
	writesSeed   = flag.Uint64("seed", rand.Uint64(), "which ones")
	writesLimit  = flag.Duration("limit", 100*time.Minute, "after how long no further state of an agent is tried")
)

// TestVMSoakWrites records everything that is written to the disks of a VM, root disk included, from the start of an
// agent that has never run to its first mounted disk. Then it boots the VM on what power cuts may have left of these
// disks, repeats the Director's request if it was not answered, and writes the agent's row of the report. What becomes of
// the other agent is reported, not judged. An agent is a part that can be run alone.
func TestVMSoakWrites(t *testing.T) {
	for _, a := range []struct {
		name, title string
		binary      func(testing.TB) string
		states      int
	}{
		{labtest.Ours, "this agent", labtest.Agent, 50},
		{labtest.BaselineName, "cloudfoundry/bosh-agent", labtest.Baseline, 30},
	} {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			m := recordFirstBoot(t, a.binary(t), a.name == labtest.Ours)
			tried, faults := 0, map[string]int{}
			count := cmp.Or(*writesStates, a.states) - 1
			states := m.r.States(rand.New(rand.NewPCG(*writesSeed, 0)), count, 0, 4096)
			for _, s := range append([]replay.State{m.r.Whole()}, states...) {
				if time.Since(begin) > *writesLimit {
					break
				}
				tried++
				err := m.try(t.Context(), s)
				t.Logf("state %d, %v, after %v: %v", tried, s, slices.Sorted(maps.Keys(m.r.Reached(s))), err)
				if f, found := errors.AsType[*fault](err); found {
					faults[f.what]++
				} else if err != nil {
					t.Fatal(err)
				}
				if err != nil && m.ours {
					t.Fail()
				}
			}
			m.report(t, a.title, tried, faults, time.Since(begin))
		})
	}
}

// report replaces the row of an agent.
func (m *recordedVM) report(t *testing.T, title string, tried int, faults map[string]int, took time.Duration) {
	t.Helper()
	converged, wrong := tried, []string{}
	for _, what := range slices.Sorted(maps.Keys(faults)) {
		converged -= faults[what]
		wrong = append(wrong, fmt.Sprintf("%d × %s", faults[what], what))
	}
	err := replay.SetRow("../../docs/results/writes.md", title, m.r.Count(fusetest.Wrote, fusetest.Zeroed),
		m.r.Count(fusetest.Flushed), tried, converged, cmp.Or(strings.Join(wrong, ", "), "nothing"),
		fmt.Sprintf("%.0f min", took.Minutes()), *writesSeed)
	if err != nil {
		t.Error(err)
	}
}

// The disks, in the order in which the kernel finds them. Both agents get the kernel's names: the other one looks for
// the partitions of any other name where they are not.
const (
	ephemeralDisk, ephemeralNode   = "ephemeral", "/dev/vdb"
	persistentDisk, persistentNode = "vol-1", "/dev/vdc"
)

var recordedDisks = []replay.Disk{{Name: qemu.RootLog, Size: 3 << 30}, {Name: ephemeralDisk, Size: 2 << 30},
	{Name: persistentDisk, Size: 512 << 20}}

// Marks of what the Director, or a job, has been told.
const (
	markDataKept = "a job flushed a file on the data disk"
	markMounted  = "mount_disk was answered"
	markKept     = "a job flushed a file on its store"
)

// recordedVM is a VM whose first boot was recorded. Its images are in memory, and at the same place for every boot.
type recordedVM struct {
	i     *lab.Instance
	vm    *qemu.Machine
	state string // the directory of the images
	r     *replay.Recording
	ours  bool
}

// keep is a job that flushes a file in a directory, in shell.
const keep = `echo precious >$0/kept && sync $0/kept $0`

// recordFirstBoot boots a machine for the first time and has a disk mounted.
func recordFirstBoot(t *testing.T, agent string, ours bool) *recordedVM {
	t.Helper()
	m := &recordedVM{ours: ours}
	dir, err := os.MkdirTemp("/dev/shm", "cambium-writes-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m.state = filepath.Join(dir, "state")
	logs := filepath.Join(dir, "logs")
	base := m.create(t, agent, logs)
	if err := m.i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	// What the lab has put into the machine is on its disk before the agent begins.
	run(t, m.i, "sh", "-c", "until systemctl is-active --quiet multi-user.target; do sleep 0.2; done; rm /etc/hold; sync")
	w := watchLogs(t, logs)
	w.mark(t, replay.MarkBegin)
	run(t, m.i, "systemctl", "start", "--no-block", "bosh-agent")
	ready(t, m.i)
	run(t, m.i, "sh", "-ec", keep, "/var/vcap/data")
	w.mark(t, markDataKept)
	if err := m.mount(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.mark(t, markMounted)
	run(t, m.i, "sh", "-ec", keep, "/var/vcap/store")
	w.mark(t, markKept)
	run(t, m.i, "sync")
	w.mark(t, replay.MarkEnd)
	w.finish(t)
	m.vm.LogWrites("")
	if err := m.i.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m.r, err = replay.FromLogs(recordedDisks, w.paths, w.all); err == nil {
		m.r.Base, err = replay.DataOf(base, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d moments, %d writes, %d flushes", len(w.all), m.r.Count(fusetest.Wrote, fusetest.Zeroed),
		m.r.Count(fusetest.Flushed))
	return m
}

// create makes the machine, whose next boot is logged. Its root disk is a layer over an image of its own, which a state
// replaces; what that held at first is in base.
func (m *recordedVM) create(t *testing.T, agent, logs string) (base string) {
	t.Helper()
	engine := virtual.Engine.(qemu.Engine)
	img, err := engine.Images.Ensure(t.Context(), agent)
	if err != nil {
		t.Fatal(err)
	}
	base, img.Disk = img.Disk, filepath.Join(m.state, qemu.RootLog)
	engine.Image, engine.RootSize = img, recordedDisks[0].Size
	if err := errors.Join(os.Mkdir(m.state, 0o700), os.Mkdir(logs, 0o700)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "--sparse=always", base, img.Disk).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l := newLab(t, func(o *lab.Options) { o.Agent, o.Engine = agent, engine })
	m.i = create(t, l, lab.VM{Files: append(baseline.Files(), hold...),
		Edit: func(d lab.Document) { d.Set("disks.ephemeral", ephemeralNode) }})
	for _, d := range recordedDisks[1:] {
		image := filepath.Join(m.state, d.Name)
		err := disk.Create(image, d.Size)
		if err == nil {
			_, err = m.i.Attach(t.Context(), machine.Disk{ID: d.Name, Image: image})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	m.vm = m.i.Machine.(*qemu.Machine)
	m.vm.LogWrites(logs)
	return base
}

// mount makes the Director's requests for a persistent disk: attach it, then mount it.
func (m *recordedVM) mount(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for _, request := range [][]any{{"add_persistent_disk", persistentDisk, persistentNode},
		{"mount_disk", persistentDisk}} {
		if _, err := m.i.Agent.Do(ctx, request[0].(string), request[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// logWatch notes how long the logs are, from the first mark on. A log has no times: that is how entries of several
// disks get an order.
type logWatch struct {
	paths []string
	stop  context.CancelFunc
	ended chan error

	mu    sync.Mutex
	files []*os.File
	all   []replay.Moment
}

// logInterval is the precision of the order: at most the time that an emulated machine needs to write to a second disk
// because a first one has been flushed.
const logInterval = time.Millisecond

func watchLogs(t *testing.T, dir string) *logWatch {
	t.Helper()
	w := &logWatch{ended: make(chan error, 1)}
	for _, d := range recordedDisks {
		w.paths = append(w.paths, filepath.Join(dir, d.Name))
		f, err := os.Open(w.paths[len(w.paths)-1])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		w.files = append(w.files, f)
	}
	ctx, stop := context.WithCancel(t.Context())
	w.stop = stop
	go func() {
		ticker := time.NewTicker(logInterval)
		defer ticker.Stop()
		var err error
		for err == nil && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-ticker.C:
				err = w.note("")
			}
		}
		w.ended <- err
	}()
	return w
}

func (w *logWatch) note(mark string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := replay.Moment{Mark: mark}
	for _, f := range w.files {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		now.Lengths = append(now.Lengths, info.Size())
	}
	if n := len(w.all); mark != "" || n > 0 && !slices.Equal(w.all[n-1].Lengths, now.Lengths) {
		w.all = append(w.all, now)
	}
	return nil
}

func (w *logWatch) mark(t *testing.T, name string) {
	t.Helper()
	if err := w.note(name); err != nil {
		t.Fatal(err)
	}
}

func (w *logWatch) finish(t *testing.T) {
	t.Helper()
	w.stop()
	if err := <-w.ended; err != nil {
		t.Fatal(err)
	}
}

// fault is the error of a state that did not converge.
type fault struct {
	what string
	err  error
}

func (f *fault) Error() string { return fmt.Sprintf("%s: %v", f.what, f.err) }

// stateTimeout bounds the time in which a machine must converge; on an idle host it takes half a minute.
const stateTimeout = 10 * time.Minute

// try boots the machine on a state. A fault means that it did not converge.
func (m *recordedVM) try(ctx context.Context, s replay.State) error {
	if err := m.r.Make(s, m.state); err != nil {
		return err
	}
	if err := errors.Join(m.vm.ResetRoot(ctx), m.i.Start(ctx)); err != nil {
		return err
	}
	found := m.converges(ctx, m.r.Reached(s))
	if found != nil {
		found.err = fmt.Errorf("%w\n%s", found.err, m.account(ctx))
		return errors.Join(found, m.i.Kill(ctx))
	}
	off, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	if err := m.i.Stop(off); err != nil {
		return &fault{"does not shut down", err}
	}
	for _, d := range recordedDisks[1:] {
		if err := checkFileSystems(filepath.Join(m.state, d.Name)); err != nil {
			return &fault{"a file system has errors", err}
		}
	}
	return nil
}

// converges waits for the agent, and has the disk mounted if the Director had not been told that it is.
func (m *recordedVM) converges(ctx context.Context, reached map[string]bool) *fault {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	if err := m.pong(ctx); err != nil {
		return &fault{"no pong", err}
	}
	if !reached[markMounted] {
		if err := m.mount(ctx); err != nil {
			return &fault{"the repeated mount_disk fails", err}
		}
	}
	if f := m.looked(ctx, reached); f != nil {
		return f
	}
	if _, err := m.i.Agent.Do(ctx, "get_state"); err != nil {
		return &fault{"get_state fails", err}
	}
	if !m.ours {
		return nil
	}
	return m.healthy(ctx)
}

// look prints what is mounted on directories, whether it can be written to, and what its flushed file holds, in shell.
// It is one program of many: starting one takes long in an emulated machine.
const look = `for d; do echo "$(findmnt -no SOURCE $d)|$(touch $d/written && echo writable)|$(cat $d/kept)"; done`

// looked checks both disks.
func (m *recordedVM) looked(ctx context.Context, reached map[string]bool) *fault {
	dirs := []struct{ path, node, kept string }{
		{"/var/vcap/data", ephemeralNode, markDataKept}, {"/var/vcap/store", persistentNode, markKept}}
	out, err := m.i.Output(ctx, "sh", "-c", look, "sh", dirs[0].path, dirs[1].path)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err != nil || len(lines) != len(dirs) {
		return &fault{"the machine cannot be looked at", fmt.Errorf("%q: %v", out, err)}
	}
	for n, dir := range dirs {
		got := strings.Split(lines[n], "|")
		what := ""
		switch {
		case !strings.HasPrefix(got[0], dir.node):
			what = dir.path + " is not mounted"
		case got[1] != "writable":
			what = dir.path + " cannot be written to"
		case reached[dir.kept] && got[2] != "precious":
			what = "a flushed file of " + dir.path + " is lost"
		}
		if what != "" {
			return &fault{what, fmt.Errorf("mounted, writable and kept: %q", got)}
		}
	}
	return nil
}

// healthy looks at what only this agent reports.
func (m *recordedVM) healthy(ctx context.Context) *fault {
	var d status.Document
	data, err := m.i.Status()
	if err == nil {
		err = json.Unmarshal(data, &d)
	}
	if err != nil || d.State != status.Ready || len(d.Warnings) > 0 {
		return &fault{"the agent is not ready", fmt.Errorf("it is %s, warnings %q: %v", d.State, d.Warnings, err)}
	}
	if journal, err := m.i.Journal(ctx); err != nil || strings.Contains(journal, "damaged") {
		return &fault{"a file of the agent was damaged", fmt.Errorf("journal: %v\n%s", err, journal)}
	}
	return nil
}

// endless is the number of times that the agent may end in a boot before the boot is given up.
const endless = 5

// pong waits for the agent's answer.
func (m *recordedVM) pong(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan error, 1)
	go func() { answered <- m.i.Ready(ctx) }()
	for {
		select {
		case err := <-answered:
			return err
		case <-time.After(10 * time.Second):
		}
		text, err := m.i.Output(ctx, "systemctl", "show", "-P", "NRestarts", "bosh-agent")
		if n, _ := strconv.Atoi(strings.TrimSpace(text)); err == nil && n >= endless {
			return fmt.Errorf("it has ended %d times", n)
		}
	}
}

// account returns the console and the journal of a machine that did not converge, as far as it can be reached.
func (m *recordedVM) account(ctx context.Context) string {
	console, _ := os.ReadFile(m.i.Console())
	journal, err := m.i.Journal(ctx)
	return fmt.Sprintf("console:\n%s\njournal (%v):\n%s", labtest.Tail(string(console), 2<<10), err,
		labtest.Tail(journal, 6<<10))
}

// checkFileSystems has the file systems of an image's partitions checked.
func checkFileSystems(image string) error {
	out, err := exec.Command("sfdisk", "--json", image).Output()
	if err != nil {
		return fmt.Errorf("partitions: %w", err)
	}
	var d struct {
		PartitionTable struct {
			SectorSize int64
			Partitions []struct{ Start int64 }
		}
	}
	if err := json.Unmarshal(out, &d); err != nil {
		return fmt.Errorf("partitions: %w", err)
	}
	checked := 0
	for _, p := range d.PartitionTable.Partitions {
		part := fmt.Sprintf("%s?offset=%d", image, p.Start*d.PartitionTable.SectorSize)
		// A partition may hold something else, such as swap.
		kind, _ := exec.Command("blkid", "-p", "-s", "TYPE", "-o", "value", "-O",
			fmt.Sprint(p.Start*d.PartitionTable.SectorSize), image).Output()
		if strings.TrimSpace(string(kind)) != "ext4" {
			continue
		}
		if out, err := exec.Command("e2fsck", "-fn", part).CombinedOutput(); err != nil {
			return fmt.Errorf("e2fsck %s: %w: %s", part, err, out)
		}
		checked++
	}
	if checked == 0 {
		return fmt.Errorf("%s has no file system: %s", image, out)
	}
	return nil
}
