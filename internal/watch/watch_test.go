package watch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestUntilSeesAFileInADirectoryThatIsMadeLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "status.json")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	looks := make(chan struct{}, 100)
	go func() {
		<-looks // the first look has found nothing
		_ = os.MkdirAll(filepath.Dir(path), 0o755)
		_ = os.WriteFile(path, []byte("x"), 0o644)
	}()
	err := Until(ctx, path, func() (bool, error) {
		looks <- struct{}{}
		data, err := os.ReadFile(path)
		return err == nil && len(data) == 1, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestUntilEndsWithItsContextAndWithErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	err := Until(ctx, path, func() (bool, error) { cancel(gone); return false, nil })
	if !errors.Is(err, gone) {
		t.Errorf("got %v, want the context's cause", err)
	}
	bad := errors.New("bad")
	if err := Until(t.Context(), path, func() (bool, error) { return false, bad }); !errors.Is(err, bad) {
		t.Errorf("got %v, want the error of look", err)
	}
}

func TestUntilDeviceSeesALinkThatIsMadeLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "by-id")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	looks := 0
	err := UntilDevice(ctx, []string{dir}, func() (bool, error) {
		if looks++; looks == 2 { // the watch is there
			if err := errors.Join(os.Mkdir(dir, 0o755), os.Symlink("../sda", filepath.Join(dir, "disk"))); err != nil {
				return false, err
			}
			return false, nil
		}
		_, err := os.Lstat(filepath.Join(dir, "disk"))
		return err == nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
