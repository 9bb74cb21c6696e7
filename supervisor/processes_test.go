package supervisor

import "testing"

// family is a chain of processes, each the child of the one before, with a tick and a kilobyte each.
func family(n int) processes {
	all := processes{}
	for pid := 1; pid <= n; pid++ {
		all[pid] = process{pid: pid, parent: pid - 1, ticks: 1, kilobytes: 1}
	}
	return all
}

// TestProcessesAreSummedOnce: a job can make a chain of processes as long as the kernel allows. Each is added to its
// parent only, once, after its own children were added to it.
func TestProcessesAreSummedOnce(t *testing.T) {
	const n = 10_000
	all := family(n)
	all[n+1] = process{pid: n + 1, parent: 1, ticks: 5, kilobytes: 7} // a second child
	order := all.childrenFirst()
	if len(order) != n+1 {
		t.Errorf("%d processes are added, want each of %d once", len(order), n+1)
	}
	at := map[int]int{}
	for i, pid := range order {
		at[pid] = i
	}
	for pid, p := range all {
		if p.parent != 0 && at[pid] > at[p.parent] {
			t.Fatalf("process %d comes after its parent %d", pid, p.parent)
		}
	}
	sums := all.withSums()
	for _, c := range []struct{ pid, children, ticks, kilobytes int }{
		{1, n, n + 5, n + 7}, {2, n - 2, n - 1, n - 1}, {n, 0, 1, 1}, {n + 1, 0, 5, 7},
	} {
		p := sums[c.pid]
		if p.children != c.children || p.totalTicks != uint64(c.ticks) || p.totalKB != uint64(c.kilobytes) {
			t.Errorf("process %d has %d descendants, %d ticks, %d KiB; want %+v", c.pid, p.children, p.totalTicks, p.totalKB, c)
		}
	}
}

// TestProcessesInALoop: a list that was not read at one instant.
func TestProcessesInALoop(t *testing.T) {
	sums := processes{2: {pid: 2, parent: 3, ticks: 1}, 3: {pid: 3, parent: 2, ticks: 1}, 4: {pid: 4, parent: 3, ticks: 4},
		5: {pid: 5, parent: 5, ticks: 1}, 6: {pid: 6, parent: 99, ticks: 1}}.withSums()
	if len(sums) != 5 || sums[3].totalTicks != 5 || sums[3].children != 1 || sums[6].totalTicks != 1 {
		t.Errorf("got %+v", sums)
	}
}

// BenchmarkProcessChain is a cycle's part of the work for a chain of processes.
func BenchmarkProcessChain(b *testing.B) {
	all := family(10_000)
	for b.Loop() {
		all.withSums()
	}
}
