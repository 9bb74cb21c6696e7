package copytree

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A group reads the same with the kernel's queue and without one, and what cannot be read does not take the others
// with it.
func TestGroupReads(t *testing.T) {
	dir := t.TempDir()
	sizes := []int{0, 1, 4095, 4096, 4097, 100_000}
	for name, queued := range map[string]bool{"queue": true, "none": false} {
		t.Run(name, func(t *testing.T) {
			g := group{room: alignedBuffer(blockSize)}
			if queued {
				if g.queue.open(); g.queue.context == 0 {
					t.Fatal("the kernel has no queue")
				}
				defer g.queue.close()
			}
			for range 2 { // a group is used again
				for i, size := range sizes {
					path := filepath.Join(dir, strconv.Itoa(i))
					if err := os.WriteFile(path, bytes.Repeat([]byte{byte('a' + i)}, size), 0o600); err != nil {
						t.Fatal(err)
					}
					fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
					if err != nil {
						t.Fatal(err)
					}
					p := piece{rel: path, fd: fd, st: unix.Stat_t{Size: int64(size)}}
					if i == 3 { // it has become shorter since
						p.st.Size++
					}
					g.add(p)
				}
				g.add(piece{rel: "closed", fd: -1, st: unix.Stat_t{Size: 10}})
				g.read()
				for i := range g.pieces {
					p := &g.pieces[i]
					content, whole := p.content()
					if want := p.rel != "closed" && filepath.Base(p.rel) != "3"; whole != want {
						t.Errorf("%s: read %d of %d, whole is %v", p.rel, p.read, p.st.Size, whole)
						continue
					}
					if whole && len(content) > 0 && (content[0] != content[len(content)-1] || content[0] != 'a'+filepath.Base(p.rel)[0]-'0') {
						t.Errorf("%s: wrong content", p.rel)
					}
				}
				g.empty()
			}
		})
	}
}
