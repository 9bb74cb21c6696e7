package copytree

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Workers compute checksums and copy for minutes, in the process that answers the Director. Go
// would let an answer wait for the time slice of a worker, so each worker has a thread and a
// processor (as Go counts them) of its own, and the kernel decides: the agent's other threads, at a
// higher priority and mostly asleep, go first.

// makeRoom adds processors for the workers until room is given back.
func makeRoom(workers int) (giveBack func()) {
	before := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(before + workers)
	return func() { runtime.GOMAXPROCS(before) }
}

// stepAside gives the calling goroutine a thread at the default priority, which ends with it.
func stepAside() {
	runtime.LockOSThread()
	// The system call returns 20 minus the nice level. One that cannot be changed is no harm.
	if own, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil && own > 20 {
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 0)
	}
}
