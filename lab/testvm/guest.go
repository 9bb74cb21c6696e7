//go:build linux

// Package testvm runs a test binary as the first process of a small virtual machine, for checks that need their own
// kernel and devices, but no system. The same binary runs on both sides: TestMain calls Main, which runs the guest, and
// Machine.Run runs the host's side. They communicate over the console.
package testvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"cambium/lab/guest"
	"cambium/lab/initrd"

	"golang.org/x/sys/unix"
)

// Check is a check to run in the machine.
type Check struct {
	Name string
	Run  func(ctx context.Context) error
}

// Main runs the tests or, if it is the first process of a machine, the checks and then finish. It does not return.
func Main(m *testing.M, checks []Check, finish func() error) {
	if os.Getpid() != 1 {
		os.Exit(m.Run())
	}
	say(up, "")
	for _, mount := range [][2]string{{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}, {"tmpfs", "/var"},
		{"tmpfs", "/tmp"}} {
		if err := unix.Mount(mount[0], mount[1], mount[0], 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			say("FAIL", fmt.Sprintf("mount %s: %v", mount[1], err))
		}
	}
	_ = os.Setenv("PATH", "/sbin")
	if err := guest.LoadModules("/" + initrd.ModuleDir); err != nil {
		say("FAIL", err.Error())
	}
	for _, check := range checks {
		if err := check.Run(context.Background()); err != nil {
			say("FAIL", check.Name+": "+err.Error())
		} else {
			say("PASS", check.Name)
		}
	}
	if finish != nil {
		if err := finish(); err != nil {
			say("FAIL", err.Error())
		}
	}
	say("END", "")
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART) // the machine is not started again
}

// Ask makes the host run the commands that Machine.On has for the word.
func Ask(word string) { say("ASK", word) }

// up is the first word of a guest, which means that its kernel works.
const up = "UP"

func say(kind, text string) { fmt.Printf("GUEST-%s %s\n", kind, text) }
