// Package thread runs functions on their own operating system thread, for calls that change a thread permanently:
// setns(2), unshare(2), its priority.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs work on a thread that ends afterwards, and returns its error. It never uses the main thread, which the
// runtime cannot end. /proc/self refers to the main thread, so the process would then see the mounts and links of
// another namespace as its own.
func Run(work func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			result <- Run(work) // which cannot get this thread as long as it is locked
			return
		}
		result <- work() // never unlocked: the thread ends with the goroutine
	}()
	return <-result
}

// LowerPriority adds nice to the nice level of the calling thread, with 0 as the lowest result: only the agent itself
// runs with a raised priority. It ignores errors. Threads and programs that this thread starts inherit the level.
func LowerPriority(nice int) {
	// The system call returns 20 minus the nice level.
	if own, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil {
		if level := min(max(20-own+nice, 0), 19); level != 20-own {
			_ = unix.Setpriority(unix.PRIO_PROCESS, 0, level)
		}
	}
}
