package migration

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/platform/copytree/apart"
	"cambium/storage/decide"
)

// A migration reports every second, and logs that every ten.
const (
	progressInterval    = time.Second
	progressLogInterval = 10 * time.Second
)

// copyAndVerify makes the migration target the same as the store and proves it. When it returns nothing is written any more.
func (m *Migration) copyAndVerify(ctx context.Context, total decide.Usage, exact bool) error {
	dirs := m.Machine.Dirs
	r := &copyReporter{Migration: m, total: total}
	return apart.Run(ctx, m.Program, apart.Request{From: dirs.Store(), To: dirs.StoreMigrationTarget(), Exact: exact}, r.report)
}

// copyReporter reports the progress of the copy to log and status.
type copyReporter struct {
	*Migration
	total                   decide.Usage
	begun, reported, logged time.Time
}

func (r *copyReporter) report(now apart.Report) {
	if differs := now.Differs; differs != nil {
		// A file of an interrupted attempt can have the size and time of its source without its
		// content, and a bind-mounted directory can be changed through another mount.
		r.Machine.Log.WithFields(logrus.Fields{"path": differs.Path, "difference": differs.What, "others": differs.Others}).Warn("copy differs from its source, copying again")
		return
	}
	if now.Begin {
		r.Machine.CrashPoint(now.Phase)
		r.begun = time.Now()
	}
	p := Progress{Phase: now.Phase, Files: now.Files, Bytes: now.Bytes,
		TotalFiles: r.total.Files, TotalBytes: r.total.Bytes, Elapsed: time.Since(r.begun)}
	due := func(last *time.Time, interval time.Duration) bool {
		if !now.Begin && !now.End && time.Since(*last) < interval {
			return false
		}
		*last = time.Now()
		return true
	}
	if due(&r.reported, progressInterval) && r.Progress != nil {
		r.Progress(p)
	}
	if due(&r.logged, progressLogInterval) {
		r.Machine.Log.WithFields(logrus.Fields{"phase": p.Phase, "files": p.Files, "bytes": p.Bytes, "of_bytes": p.TotalBytes,
			"rate": p.Rate(), "remaining": p.Remaining().String()}).Info("disk migration")
	}
}
