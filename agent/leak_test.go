package agent

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"

	"cambium/agent/action"
)

// TestNothingLeaks is the short form of the soak test.
func TestNothingLeaks(t *testing.T) { leaks(t, 3000) }

// leaks serves n requests of all kinds and compares goroutines, file descriptors and memory
// before and after.
func leaks(t *testing.T, n int) {
	var runs atomic.Int64
	w := newWorld(t, action.Table{"start": counting(action.Instance, action.Sync, &runs)}).ready()
	serve := func(n int) {
		for i := range n {
			switch {
			case i%100 == 0:
				w.director.Task(agentID, "mount_disk", "disk-1")
			case i%100 == 1:
				w.director.Call(agentID, "get_state", "full")
			case i%100 == 2:
				w.post(`{"method":"get_state"}`)
			case i%100 == 3:
				w.director.Call(agentID, "ssh", "cleanup", map[string]any{"user_regex": "x"})
			case i%100 == 4:
				w.director.Call(agentID, "hop")
			case i%10 == 5:
				w.director.Call(agentID, "start")
			default:
				w.director.Call(agentID, "ping")
			}
		}
		w.machine.recordedCalls()
	}
	type footprint struct{ goroutines, files, heap int }
	measure := func() footprint {
		t.Helper()
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		files := must[[]os.DirEntry](t)(os.ReadDir("/proc/self/fd"))
		return footprint{runtime.NumGoroutine(), len(files), int(m.HeapAlloc)}
	}
	serve(max(1000, n/10))
	before := measure()
	serve(n)
	after := measure()
	t.Logf("before %+v, after %d requests %+v", before, n, after)
	if after.goroutines > before.goroutines+5 {
		t.Errorf("goroutines grew from %d to %d", before.goroutines, after.goroutines)
	}
	if after.files > before.files+3 {
		t.Errorf("file descriptors grew from %d to %d", before.files, after.files)
	}
	// Results of tasks and identities of requests are kept for a while; that is a few hundred
	// bytes each and bounded.
	if grown := after.heap - before.heap; grown > 4<<20+n*100 {
		t.Errorf("the heap grew by %d bytes over %d requests", grown, n)
	}
}
