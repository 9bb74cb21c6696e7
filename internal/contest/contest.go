// Package contest lets a benchmark compare several ways to do the same thing on a machine whose
// speed is not constant: they are measured in rounds, each round in another order, and the medians
// are compared. The absolute time of one of them says little; the ratio within one run is
// meaningful.
package contest

import (
	"slices"
	"testing"
	"time"
)

// Entrant is one way to do it.
type Entrant struct {
	Name string
	// Ready undoes what the last turn left; it is not measured, and may be nil.
	Ready func() error
	Run   func() error
}

// Run lets all entrants take their turn in every round and reports the median time of each, and
// for the first one its ratio to every other.
func Run(b *testing.B, rounds int, entrants ...Entrant) {
	b.Helper()
	took := make([][]time.Duration, len(entrants))
	for round := range rounds {
		for turn := range entrants {
			n := (round + turn) % len(entrants)
			e := entrants[n]
			if e.Ready != nil {
				if err := e.Ready(); err != nil {
					b.Fatalf("%s: %v", e.Name, err)
				}
			}
			begun := time.Now()
			if err := e.Run(); err != nil {
				b.Fatalf("%s: %v", e.Name, err)
			}
			took[n] = append(took[n], time.Since(begun))
		}
	}
	first := median(took[0])
	b.ReportMetric(0, "ns/op") // of all entrants together: means nothing
	for n, e := range entrants {
		m := median(took[n])
		b.ReportMetric(float64(m.Milliseconds()), "ms-"+e.Name)
		if n > 0 {
			b.ReportMetric(float64(first)/float64(m), "x-"+e.Name)
		}
	}
}

func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	middle := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[middle-1] + sorted[middle]) / 2
	}
	return sorted[middle]
}
