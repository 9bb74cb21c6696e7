//go:build bench

package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/lab/fusetest"
	"cambium/platform/copytree/worker"
	"cambium/platform/disk"
	"cambium/platform/mount"
)

// Times on a shared machine are not comparable by themselves. Each benchmark does the same work with the usual programs
// in the same run, and reports the ratio.

func BenchmarkPrepareBlankDisk(b *testing.B) {
	looptest.Require(b)
	var ours, theirs time.Duration
	for b.Loop() {
		t := newBench(b, Options{})
		t.disk(10*gib, "vol-1")
		begin := time.Now()
		t.ok(t.Mount(context.Background(), "vol-1"))
		ours += time.Since(begin)
		t.ok(mount.Unmount(context.Background(), t.Dirs.Store()))

		dev := t.disk(10*gib, "")
		dir := filepath.Join(b.TempDir(), "m")
		t.ok(os.Mkdir(dir, 0o700))
		begin = time.Now()
		// The kernel of a test machine may have no parser for tables: partitions are announced, as
		// by partx.
		shell(b, "echo 'label: gpt\n,,' | sfdisk -q --no-reread "+dev.Path)
		t.ok(disk.Announce(context.Background(), dev.Path))
		shell(b, "mkfs.ext4 -q -F "+dev.Path+"p1 && mount "+dev.Path+"p1 "+dir)
		theirs += time.Since(begin)
		t.ok(mount.Unmount(context.Background(), dir))
	}
	b.ReportMetric(float64(ours)/float64(theirs), "x_sfdisk_mkfs_mount")
}

// BenchmarkSurveyOfASlowDisk surveys a blank disk on which each read takes 10 ms. The number of reads is bounded, and
// several run concurrently.
func BenchmarkSurveyOfASlowDisk(b *testing.B) {
	const latency = 10 * time.Millisecond
	served := fusetest.Serve(b, looptest.Image(b, 10*gib))
	entries, err := os.ReadDir(served.Dir)
	if err != nil || len(entries) != 1 {
		b.Fatal(entries, err)
	}
	name := entries[0].Name()
	s, err := disk.Inspect(served.Path(name))
	if err != nil {
		b.Fatal(err)
	}
	served.Set(name, fusetest.SlowBy(latency))
	defer served.Set(name, fusetest.OK)
	for b.Loop() {
		if found, err := disk.Survey(context.Background(), s, ""); err != nil || !found.IsEmpty() {
			b.Fatal(found, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(latency), "x_latency")
}

func shell(b testing.TB, script string) {
	b.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		b.Fatalf("%s: %v: %s", script, err, out)
	}
}

func amount(name string, standard int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return standard
}

// BenchmarkMigrate compares copy and verification with the two usual ways of copying, which do
// not verify. CAMBIUM_BENCH_FILES, CAMBIUM_BENCH_MIB and CAMBIUM_BENCH_ROUNDS change the
// amounts.
func BenchmarkMigrate(b *testing.B) {
	files, mib := amount("CAMBIUM_BENCH_FILES", 200_000), amount("CAMBIUM_BENCH_MIB", 2048)
	b.Run(fmt.Sprintf("%d small files", files), func(b *testing.B) {
		compareCopies(b, func(dir string) {
			content := make([]byte, 4096)
			for i := range files {
				if i%500 == 0 {
					if err := os.Mkdir(filepath.Join(dir, strconv.Itoa(i/500)), 0o755); err != nil {
						b.Fatal(err)
					}
				}
				content[i%4096]++
				if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i/500), strconv.Itoa(i)), content, 0o600); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
	b.Run(fmt.Sprintf("%d MiB in large files", mib), func(b *testing.B) {
		compareCopies(b, func(dir string) {
			content := make([]byte, 1<<20)
			for i := range 8 {
				f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
				if err != nil {
					b.Fatal(err)
				}
				for at := range mib / 8 {
					content[at%len(content)]++
					place := int64(at) << 20
					if i%2 == 1 {
						place *= 4 // three quarters of every other file are holes
					}
					if _, err := f.WriteAt(content, place); err != nil {
						b.Fatal(err)
					}
				}
				if err := f.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}

func compareCopies(b *testing.B, fill func(dir string)) {
	looptest.Require(b)
	// Like disks, and unlike sparse images, these have their blocks allocated in advance; and
	// neither discards nor lazy inode table initialization run during the measurement.
	disk := func(size int64) string {
		dev := looptest.New(b, size)
		shell(b, fmt.Sprintf("dd if=/dev/zero of=%s bs=1M count=%d conv=notrunc,fsync status=none", dev.Image, size>>20))
		return dev.Path
	}
	mkfs := func(dev string) string {
		dir := filepath.Join(b.TempDir(), "m")
		shell(b, "mkfs.ext4 -q -F -i 8192 -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "+dev+" && mkdir "+dir+" && mount "+dev+" "+dir)
		return dir
	}
	source, target := mkfs(disk(3*gib)), disk(3*gib)
	fill(source)
	ways := map[string]func(to string) error{
		"ours": func(to string) error {
			return migrateTree(source, to, target)
		},
		"tar": func(to string) error {
			return exec.Command("sh", "-c", "tar -C "+source+" --xattrs --xattrs-include='*' -S -cf - . | tar -C "+to+" --xattrs --xattrs-include='*' -xpf -").Run()
		},
		"cp": func(to string) error { return exec.Command("cp", "-a", source+"/.", to).Run() },
	}
	// Ours is on the disk when it returns. The others are measured until they return and until
	// what they wrote is on the disk as well, which is the fair comparison.
	durable, returned := map[string][]time.Duration{}, map[string][]time.Duration{}
	names := []string{"ours", "tar", "cp"}
	for b.Loop() {
		for range amount("CAMBIUM_BENCH_ROUNDS", 3) {
			// The order changes with each round, because the host's disk cache favors later runs.
			names = append(names[1:], names[0])
			for _, name := range names {
				to := mkfs(target)
				unix.Sync()
				if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
					b.Fatal(err)
				}
				begin := time.Now()
				if err := ways[name](to); err != nil {
					b.Fatalf("%s: %v", name, err)
				}
				returned[name] = append(returned[name], time.Since(begin))
				shell(b, "sync -f "+to)
				durable[name] = append(durable[name], time.Since(begin))
				if err := mount.Unmount(context.Background(), to); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.Logf("until on disk: %v; until returned: %v", durable, returned)
	ours := float64(median(durable["ours"]))
	for _, name := range []string{"tar", "cp"} {
		b.ReportMetric(ours/float64(median(durable[name])), "x_"+name)
		b.ReportMetric(ours/float64(median(returned[name])), "x_"+name+"_unsynced")
	}
	b.ReportMetric(float64(median(durable["ours"]).Milliseconds()), "ms_ours")
}

// migrateTree copies between two disks like a migration: it copies, mounts the target again, verifies and completes.
func migrateTree(from, to, device string) (err error) {
	const mark = ".mark"
	if err := os.WriteFile(filepath.Join(to, mark), nil, 0o600); err != nil {
		return err
	}
	c, err := worker.Start(context.Background(), "/proc/self/exe", worker.Request{From: from, To: to, Mark: mark,
		Exact: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	quiet := func(worker.Report) {}
	if err := c.Copy(quiet); err != nil {
		return err
	}
	if err := errors.Join(unix.Unmount(to, 0), unix.Mount(device, to, "ext4", 0, "")); err != nil {
		return err
	}
	if _, err := c.Verify(quiet); err != nil {
		return err
	}
	return c.Complete()
}

func median(all []time.Duration) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return all[len(all)/2]
}
