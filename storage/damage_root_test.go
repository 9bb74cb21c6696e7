//go:build root

package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A power cut can leave files whose size, owner and times are those of the source while their content is not: nothing
// that an interrupted copy has left is trusted.
func TestRootMigrateMendsWhatLooksComplete(t *testing.T) {
	for name, exact := range map[string]bool{"empty disk": true, "used disk": false} {
		t.Run(name, func(t *testing.T) {
			b, _, fresh := migrating(t, 128<<20)
			store, target := b.Dirs.Store(), b.Dirs.StoreMigrationTarget()
			if !exact {
				write(t, filepath.Join(target, "mine"), "kept")
			}
			b.ok(os.MkdirAll(filepath.Join(store, "a", "b"), 0o755))
			for n := range 200 {
				write(t, filepath.Join(store, "a", fmt.Sprint(n)), strings.Repeat(fmt.Sprint(n, " "), 500))
			}
			write(t, filepath.Join(store, "a", "tail"), strings.Repeat("0123456789abcdef", 3<<16)+"a tail that is no sector")
			sparse, err := os.Create(filepath.Join(store, "a", "sparse"))
			b.ok(err)
			_, err = sparse.WriteAt([]byte("data"), 300_000)
			b.ok(errors.Join(err, sparse.Close()))
			write(t, filepath.Join(store, "linked"), strings.Repeat("linked", 1000))
			for _, other := range []string{"a/linked", "a/b/linked", "a/b/another"} {
				b.ok(os.Link(filepath.Join(store, "linked"), filepath.Join(store, other)))
			}
			write(t, filepath.Join(store, "noted"), "x")
			write(t, filepath.Join(store, "lost+found", "#12"), "found by fsck")
			sum := treeSum(t, store)

			func() {
				defer func() { _ = recover() }()
				b.CrashPoint = func(name string) {
					if name == "verify" {
						panic("power cut")
					}
				}
				_ = b.Migrate(ctx, "old", "new")
			}()
			b.CrashPoint = func(string) {}
			b.ok(boot(b.disks())) // the store can be written to again
			for n := range 150 {
				b.ok(rewrite(filepath.Join(target, "a", fmt.Sprint(n)), 700, 0))
			}
			for file, at := range map[string]int64{"a/tail": 3<<20 + 5, "a/sparse": 300_001, "a/b/linked": 17, "lost+found/#12": 2} {
				b.ok(rewrite(filepath.Join(target, file), at, 0))
			}
			b.ok(unix.Setxattr(filepath.Join(store, "noted"), "user.note", []byte("new"), 0))

			b.ok(b.Migrate(ctx, "old", "new"))
			if !exact {
				if got := read(t, filepath.Join(store, "mine")); got != "kept" {
					t.Errorf("what the new disk held is %q", got)
				}
				b.ok(os.Remove(filepath.Join(store, "mine")))
			}
			if got := treeSum(t, store); got != sum {
				t.Error("the files are not the same")
			}
			var first, last unix.Stat_t
			b.ok(errors.Join(unix.Stat(filepath.Join(store, "linked"), &first), unix.Stat(filepath.Join(store, "a/b/another"), &last)))
			if first.Ino != last.Ino || first.Nlink != 4 {
				t.Errorf("inodes %d and %d with %d links, want one with 4", first.Ino, last.Ino, first.Nlink)
			}
			note := make([]byte, 10)
			if n, err := unix.Getxattr(filepath.Join(store, "noted"), "user.note", note); err != nil || string(note[:n]) != "new" {
				t.Errorf("attribute %q, %v; want new", note, err)
			}
			b.onStoreIs(fresh, "new")
		})
	}
}
