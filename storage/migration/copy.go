package migration

import (
	"context"
	"errors"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/platform/copytree"
	"cambium/platform/copytree/apart"
	"cambium/storage/decide"
)

// trees copies the store and proves it. Close returns when nothing is written any more.
type trees interface {
	Copy(ctx context.Context, from, to string, o copytree.Options) error
	Verify(ctx context.Context, from, to string, o copytree.Options) error
	Close() error
}

// inProcess copies in this process.
type inProcess struct{ sums copytree.Sums }

func (p *inProcess) Copy(ctx context.Context, from, to string, o copytree.Options) error {
	o.Sums = &p.sums
	return copytree.Copy(ctx, from, to, o)
}

func (p *inProcess) Verify(ctx context.Context, from, to string, o copytree.Options) error {
	o.Sums = &p.sums
	return copytree.Verify(ctx, from, to, o)
}

func (p *inProcess) Close() error { return nil }

// trees copies in a process of its own where that can be started.
func (m *Migration) trees(ctx context.Context) trees {
	if m.Program != "" {
		other, err := apart.Start(ctx, m.Program)
		if err == nil {
			return other
		}
		m.Machine.Log.WithError(err).Warn("disks are copied by the agent's own process, which may answer later meanwhile")
	}
	return &inProcess{}
}

// copyAndVerify makes the migration target the same as the store and proves it. When it returns nothing is written any more.
func (m *Migration) copyAndVerify(ctx context.Context, total decide.Usage, exact bool) (err error) {
	trees := m.trees(ctx)
	defer func() { err = errors.Join(err, trees.Close()) }()
	for round := 1; ; round++ {
		m.Machine.CrashPoint("copy")
		err := m.phase(ctx, "copy", total, exact, trees.Copy)
		if err == nil {
			m.Machine.CrashPoint("verify")
			err = m.phase(ctx, "verify", total, exact, trees.Verify)
		}
		var difference *copytree.DifferenceError
		differs := errors.As(err, &difference)
		if !decide.CopyAgain(round, differs, differs && difference.Again) {
			return err
		}
		// What an interrupted attempt left can look complete and not be, and a directory may be
		// changed past our mount of it.
		m.Machine.Log.WithFields(logrus.Fields{"path": difference.Path, "what": difference.What, "others": difference.Others}).Warn("copied again: the copy differs")
	}
}

// A migration reports every second, and logs that every so many times.
const (
	progressEvery = time.Second
	progressLogs  = 10
)

// phase does one part of a migration and tells how far it is.
func (m *Migration) phase(ctx context.Context, name string, total decide.Usage, exact bool, work func(context.Context, string, string, copytree.Options) error) error {
	p := Progress{Phase: name, TotalFiles: total.Files, TotalBytes: total.Bytes}
	counter := &copytree.Counter{}
	begin := time.Now()
	reports := 0
	report := func(last bool) {
		now := counter.Load()
		p.Files, p.Bytes, p.Elapsed = now.Files, now.Bytes, time.Since(begin)
		if m.Progress != nil {
			m.Progress(p)
		}
		if reports++; !last && reports%progressLogs != 1 {
			return
		}
		m.Machine.Log.WithFields(logrus.Fields{"phase": name, "files": p.Files, "bytes": p.Bytes, "of_bytes": p.TotalBytes,
			"rate": p.Rate(), "remaining": p.Remaining().String()}).Info("disk migration")
	}
	report(false)
	ended := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
				report(false)
			}
		}
	}()
	err := work(ctx, m.Machine.Dirs.Store(), m.Machine.Dirs.StoreMigrationTarget(), copytree.Options{Exact: exact, Progress: counter})
	close(ended)
	<-stopped
	report(true)
	return err
}
