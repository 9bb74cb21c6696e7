package main

import (
	"context"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestASmallHeapMayGrowUnderLoad(t *testing.T) {
	for _, c := range []struct {
		name    string
		percent int
		next    uint64
		want    int
	}{
		{"the smallest heap", gcPercent, 2 << 20, loadPercent},
		{"small", gcPercent, 3 << 20, loadPercent},
		{"not small", gcPercent, 6 << 20, gcPercent},
		{"large", gcPercent, 1 << 30, gcPercent},
		{"has grown", loadPercent, smallHeap, loadPercent},
		{"more is in use than it was", loadPercent, smallHeap + 1<<20, gcPercent},
	} {
		if got := pace(c.percent, c.next); got != c.want {
			t.Errorf("%s: %d %% and %d bytes: got %d %%, want %d", c.name, c.percent, c.next, got, c.want)
		}
	}
}

// The load is garbage as requests leave it behind; over means that nothing is collected any more.
func TestCollectionIsEagerAgainAfterALoad(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	var requests atomic.Uint64
	go func() { giveBack(ctx, requests.Load); close(done) }()
	t.Cleanup(func() {
		cancel()
		<-done
		debug.SetGCPercent(before)
	})
	goal := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.NextGC
	}
	until := func(what string, reached func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !reached(); {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the heap is collected at %d bytes", what, goal())
			}
		}
	}
	litter := func() {
		for range 100 {
			garbage = make([]byte, 10<<10)
		}
	}
	for range 100 {
		litter()
		if got := goal(); got == smallHeap {
			t.Fatalf("without requests the heap is collected at %d bytes", got)
		}
	}
	until("under load", func() bool {
		litter()
		requests.Add(many)
		return goal() == smallHeap
	})
	until("after it", func() bool {
		time.Sleep(10 * time.Millisecond)
		return goal() < smallHeap/2
	})
}

var garbage []byte

func TestOnlyUntouchedPartsOfTheProgramAreDropped(t *testing.T) {
	smaps := `00400000-00a00000 r-xp 00000000 fe:00 123 /var/vcap/bosh/bin/bosh-agent
Size:               6144 kB
Anonymous:             0 kB
00a00000-01000000 r--p 00600000 fe:00 123 /var/vcap/bosh/bin/bosh-agent (deleted)
Anonymous:             4 kB
01000000-01100000 r--p 00c00000 fe:00 123 /var/vcap/bosh/bin/bosh-agent
Anonymous:             0 kB
01100000-01200000 rw-p 00d00000 fe:00 123 /var/vcap/bosh/bin/bosh-agent
Anonymous:             0 kB
c000000000-c000400000 rw-p 00000000 00:00 0
Anonymous:             0 kB
c000400000-c004000000 ---p 00000000 00:00 0
Anonymous:             0 kB
7ff000000000-7ff000010000 rw-p 00000000 00:00 0 [stack]
Anonymous:             0 kB
7f0000000000-7f0000010000 r-xp 00000000 fe:00 9 /usr/lib/libc.so.6
Anonymous:             0 kB
`
	wantProgram, wantHeap := [][2]uintptr{{0x400000, 0xa00000}, {0x1000000, 0x1100000}}, [][2]uintptr{{0xc000000000, 0xc000400000}}
	if program, heap := parts(strings.NewReader(smaps)); !reflect.DeepEqual(program, wantProgram) || !reflect.DeepEqual(heap, wantHeap) {
		t.Errorf("got %x and %x, want %x and %x", program, heap, wantProgram, wantHeap)
	}
	if program, heap := parts(strings.NewReader("nonsense\n-\nAnonymous: 0 kB\n")); program != nil || heap != nil {
		t.Errorf("nonsense: got %x and %x", program, heap)
	}
	advise() // and the program goes on
}
