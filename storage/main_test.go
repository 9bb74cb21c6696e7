//go:build bench && !root && !vm

package storage

import (
	"fmt"
	"os"
	"testing"

	"cambium/internal/looptest"
	"cambium/platform/copytree/apart"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == apart.Word {
		fmt.Fprintln(os.Stderr, apart.Serve(os.Stdin, os.Stdout))
		os.Exit(1)
	}
	looptest.Main(m)
}
