package dummy

import (
	"context"
	"os"
	"slices"
	"testing"

	"cambium/internal/vcap"
	"cambium/settings"
)

type records struct {
	disks   map[string]settings.PersistentDisk
	mounted string
}

func (r *records) Disks() map[string]settings.PersistentDisk { return r.disks }
func (r *records) PutHint(cid string, h settings.DiskHint) error {
	r.disks[cid] = settings.PersistentDisk{CID: cid, Hint: h}
	return nil
}
func (r *records) RemoveHint(cid string) error    { delete(r.disks, cid); return nil }
func (r *records) ManagedCID() (string, error)    { return r.mounted, nil }
func (r *records) SetManagedCID(cid string) error { r.mounted = cid; return nil }
func (r *records) ClearManagedCID() error         { r.mounted = ""; return nil }

func TestDiskChangeAsADirectorDoesIt(t *testing.T) {
	dirs := vcap.New(t.TempDir())
	if err := os.MkdirAll(dirs.Bosh(), 0o700); err != nil {
		t.Fatal(err)
	}
	rec := &records{disks: map[string]settings.PersistentDisk{}}
	d := &Disks{Dirs: dirs, Known: rec, Reload: func(context.Context) error { return nil }}
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Mount(ctx, "old"); err == nil {
		t.Error("mounting an unknown disk succeeded")
	}
	must(d.Add(ctx, "old", settings.DiskHint{Path: "attached"}))
	must(d.Mount(ctx, "old"))
	must(d.Mount(ctx, "old"))
	must(d.Add(ctx, "new", settings.DiskHint{Path: "attached"}))
	must(d.Mount(ctx, "new"))
	if rec.mounted != "old" {
		t.Errorf("record says %q while the new disk is only the target of a migration", rec.mounted)
	}
	if got, err := d.List(ctx); err != nil || !slices.Equal(got, []string{"old", "new"}) {
		t.Errorf("List = %v, %v", got, err)
	}
	must(d.Migrate(ctx, "old", "new"))
	must(d.Migrate(ctx, "old", "new"))
	if got, err := d.List(ctx); err != nil || !slices.Equal(got, []string{"new"}) || rec.mounted != "new" {
		t.Errorf("after migration: List = %v, %v, record %q", got, err, rec.mounted)
	}
	if got, _ := os.ReadFile(d.Dirs.DummyMigrations()); string(got) != `[{"FromDiskCid":"old","ToDiskCid":"new"}]` {
		t.Errorf("disk_migrations.json is %s", got)
	}
	message, err := d.Unmount(ctx, "new")
	if repeated, _ := d.Unmount(ctx, "new"); err != nil || message != "Unmounted partition of new" ||
		repeated != "Partition of new is not mounted" {
		t.Errorf("unmount: %q then %q, %v", message, repeated, err)
	}
	must(d.Remove(ctx, "new"))
}
