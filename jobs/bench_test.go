//go:build bench

package jobs

import (
	"bytes"
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"cambium/internal/blob"
	"cambium/internal/contest"
)

// webBlobs fetches over HTTP, as a store does.
type webBlobs struct{ url string }

func (w webBlobs) Open(ctx context.Context, ref blob.Ref) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/"+ref.ID, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	return ref.Digest.Verify(resp.Body)
}

func (webBlobs) Remove(string) error { return nil }

// BenchmarkPrepare compares prepare with what a shell script would do with the same number at a
// time: curl, sha1sum and tar. Prepare flushes what it unpacked to the disk, which tar leaves
// undone; a second script does that too. Figures are ratios within one run.
func BenchmarkPrepare(b *testing.B) {
	for _, c := range []struct {
		name     string
		rounds   int
		packages func() []map[string]string
	}{
		{"50 packages of 10 MiB", 5, largePackages},
		{"one of 20000 small files", 7, func() []map[string]string {
			files := map[string]string{}
			for f := range 20000 {
				files[fmt.Sprintf("./d%d/e%d/file%d", f%20, f%400, f)] = fmt.Sprint("content of ", f)
			}
			return []map[string]string{files}
		}},
		{"ten of 4000 small files", 7, func() (all []map[string]string) {
			for p := range 10 {
				files := map[string]string{}
				for f := range 4000 {
					files[fmt.Sprintf("./d%d/e%d/file%d", f%20, f%400, f)] = fmt.Sprint("content of ", p, "/", f)
				}
				all = append(all, files)
			}
			return all
		}},
	} {
		b.Run(c.name, func(b *testing.B) { comparePrepare(b, c.rounds, c.packages()) })
	}
}

func largePackages() (all []map[string]string) {
	rng := rand.New(rand.NewPCG(1, 2))
	for p := range 50 {
		files := map[string]string{}
		for f := range 10 {
			// Half noise, half text: binaries compress to about that.
			data := make([]byte, 1<<20)
			for i := range data {
				if i%8192 < 4096 {
					data[i] = byte(rng.Uint32())
				} else {
					data[i] = byte('a' + i%17)
				}
			}
			files[fmt.Sprintf("./lib/p%d-f%d", p, f)] = string(data)
		}
		all = append(all, files)
	}
	return all
}

func comparePrepare(b *testing.B, rounds int, packages []map[string]string) {
	const parallel = 5
	m := newMachine(b)
	freshFilesystem(b, m.Dirs.Data())
	m.Parallel = parallel
	spec := m.spec(b, nil, nil, nil)
	spec.Archive = nil
	for n, files := range packages {
		data := archive(b, files)
		id := fmt.Sprintf("%x", sha1.Sum(data))
		m.blobs.blobs[id] = data
		pkg := fmt.Sprintf("p%d", n)
		spec.Packages[pkg] = Package{Name: pkg, Version: "1", Digest: id, BlobstoreID: id}
	}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(m.blobs.blobs[filepath.Base(r.URL.Path)]))
	}))
	defer web.Close()
	m.Blobs = webBlobs{web.URL}
	dir := filepath.Join(m.Dirs.Data(), "shell")
	turns := 0
	ready := func() error {
		turns++
		for _, used := range []string{m.Dirs.DataPackages(), dir} {
			if err := putAside(used, fmt.Sprintf("%s-%d", used, turns), len(packages) == 1); err != nil {
				return err
			}
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		return exec.Command("sync", "-f", dir).Run()
	}
	shell := func() error { return scriptOf(dir, web.URL, spec, parallel) }
	contest.Run(b, rounds,
		contest.Entrant{Name: "prepare", Ready: ready, Run: func() error { return m.Prepare(b.Context(), spec) }},
		contest.Entrant{Name: "curl+tar", Ready: ready, Run: shell},
		contest.Entrant{Name: "curl+tar+sync", Ready: ready, Run: func() error {
			return errors.Join(shell(), exec.Command("sync", "-f", dir).Run())
		}})
}

// freshFilesystem mounts one of its own on dir: how fast files are made depends on what was
// deleted on a file system before.
func freshFilesystem(b *testing.B, dir string) {
	if os.Geteuid() != 0 {
		b.Log("without root the file system of TMPDIR is measured, with its history")
		return
	}
	image := filepath.Join(b.TempDir(), "image")
	if out, err := exec.Command("sh", "-ec", `truncate -s 12G "$0"; mkfs.ext4 -q -F "$0"; mount -o loop "$0" "$1"`, image,
		dir).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	b.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			b.Errorf("%v: %s", err, out)
		}
	})
}

// putAside makes room for the next turn. Many small files are kept until the end: for minutes
// after they were deleted, ext4 looks at each of their inodes whenever it needs a new one, and
// that would be what is measured.
func putAside(used, aside string, keep bool) error {
	if !keep {
		return os.RemoveAll(used)
	}
	if err := os.Rename(used, aside); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func scriptOf(dir, url string, spec Spec, parallel int) error {
	queue := make(chan Package, len(spec.Packages))
	for _, p := range spec.Packages {
		queue <- p
	}
	close(queue)
	faults := make(chan error, len(spec.Packages))
	var running sync.WaitGroup
	for range parallel {
		running.Go(func() {
			for p := range queue {
				cmd := exec.Command("sh", "-ec", `mkdir "$1"; curl -sf "$2" -o "$1.tgz"; echo "$3  $1.tgz" | sha1sum -c --quiet; tar -xzf "$1.tgz" -C "$1"; rm "$1.tgz"`,
					"sh", filepath.Join(dir, p.Name), url+"/"+p.BlobstoreID, p.Digest)
				if out, err := cmd.CombinedOutput(); err != nil {
					faults <- fmt.Errorf("%w: %s", err, out)
				}
			}
		})
	}
	running.Wait()
	close(faults)
	return <-faults
}
