//go:build !linux

package main

import "context"

// commands are those that need neither machines nor a lab of this host.
func commands() []command {
	return []command{callCommand(), watchCommand(), completionCommand(), versionCommand()}
}

// stateDir is empty: there are no labs.
func stateDir() string { return "" }

// watchVM has nothing to look at: there are no VMs of a CPI.
func (*call) watchVM(context.Context, string, bool) (bool, error) { return false, nil }
