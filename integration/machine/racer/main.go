//go:build linux

// Command racer is the hostile process of TestMachineRacerGetsNothing. It runs as vcap in the machine.
package main

import (
	"fmt"
	"os"

	"cambium/internal/racer"
)

func main() {
	racer.RunIfCalled()
	fmt.Fprintln(os.Stderr, "racer: only for tests")
	os.Exit(1)
}
