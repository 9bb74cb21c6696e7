//go:build !linux

package main

// commands are those that need neither machines nor a lab of this host.
func commands() []command {
	return []command{callCommand(), watchCommand(), completionCommand(), versionCommand()}
}

// stateDir is empty: there are no labs.
func stateDir() string { return "" }
