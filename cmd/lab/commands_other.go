//go:build !linux

package main

import "context"

// commands returns the commands that need no machines and no lab on this host.
func commands() []command {
	return []command{callCommand(), watchCommand(), completionCommand(), versionCommand()}
}

// stateDir returns "", because labs run only on Linux.
func stateDir() string { return "" }

// watchVM finds nothing, because the CPI runs only on Linux.
func (*call) watchVM(context.Context, string, bool) (bool, error) { return false, nil }
