//go:build bench

package storage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/platform/copytree"
	"cambium/platform/disk"
	"cambium/platform/mount"
)

// Times on a shared machine mean nothing by themselves: each benchmark does the same with the
// usual programs in the same run and reports how many times longer (or shorter) ours takes.

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
		// The kernel of a test machine may have no parser for tables: it is told, as by partx.
		shell(b, "echo 'label: gpt\n,,' | sfdisk -q --no-reread "+dev.Path)
		t.ok(disk.Announce(context.Background(), dev.Path))
		shell(b, "mkfs.ext4 -q -F "+dev.Path+"p1 && mount "+dev.Path+"p1 "+dir)
		theirs += time.Since(begin)
		t.ok(mount.Unmount(context.Background(), dir))
	}
	b.ReportMetric(float64(ours)/float64(theirs), "x_sfdisk_mkfs_mount")
}

func shell(b testing.TB, script string) {
	b.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		b.Fatalf("%s: %v: %s", script, err, out)
	}
}

// BenchmarkMigrate compares copy and verification with the two usual ways of copying, which do
// not verify. CAMBIUM_BENCH_FILES and CAMBIUM_BENCH_MIB change the amounts.
func BenchmarkMigrate(b *testing.B) {
	amount := func(name string, standard int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return standard
	}
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
	mkfs := func() string {
		dev := looptest.New(b, 6*gib)
		shell(b, "mkfs.ext4 -q -F "+dev.Path)
		dir := filepath.Join(b.TempDir(), "m")
		shell(b, "mkdir "+dir+" && mount "+dev.Path+" "+dir)
		return dir
	}
	source := mkfs()
	fill(source)
	ways := map[string]func(to string) error{
		"ours": func(to string) error {
			if err := copytree.Copy(context.Background(), source, to, copytree.Options{Exact: true}); err != nil {
				return err
			}
			return copytree.Verify(context.Background(), source, to, copytree.Options{Exact: true})
		},
		"tar": func(to string) error {
			return exec.Command("sh", "-c", "tar -C "+source+" --xattrs --xattrs-include='*' -S -cf - . | tar -C "+to+" --xattrs --xattrs-include='*' -xpf - && sync -f "+to).Run()
		},
		"cp": func(to string) error {
			return exec.Command("sh", "-c", "cp -a "+source+"/. "+to+" && sync -f "+to).Run()
		},
	}
	took := map[string]time.Duration{}
	names := []string{"ours", "tar", "cp"}
	for b.Loop() {
		// Who comes first meets other disk caches below us than who comes last: they take turns.
		names = append(names[1:], names[0])
		for _, name := range names {
			to := mkfs()
			unix.Sync()
			if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
				b.Fatal(err)
			}
			begin := time.Now()
			if err := ways[name](to); err != nil {
				b.Fatalf("%s: %v", name, err)
			}
			took[name] += time.Since(begin)
			if err := mount.Unmount(context.Background(), to); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(took["ours"])/float64(took["tar"]), "x_tar")
	b.ReportMetric(float64(took["ours"])/float64(took["cp"]), "x_cp")
}
