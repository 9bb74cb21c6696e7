package storage

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/vcap"
	"cambium/settings"
	"cambium/storage/internal/machine"
	"cambium/storage/migration"
	"cambium/storage/persistent"
)

// noDisks is a machine without persistent disks.
type noDisks struct{ persistent.KnownDisks }

func (noDisks) Disks() map[string]settings.PersistentDisk { return nil }

// TestCancellationEndsTheWaitForAnotherOperation: cancel_task ends the wait for another disk operation, such as a check
// that takes hours.
func TestCancellationEndsTheWaitForAnotherOperation(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	m := machine.New(vcap.New(t.TempDir()), logrus.NewEntry(log))
	d := &persistent.Disks{Machine: m, Reload: func(context.Context) error { return nil }, Known: noDisks{}}
	if err := m.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	canceled := errors.New("task was canceled")
	ended := map[string]chan error{}
	ctx, cancel := context.WithCancelCause(t.Context())
	for name, call := range map[string]func() error{
		"add_persistent_disk":    func() error { return d.Add(ctx, "a", settings.DiskHint{}) },
		"remove_persistent_disk": func() error { return d.Remove(ctx, "a") },
		"mount_disk":             func() error { return d.Mount(ctx, "a") },
		"unmount_disk":           func() error { _, err := d.Unmount(ctx, "a"); return err },
		"migrate_disk":           func() error { return (&migration.Migration{Machine: m}).Migrate(ctx, "", "") },
		"add_dynamic_disk":       func() error { return d.AddDynamic(ctx, "a", settings.DiskHint{}) },
		"remove_dynamic_disk":    func() error { return d.RemoveDynamic(ctx, "a") },
		"update_settings":        func() error { _, err := d.Associate(ctx, nil, true); return err },
	} {
		done := make(chan error, 1)
		ended[name] = done
		go func() { done <- call() }()
	}
	cancel(canceled)
	limit := time.After(30 * time.Second)
	for name, done := range ended {
		select {
		case err := <-done:
			if !errors.Is(err, canceled) {
				t.Errorf("%s ended with %v", name, err)
			}
		case <-limit:
			t.Fatalf("%s still waits after its cancellation", name)
		}
	}
	m.Unlock()
	if err := m.Lock(t.Context()); err != nil {
		t.Errorf("the next operation has no turn: %v", err)
	}
}
