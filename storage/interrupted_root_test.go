//go:build root

package storage

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRootPowerCutAtTheEndOfAMigration: if a migration is cut off after the copy, the store is either the old disk, and
// the new one is marked as incomplete, or the new disk. Files deleted afterwards do not reappear, and the top directory
// is unchanged.
func TestRootPowerCutAtTheEndOfAMigration(t *testing.T) {
	kinds := map[string]func(t *testing.T) *bench{
		"disk":      func(t *testing.T) *bench { b, _, _ := migrating(t, 64<<20); return b },
		"directory": func(t *testing.T) *bench { b, _ := binding(t); return b },
	}
	for kind, make := range kinds {
		var steps []string
		b := make(t)
		b.CrashPoint = func(name string) { steps = append(steps, name) }
		b.ok(b.Migrate(ctx, "old", "new"))
		copied := slices.Index(steps, "verify")
		if copied < 0 {
			t.Fatalf("steps are %q", steps)
		}
		for i := copied; i < len(steps); i++ {
			t.Run(kind+" before "+steps[i], func(t *testing.T) {
				b := make(t)
				store := b.Dirs.Store()
				write(t, filepath.Join(store, "kept"), "precious")
				b.ok(errors.Join(os.Chown(store, 1234, 4321), os.Chmod(store, 0o751)))
				at := -1
				b.CrashPoint = func(string) {
					if at++; at == i {
						panic("power cut")
					}
				}
				func() {
					defer func() { _ = recover() }()
					_ = b.Migrate(ctx, "old", "new")
				}()
				b.CrashPoint = func(string) {}
				b.unmountAll()
				planned, _, err := b.MountStore(ctx, false)
				b.ok(err)
				done, _, err := b.MountStore(ctx, true)
				b.ok(err)
				if texts(planned) != texts(done) {
					t.Errorf("planned\n%s\ndone\n%s", texts(planned), texts(done))
				}
				b.ok(os.Remove(filepath.Join(store, "one")))
				if on := b.list(); on[0] == "old" {
					b.ok(b.Mount(ctx, "new"))
				}
				b.ok(b.Migrate(ctx, "old", "new"))
				b.reboot()
				if _, err := os.Lstat(filepath.Join(store, "one")); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("a file that was removed from the store is back: %v", err)
				}
				var st unix.Stat_t
				b.ok(unix.Stat(store, &st))
				if read(t, filepath.Join(store, "kept")) != "precious" || b.list()[0] != "new" || st.Uid != 1234 ||
					st.Gid != 4321 || st.Mode&0o7777 != 0o751 {
					t.Errorf("on the store is %q, with %d:%d %o", b.list(), st.Uid, st.Gid, st.Mode&0o7777)
				}
			})
		}
	}
}
