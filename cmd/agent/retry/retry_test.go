package retry

import (
	"bytes"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cambium/internal/status"
)

// TestRetry: the agent gets the signal only if there is something to retry, and the command says what comes of it.
func TestRetry(t *testing.T) {
	next := time.Now().Add(time.Hour)
	for _, c := range []struct {
		name   string
		doc    status.Document
		signal bool
		want   string
		code   int
	}{
		{"failed", status.Document{State: status.Failed, Try: 3, NextTry: &next}, true, "try 4 has begun", 0},
		{"still waiting", status.Document{State: status.Failed, Try: 3}, true, "try 3 goes on", 0},
		{"starting", status.Document{State: status.Starting, Try: 1}, true, "try 1 goes on", 0},
		{"ready", status.Document{State: status.Ready}, false, "there is nothing to retry: the agent is ready", 0},
		{"withheld", status.Document{State: status.Degraded, Warnings: []string{status.JobsWithheld + ": no disk"}},
			true, "the agent tries to mount the store", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "run", "status.json")
			r, err := status.Open(path, "v")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = r.Flush() }()
			update := func(change func(*status.Document)) {
				if err := r.Update(change); err != nil {
					t.Error(err)
				}
				if err := r.Flush(); err != nil {
					t.Error(err)
				}
			}
			update(func(d *status.Document) {
				d.State, d.Try, d.NextTry, d.Warnings = c.doc.State, c.doc.Try, c.doc.NextTry, c.doc.Warnings
			})
			// This process stands for the agent.
			got, heard := make(chan os.Signal, 1), make(chan bool)
			signal.Notify(got, syscall.SIGHUP)
			defer signal.Stop(got)
			over := make(chan struct{})
			go func() {
				select {
				case <-got:
					update(func(d *status.Document) { d.Try, d.NextTry, d.State = d.Try+1, nil, status.Starting })
					heard <- true
				case <-over:
					heard <- false
				}
			}()
			var out, problems bytes.Buffer
			code := Run(t.Context(), []string{"--file", path}, &out, &problems)
			if c.signal {
				if !<-heard {
					t.Error("the agent was not signaled")
				}
			} else if close(over); <-heard {
				t.Error("the agent was signaled")
			}
			if code != c.code || !strings.Contains(out.String(), c.want) {
				t.Errorf("exit code %d, %q, %q; want %d, %q", code, out.String(), problems.String(), c.code, c.want)
			}
		})
	}
}

func TestWithoutAnAgent(t *testing.T) {
	var out, problems bytes.Buffer
	code := Run(t.Context(), []string{"--file", filepath.Join(t.TempDir(), "none")}, &out, &problems)
	if code != 1 || !strings.Contains(problems.String(), "the agent has not started") {
		t.Errorf("exit code %d, %q", code, problems.String())
	}
}
