//go:build nightly

package supervisor

import "testing"

// TestNightlyRestartsLeakNothing: neither goroutines nor descriptors nor memory over 10,000 restarts.
func TestNightlyRestartsLeakNothing(t *testing.T) {
	w, services := quick(t)
	warm := w.restart(services, 20)
	before := warm[len(warm)-1]
	held := w.restart(services, 10_000/len(services))
	before.settled(t)
	// The slope of the line through all points is what a restart leaves.
	var x, y, xx, xy float64
	for i, h := range held {
		restarts := float64(i * len(services))
		x, y, xx, xy = x+restarts, y+float64(h.heap), xx+restarts*restarts, xy+restarts*float64(h.heap)
	}
	n := float64(len(held))
	slope := (n*xy - x*y) / (n*xx - x*x)
	t.Logf("%d restarts: %.1f bytes per restart, at the end %+v", len(held)*len(services), slope, held[len(held)-1])
	if slope > 32 {
		t.Errorf("memory grows by %.1f bytes per restart", slope)
	}
}
