//go:build linux

// Command first is the first program of a stemcell. It runs from the initial RAM disk, loads the drivers of the root
// disk, mounts the root and starts the system. It contains nothing else of the lab.
package main

import (
	"fmt"
	"os"
	"time"

	"cambium/lab/guest"

	"golang.org/x/sys/unix"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "this program must run as the first process (PID 1) of a machine")
		os.Exit(1)
	}
	err := guest.Init() // returns only with an error
	fmt.Fprintln(os.Stderr, "init:", err)
	// A machine that reboots may find the disk that was missing; the pause leaves time to read.
	time.Sleep(30 * time.Second)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	os.Exit(1)
}
