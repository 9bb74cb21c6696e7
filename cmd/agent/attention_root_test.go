//go:build root

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// slacks are how late the threads of this process may be.
func slacks(t *testing.T) (all []string) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		data, err := os.ReadFile(filepath.Join("/proc", filepath.Base(task), "timerslack_ns"))
		if err != nil {
			continue // it has ended
		}
		all = append(all, strings.TrimSpace(string(data)))
	}
	return all
}

func TestRootAttention(t *testing.T) {
	for _, late := range []string{lateInBoot, lateAsEver} {
		attentive(late)
		if got := strings.Count(" "+strings.Join(slacks(t), " ")+" ", " "+lateInBoot+" "); got == 0 == (late == lateInBoot) {
			t.Errorf("after %s, %d threads are late", late, got)
		}
	}
}
