//go:build crashpoints

package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"cambium/internal/vcap"
)

// boundary kills the process at a boundary of a step, such as "network:begin" or "network:end". The file bosh/crash_at
// lists the boundaries. The first line is removed, so that the next process is killed at the next one. Only agents
// built for the crash tests contain this.
func boundary(dirs vcap.Dirs) func(step string, ended bool) {
	path := filepath.Join(dirs.Bosh(), "crash_at")
	var mu sync.Mutex // steps run side by side
	return func(step string, ended bool) {
		mu.Lock()
		defer mu.Unlock()
		where := step + ":begin"
		if ended {
			where = step + ":end"
		}
		wanted, err := os.ReadFile(path)
		first, rest, _ := strings.Cut(string(wanted), "\n")
		if err != nil || first != where || os.WriteFile(path, []byte(rest), 0o600) != nil {
			return
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
