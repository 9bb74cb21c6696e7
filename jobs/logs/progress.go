package logs

import (
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
)

// Progress is how far a collection is. How much there will be is not known: files are found while
// others are packed.
type Progress struct {
	Files   int64
	Bytes   int64 // read, before compression
	Elapsed time.Duration
}

// Rate is in bytes per second.
func (p Progress) Rate() int64 {
	if p.Elapsed <= 0 {
		return 0
	}
	return int64(float64(p.Bytes) / p.Elapsed.Seconds())
}

// String is what an operator wants to know; the zero value, which ends a collection, is empty.
func (p Progress) String() string {
	if p == (Progress{}) {
		return ""
	}
	return fmt.Sprintf("%d files, %d MiB read, %d MiB/s", p.Files, p.Bytes>>20, p.Rate()>>20)
}

// progressEvery is how often a long collection reports, and what makes it a long one. Every fifth
// report is also logged.
const (
	progressEvery = 2 * time.Second
	loggedEvery   = 5
)

// teller reports the progress of one collection.
type teller struct {
	c       Collector
	now     Progress
	began   time.Time
	said    time.Time
	reports int
	report  func(Progress)
}

func newTeller(c Collector) *teller {
	began := time.Now()
	return &teller{c: c, began: began, said: began}
}

func (t *teller) file() { t.now.Files++; t.tell() }

func (t *teller) bytes(n int64) { t.now.Bytes += n; t.tell() }

func (t *teller) tell() {
	now := time.Now()
	if now.Sub(t.said) < progressEvery {
		return
	}
	t.said = now
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

func (t *teller) log(message string) {
	t.now.Elapsed = time.Since(t.began)
	t.c.Log.WithFields(logrus.Fields{"files": t.now.Files, "bytes": t.now.Bytes, "rate": t.now.Rate()}).Info(message)
}

// end takes the report away, however the collection ended.
func (t *teller) end() {
	if t.report != nil {
		t.report(Progress{})
	}
}
