package migration

import (
	"fmt"
	"time"
)

// Progress describes how far a migration is.
type Progress struct {
	Phase string // "copy" or "verify"
	Files int64
	Bytes int64
	// TotalBytes counts the bytes in use on the source. Bytes may end slightly below it, since the total includes
	// directories.
	TotalBytes int64
	Elapsed    time.Duration
}

// Remaining estimates the time left in this phase from the rate so far. It returns 0 if unknown.
func (p Progress) Remaining() time.Duration {
	if p.Bytes <= 0 || p.TotalBytes <= p.Bytes {
		return 0
	}
	return time.Duration(float64(p.Elapsed) * float64(p.TotalBytes-p.Bytes) / float64(p.Bytes)).Round(time.Second)
}

// String formats the progress for an operator. It returns "" for the zero value, which ends a migration.
func (p Progress) String() string {
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

// Rate returns the rate so far in bytes per second.
func (p Progress) Rate() int64 {
	if p.Elapsed <= 0 {
		return 0
	}
	return int64(float64(p.Bytes) / p.Elapsed.Seconds())
}
