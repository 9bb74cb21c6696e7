package logs

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// slowly is a destination that takes its time.
type slowly struct{ pause time.Duration }

func (s slowly) Write(p []byte) (int, error) {
	time.Sleep(s.pause)
	return len(p), nil
}

// TestProgress: a long collection reports files, bytes and rate, and takes its report away in the
// end, also when it fails. A short one reports nothing.
func TestProgress(t *testing.T) {
	c := collector(t)
	for _, name := range []string{"a.log", "b.log", "c.log"} {
		// Noise of a kind: it must not vanish in the compressor.
		write(t, filepath.Join(c.Dirs.SysLog(), name),
			strings.Join(strings.Fields(strings.Repeat(name+" 8w7e ", 60_000)), string(rune('0'+len(name)))))
	}
	var reports []Progress
	begun := 0
	c.Progress = func() func(Progress) {
		begun++
		return func(p Progress) { reports = append(reports, p) }
	}
	synctest.Test(t, func(t *testing.T) {
		if collect(t, c, Selection{Types: "job"}); begun != 0 {
			t.Errorf("a short collection reported %v", reports)
		}
		if err := c.Collect(t.Context(), Selection{Types: "job"}, slowly{time.Second}); err != nil {
			t.Fatal(err)
		}
	})
	if begun != 1 || len(reports) < 3 {
		t.Fatalf("got %d collections with %d reports", begun, len(reports))
	}
	before := Progress{}
	for _, p := range reports[:len(reports)-1] {
		if p.Bytes < before.Bytes || p.Files < before.Files || p.Elapsed <= before.Elapsed || p.Rate() <= 0 ||
			p.String() == "" {
			t.Errorf("got %+v after %+v", p, before)
		}
		before = p
	}
	if before.Files == 0 || before.Bytes == 0 {
		t.Errorf("the last report was %+v", before)
	}
	if last := reports[len(reports)-1]; last != (Progress{}) || last.String() != "" {
		t.Errorf("in the end: got %+v, want nothing", last)
	}
	reports = nil
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, errors.New("enough"))
		defer cancel()
		if err := c.Collect(ctx, Selection{Types: "job"}, slowly{4 * time.Second}); err == nil {
			t.Error("got no error")
		}
	})
	if len(reports) == 0 || reports[len(reports)-1] != (Progress{}) {
		t.Errorf("a failed collection left %+v", reports)
	}
	c.Progress = nil
	if err := c.Collect(t.Context(), Selection{Types: "job"}, io.Discard); err != nil {
		t.Error(err)
	}
}
