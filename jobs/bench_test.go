//go:build bench

package jobs

import (
	"bytes"
	"context"
	"crypto/sha1"
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
// time: curl, sha1sum, tar, and sync, since prepare flushes too. The figure is a ratio within one run.
func BenchmarkPrepare(b *testing.B) {
	const parallel = 5
	for name, packages := range map[string]func() []map[string]string{
		"50 packages of 10 MiB": func() (all []map[string]string) {
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
		},
		"one of 20000 small files": func() []map[string]string {
			files := map[string]string{}
			for f := range 20000 {
				files[fmt.Sprintf("./d%d/e%d/file%d", f%20, f%400, f)] = fmt.Sprint("content of ", f)
			}
			return []map[string]string{files}
		},
	} {
		b.Run(name, func(b *testing.B) {
			m := newMachine(b)
			m.Parallel = parallel
			spec := m.spec(b, nil, nil, nil)
			spec.Archive = nil
			for n, files := range packages() {
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
			var ours, shell time.Duration
			for b.Loop() {
				if err := os.RemoveAll(m.Dirs.DataPackages()); err != nil {
					b.Fatal(err)
				}
				exec.Command("sync").Run()
				begun := time.Now()
				if err := m.Prepare(b.Context(), spec); err != nil {
					b.Fatal(err)
				}
				ours += time.Since(begun)
				dir := b.TempDir()
				exec.Command("sync").Run()
				begun = time.Now()
				script(b, dir, web.URL, spec, parallel)
				shell += time.Since(begun)
				if err := os.RemoveAll(dir); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(ours)/float64(shell), "ours/shell")
		})
	}
}

func script(b *testing.B, dir, url string, spec Spec, parallel int) {
	queue := make(chan Package, len(spec.Packages))
	for _, p := range spec.Packages {
		queue <- p
	}
	close(queue)
	var running sync.WaitGroup
	for range parallel {
		running.Go(func() {
			for p := range queue {
				cmd := exec.Command("sh", "-ec", `mkdir "$1"; curl -sf "$2" -o "$1.tgz"; echo "$3  $1.tgz" | sha1sum -c --quiet; tar -xzf "$1.tgz" -C "$1"; rm "$1.tgz"`,
					"sh", filepath.Join(dir, p.Name), url+"/"+p.BlobstoreID, p.Digest)
				if out, err := cmd.CombinedOutput(); err != nil {
					b.Errorf("%v: %s", err, out)
				}
			}
		})
	}
	running.Wait()
	if out, err := exec.Command("sync", "-f", dir).CombinedOutput(); err != nil {
		b.Errorf("%v: %s", err, out)
	}
}
