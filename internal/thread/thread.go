// Package thread gives work an operating system thread of its own, for what changes a thread for good: entering a
// namespace, unsharing something.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs work on a thread that ends with it, and returns its error. That is never the process's first one: the
// runtime cannot end it, and it is the one that /proc/self speaks of. The process would read the mount table or the
// links of another namespace as its own from then on.
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
