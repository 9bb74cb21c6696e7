package main

import (
	"fmt"
	"os"
	"strconv"
)

// Go's runtime has a thread that looks every 20 µs, while anything is going on, whether a system call lasts.
// Where waking up is dear, as in an emulated machine, that takes a fifth of the boot's processor time, for little:
// what waits there waits for disks. The kernel is told that this thread may be late.
const (
	// lateInBoot is how late during a boot.
	lateInBoot = "2000000"
	// lateAsEver is what a thread has that was never told otherwise. Requests are not to wait for each other's system calls.
	lateAsEver = "50000"
)

// attentive sets how late the runtime's thread may be, in ns. It is best effort.
func attentive(late string) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	// It is the first that the main thread has started.
	own, first := os.Getpid(), 0
	for _, t := range tasks {
		if id, err := strconv.Atoi(t.Name()); err == nil && id > own && (first == 0 || id < first) {
			first = id
		}
	}
	if first != 0 {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/timerslack_ns", first), []byte(late), 0)
	}
}
