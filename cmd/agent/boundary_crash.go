//go:build crashpoints

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"cambium/internal/vcap"
)

// boundary kills the process at the step boundary that the file bosh/crash_at names, once:
// "network:begin" or "network:end". Only agents built for the crash tests contain this.
func boundary(dirs vcap.Dirs) func(step string, ended bool) {
	path := filepath.Join(dirs.Bosh(), "crash_at")
	return func(step string, ended bool) {
		where := step + ":begin"
		if ended {
			where = step + ":end"
		}
		wanted, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(wanted)) != where || os.Remove(path) != nil {
			return
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
