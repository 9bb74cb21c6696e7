// Package contest lets a benchmark compare several ways to do the same thing on a machine whose speed varies. They run
// in rounds, each round in another order, and the medians are compared. Absolute times mean little, but the ratio
// within a run is meaningful.
package contest

import (
	"slices"
	"testing"
	"time"
)

// Entrant is one of the ways that are compared.
type Entrant struct {
	Name string
	// Ready undoes the effects of the last round. It is not measured, and may be nil.
	Ready func() error
	Run   func() error
}

// Run runs all entrants in each round. It reports the median time of each, and the ratio of the first to each other
// one.
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
