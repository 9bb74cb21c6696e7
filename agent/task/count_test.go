package task

import (
	"errors"
	"path/filepath"
	"testing"
)

func TestCount(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tasks")
	if c, err := Count(path); err != nil || c != (Counts{}) {
		t.Errorf("without a document: %+v, %v", c, err)
	}
	s := open(t, path)
	s.Begin("stop", false).Finish("stopped", nil)
	s.Begin("drain", false).Finish(nil, errors.New("boom"))
	s.Begin("compile", false).Persist()
	if c, err := Count(path); err != nil || c != (Counts{Running: 1, Succeeded: 1, Failed: 1}) {
		t.Errorf("got %+v, %v", c, err)
	}
}
