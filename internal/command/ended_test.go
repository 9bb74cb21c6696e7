package command

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestLeads(t *testing.T) {
	for stat, want := range map[string]bool{
		"7 (pre-start) S 1 7 7 0": true, "7 (pre-start) D 1 7": true, "7 (pre-start) Z 1 7 7": false,
		"7 (pre-start) S 1 6 7":  false,
		"7 (post-start) S 1 7 7": false, "7 (x) pre-start) S 1 7": false, "7 (pre-start": false, "": false,
		"7 (pre-start) S": false,
	} {
		if got := isLeader(stat, "pre-start"); got != want {
			t.Errorf("%q: got %v, want %v", stat, got, want)
		}
	}
	if !isLeader("7 (a-name-of-sixte) S 1 7", "a-name-of-sixteen") {
		t.Error("the kernel cuts names")
	}
}

// A script that an agent left behind is waited for; what it left running in the background is not.
func TestAwaitEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "orphan-script")
	if err := os.WriteFile(path, []byte("#!/bin/bash\n(while [ -e "+path+" ]; do sleep 0.1; done) &\nread\n"),
		0o755); err != nil {
		t.Fatal(err)
	}
	orphan := exec.Command(path)
	orphan.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := orphan.StdinPipe()
	if err == nil {
		err = orphan.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	for !running("/proc", "orphan-script") { // until it has been executed
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*endedPause)
	defer cancel()
	if err := AwaitEnded(ctx, "orphan-script"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v while it runs", err)
	}
	if err := errors.Join(in.Close(), AwaitEnded(t.Context(), "orphan-script")); err != nil {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil { // ends what runs in the background
		t.Error(err)
	}
	_ = orphan.Wait() // read fails
}
