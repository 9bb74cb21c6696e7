//go:build linux

// Command program is the lab's guest program, which runs inside a virtual machine. As the first process it starts the
// system from the initial RAM disk. With the argument "serve" it serves the host.
package main

import (
	"fmt"
	"os"
	"time"

	"cambium/lab/guest"

	"golang.org/x/sys/unix"
)

func main() {
	var err error
	if os.Getpid() == 1 {
		err = guest.Init()
	} else if len(os.Args) == 2 && os.Args[1] == "serve" {
		err = guest.Serve()
	} else {
		err = fmt.Errorf("usage: %s serve", os.Args[0])
	}
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "cambium-guest:", err)
	if os.Getpid() == 1 {
		time.Sleep(time.Second) // so that the console is written out
		_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	}
	os.Exit(1)
}
