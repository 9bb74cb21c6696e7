//go:build !crashpoints

package main

import "cambium/internal/vcap"

// boundary does nothing in a released agent; see boundary_crash.go.
func boundary(vcap.Dirs) func(step string, ended bool) { return nil }
