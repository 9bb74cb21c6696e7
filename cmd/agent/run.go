package main

import (
	"context"
	"io"
)

func runAgent(_ context.Context, args []string, stdout, stderr io.Writer) int {
	setUpLogging(stderr)
	return exitBad
}
