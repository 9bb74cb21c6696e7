//go:build root

// Package writes shows what a power cut may leave of the agent's disks, and that the agent gets along with it. The work
// of an operation is recorded write by write; then the disks are made as of many moments, with any part of what was
// written after the last flush, and the agent boots on them.
package writes

import (
	"cmp"
	"context"
	"flag"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"cambium/integration/writes/replay"
	"cambium/internal/looptest"
	"cambium/lab/fusetest"
	"cambium/platform/copytree/worker"
)

func TestMain(m *testing.M) {
	worker.ServeIfCalled(context.Background())
	fusetest.ServeIfCalled()
	looptest.Main(m)
}

// TestRootWrites tries some states of each operation; TestRootSoakWrites tries thousands.
func TestRootWrites(t *testing.T) {
	for _, op := range operations {
		t.Run(op.name, func(t *testing.T) { run(t, op, cmp.Or(*states, 15), *seed) })
	}
}

var (
	states = flag.Int("states", 0, "how many states of each operation are tried; 0: as many as usual")
	seed   = flag.Uint64("seed", rand.Uint64(), "which ones")
	keep   = flag.String("keep", "", "an empty directory for the disks of the last state that did not converge")
	limit  = flag.Duration("limit", 2*time.Hour, "after how long no further state of an operation is tried")
)

// operation is the work to record, with the checks that must hold after a power cut.
type operation struct {
	name  string
	disks []disk
	blobs memoryBlobs
	// fileSystem is that of persistent disks; empty: the default.
	fileSystem string
	// partitioner makes their tables; empty: the default.
	partitioner string
	// lost: after the cut another machine has the disks, except for its own first one.
	lost bool
	// prepare brings the machine to where the operation begins; nil if the machine has never booted.
	prepare func(m *machine)
	// bootRecorded: the boot before the operation is a part of it.
	bootRecorded bool
	// source is the version of the settings that the source answers with at boots after the cut; empty: it is away.
	source string
	// do is the operation. It marks what the caller has been told, and can be repeated after a boot.
	do func(m *machine) error
	// booted checks the machine after its boot, given the marks before the cut.
	booted func(m *machine, reached map[string]bool)
	// ended checks the machine after the operation was repeated.
	ended func(m *machine)
}

// result of an operation's replay.States.
type result struct {
	seed                    uint64
	writes, flushes, states int
	converged, byHand       int
}

// run records an operation and tries replay.States of it, each in a test of its own.
func run(t *testing.T, op *operation, count int, seed uint64) (got result) {
	t.Helper()
	looptest.Require(t)
	looptest.Needs(t, "mkfs.ext4", "e2fsck", "resize2fs", "mkfs.xfs", "xfs_repair")
	// Images are in memory: flushing them to a disk would take most of the time.
	t.Setenv("TMPDIR", "/dev/shm")
	dir := t.TempDir()
	for _, sub := range []string{"vcap", "dev", "images", "state"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := record(t, op, dir)
	begin := time.Now()
	got = result{seed: seed, writes: r.Count(fusetest.Wrote, fusetest.Zeroed), flushes: r.Count(fusetest.Flushed)}
	for _, s := range r.States(rand.New(rand.NewPCG(seed, 0)), count, 0, 512, 4096) {
		if time.Since(begin) > *limit {
			break
		}
		got.states++
		byHand := false
		if t.Run(s.String(), func(t *testing.T) { byHand = try(t, op, r, s, dir) }) {
			got.converged++
		} else if *keep != "" {
			if err := r.Make(s, *keep); err != nil {
				t.Error(err)
			}
		}
		if byHand {
			got.byHand++
		}
	}
	t.Logf("%+v", got)
	return got
}

// record prepares a machine, does the operation on recorded disks, and returns what was written.
func record(t *testing.T, op *operation, dir string) *replay.Recording {
	t.Helper()
	var images []string
	for i, d := range op.disks {
		image := filepath.Join(dir, "images", d.name)
		if err := os.WriteFile(image, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(image, d.size); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if out, err := exec.Command("mkfs.ext4", "-q", "-F", image).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		images = append(images, image)
	}
	if op.prepare != nil {
		m := on(t, op, dir, func(name string) *looptest.Device {
			return looptest.Attach(t, filepath.Join(dir, "images", name))
		})
		op.prepare(m)
		m.off()
	}
	var served []string
	for i, d := range op.disks {
		if err := os.Truncate(images[i], d.final()); err != nil {
			t.Fatal(err)
		}
		// The recorder writes to copies: the images keep the initial state.
		served = append(served, filepath.Join(dir, "state", d.name))
		if out, err := exec.Command("cp", "--sparse=always", images[i], served[i]).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	recorder := fusetest.Record(t, served...)
	m := on(t, op, dir, func(name string) *looptest.Device { return looptest.Attach(t, recorder.Path(name)) })
	m.mark = recorder.Mark
	if op.bootRecorded {
		m.mark(replay.MarkBegin)
	}
	m.ok(m.boot("v1"))
	if !op.bootRecorded {
		m.mark(replay.MarkBegin)
	}
	m.ok(op.do(m))
	m.mark(replay.MarkEnd)
	op.ended(m)
	m.off()
	recorder.Stop()
	return readRecording(t, op.disks, images, recorder.Log)
}

// try boots a machine on the disks of a state, repeats the operation, and boots again. It reports whether an operator
// had to help.
func try(t *testing.T, op *operation, r *replay.Recording, s replay.State, dir string) (byHand bool) {
	where := filepath.Join(dir, "state")
	if err := r.Make(s, where); err != nil {
		t.Fatal(err)
	}
	if root := op.disks[0].name; op.lost {
		from, to := filepath.Join(dir, "images", root), filepath.Join(where, root)
		if out, err := exec.Command("cp", "--sparse=always", from, to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	attach := func(name string) *looptest.Device { return looptest.Attach(t, filepath.Join(where, name)) }
	reached := r.Reached(s)
	m := on(t, op, dir, attach)
	m.ok(m.helped(s, func() error { return m.boot(op.source) }))
	m.nothingDamaged()
	op.booted(m, reached)
	m.ok(m.helped(s, func() error { return op.do(m) }))
	byHand = m.byHand
	op.ended(m)
	m.noSecretReadable()
	m.checkFileSystems()
	m.off()
	// Once everything is done, another boot finds it so.
	m = on(t, op, dir, attach)
	m.ok(m.boot(op.source))
	m.onlyMounted()
	m.nothingDamaged()
	for _, mark := range r.Marks() {
		reached[mark] = true
	}
	op.booted(m, reached)
	op.ended(m)
	m.checkFileSystems()
	m.off()
	return byHand
}

// helped does something. Where the agent asks for it, an operator runs e2fsck, once. resize2fs, by which the agent
// grows an ext4 where the kernel withholds that, has no journal; and the superblock of an ext4 lies in two sectors, of
// which a cut may leave one old and one new.
func (m *machine) helped(s replay.State, do func() error) error {
	err := do()
	possible := m.op.fileSystem == "ext4" || s.Unit == 512
	if err == nil || m.byHand || !possible || !strings.Contains(err.Error(), "then run 'e2fsck -f ") {
		return err
	}
	m.byHand = true
	m.repair(partition.FindString(err.Error()))
	return do()
}

var partition = regexp.MustCompile(`/dev/loop\d+p\d+`)
