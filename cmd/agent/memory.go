package main

import (
	"os"
	"runtime/debug"
)

// limitHeap sets the garbage collector to half of Go's default growth, because the agent shares its machine with jobs
// and has little to do. GOGC in the environment has precedence.
func limitHeap() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}
