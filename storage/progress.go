package storage

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/platform/copytree"
)

// MigrationProgress is how far a migration has come.
type MigrationProgress struct {
	Phase string // "copy" or "verify"
	Files int64
	Bytes int64
	// TotalFiles and TotalBytes are what the source uses; Bytes may end a little below,
	// because directories are in the total.
	TotalFiles int64
	TotalBytes int64
	Elapsed    time.Duration
}

// Remaining estimates the time left in this phase, from the rate so far; 0 means unknown.
func (p MigrationProgress) Remaining() time.Duration {
	if p.Bytes <= 0 || p.TotalBytes <= p.Bytes {
		return 0
	}
	return time.Duration(float64(p.Elapsed) * float64(p.TotalBytes-p.Bytes) / float64(p.Bytes)).Round(time.Second)
}

// String is what an operator wants to know; the zero value, which ends a migration, is empty.
func (p MigrationProgress) String() string {
	if p.Phase == "" {
		return ""
	}
	text := fmt.Sprintf("%s: %d files, %d of %d MiB", p.Phase, p.Files, p.Bytes>>20, p.TotalBytes>>20)
	if rate := p.Rate(); rate > 0 {
		text += fmt.Sprintf(", %d MiB/s", rate>>20)
	}
	if left := p.Remaining(); left > 0 {
		text += fmt.Sprintf(", about %v left", left)
	}
	return text
}

// Rate is in bytes per second.
func (p MigrationProgress) Rate() int64 {
	if p.Elapsed <= 0 {
		return 0
	}
	return int64(float64(p.Bytes) / p.Elapsed.Seconds())
}

// A migration reports every second, and logs that every so many times.
const (
	progressEvery = time.Second
	progressLogs  = 10
)

// phase does one part of a migration and tells how far it is.
func (d *Migration) phase(ctx context.Context, name string, total holding, exact bool, work func(context.Context, string, string, copytree.Options) error) error {
	p := MigrationProgress{Phase: name, TotalFiles: total.files, TotalBytes: total.bytes}
	counter := &copytree.Counter{}
	begin := time.Now()
	reports := 0
	report := func(last bool) {
		now := counter.Load()
		p.Files, p.Bytes, p.Elapsed = now.Files, now.Bytes, time.Since(begin)
		if d.Progress != nil {
			d.Progress(p)
		}
		if reports++; !last && reports%progressLogs != 1 {
			return
		}
		d.Log.WithFields(logrus.Fields{"phase": name, "files": p.Files, "bytes": p.Bytes, "of_bytes": p.TotalBytes,
			"rate": p.Rate(), "remaining": p.Remaining().String()}).Info("disk migration")
	}
	report(false)
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				report(false)
			}
		}
	}()
	err := work(ctx, d.Dirs.Store(), d.Dirs.StoreMigrationTarget(), copytree.Options{Exact: exact, Progress: counter})
	close(done)
	<-stopped
	report(true)
	return err
}
