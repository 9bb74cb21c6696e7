package logs

import (
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
)

// Progress counts what a collection has packed so far. The total is unknown, because files are searched and packed at
// the same time.
type Progress struct {
	Files   int64
	Bytes   int64 // read, before compression
	Elapsed time.Duration
}

// Rate returns the rate in bytes per second.
func (p Progress) Rate() int64 {
	if p.Elapsed <= 0 {
		return 0
	}
	return int64(float64(p.Bytes) / p.Elapsed.Seconds())
}

// String formats the progress for operators. It returns "" for the zero value, which ends a collection.
func (p Progress) String() string {
	if p == (Progress{}) {
		return ""
	}
	return fmt.Sprintf("%d files, %d MiB read, %d MiB/s", p.Files, p.Bytes>>20, p.Rate()>>20)
}

// progressEvery is the interval of progress reports. A collection that takes less time reports nothing. Every fifth
// report is also logged.
const (
	progressEvery = 2 * time.Second
	loggedEvery   = 5
)

// reporter reports the progress of one collection.
type reporter struct {
	c        Collector
	now      Progress
	began    time.Time
	reported time.Time
	reports  int
	report   func(Progress)
}

func newReporter(c Collector) *reporter {
	began := time.Now()
	return &reporter{c: c, began: began, reported: began}
}

func (t *reporter) file() { t.now.Files++; t.reportIfDue() }

func (t *reporter) bytes(n int64) { t.now.Bytes += n; t.reportIfDue() }

func (t *reporter) reportIfDue() {
	now := time.Now()
	if now.Sub(t.reported) < progressEvery {
		return
	}
	t.reported = now
	t.now.Elapsed = now.Sub(t.began)
	if t.reports++; t.reports%loggedEvery == 0 {
		t.log("collecting logs")
	}
	if t.c.Progress == nil {
		return
	}
	if t.report == nil {
		t.report = t.c.Progress()
	}
	t.report(t.now)
}

func (t *reporter) log(message string) {
	t.now.Elapsed = time.Since(t.began)
	t.c.Log.WithFields(logrus.Fields{"files": t.now.Files, "bytes": t.now.Bytes, "rate": t.now.Rate()}).Info(message)
}

// end reports the end of the collection.
func (t *reporter) end() {
	if t.report != nil {
		t.report(Progress{})
	}
}
