package task

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestCount(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tasks")
	if c, err := Count(path); err != nil || c != (Counts{}) {
		t.Errorf("without a journal: %+v, %v", c, err)
	}
	var data []byte
	now := time.Now()
	for _, e := range []entry{{ID: "1", Method: "compile", Started: now}, {ID: "2", Method: "drain", Started: now}, {ID: "3", Method: "stop", Started: now}, {ID: "2", Ended: now, Failed: true}, {ID: "3", Ended: now}} {
		line, err := e.line()
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, line...)
	}
	if err := os.WriteFile(path, append(data, "00000000 {half"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := Count(path); err != nil || c != (Counts{Running: 1, Succeeded: 1, Failed: 1}) {
		t.Errorf("got %+v, %v", c, err)
	}
}
