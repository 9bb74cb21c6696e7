// Package thread runs a function on an operating system thread of its own, for calls that change a thread
// permanently: setns(2), unshare(2), its priority.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs work on a thread that ends with it, and returns its error. That is never the main thread: the runtime
// cannot end it, and /proc/self refers to it, so the process would then read the mount table and links of another
// namespace as its own.
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

// Lower adds nice to the level of the calling thread, down to the default at least: only the agent itself runs above
// it. It is best effort. Threads and programs that this one starts inherit the level.
func Lower(nice int) {
	// The system call returns 20 minus the nice level.
	if own, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil {
		if level := min(max(20-own+nice, 0), 19); level != 20-own {
			_ = unix.Setpriority(unix.PRIO_PROCESS, 0, level)
		}
	}
}
