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
