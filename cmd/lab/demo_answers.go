//go:build linux

package main

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"cambium/lab"
)

// answers stops and starts the job, and measures how long after its end a Director that polls get_task once a second
// learns of a task: with delayed answers to get_task, and without.
func (s *show) answers(ctx context.Context) (string, error) {
	var waits [2]time.Duration
	for n, seconds := range []int{2, 0} {
		if err := s.i.Change(ctx, func(d lab.Document) {
			d.Set("env.bosh.agent",
				map[string]any{"task_answer_hold": seconds})
		}); err != nil {
			return "", err
		}
		// It has the agent read its settings again, and there is no such disk.
		if err := s.sequence(ctx, []any{"remove_persistent_disk", "none"}); err != nil {
			return "", err
		}
		var err error
		if waits[n], err = s.waitsOf(ctx, "stop", "start", "stop", "start"); err != nil {
			return "", err
		}
	}
	if err := s.i.Agent.WaitRunning(ctx, stepTimeout); err != nil {
		return "", err
	}
	pid, err := s.output(ctx, "cat", "/var/vcap/sys/run/web/web.pid")
	s.pid = pid
	return fmt.Sprintf("%.2f s; %.2f s if answers are not held", waits[0].Seconds(), waits[1].Seconds()), err
}

var taskTook = regexp.MustCompile(`task (?:done|failed) .*\btask=(\S+) took=(\S+)`)

// waitsOf calls methods, and adds up how much longer the caller waited for the tasks than they took.
func (s *show) waitsOf(ctx context.Context, methods ...string) (sum time.Duration, err error) {
	caller := *s.i.Agent
	caller.Poll = time.Second
	begun, known := map[string]time.Time{}, map[string]time.Duration{}
	caller.Progress = func(_, task string, _ time.Duration) {
		if begun[task].IsZero() {
			begun[task] = time.Now()
		}
	}
	caller.Ended = func(_, task string) { known[task] = time.Since(begun[task]) }
	for _, method := range methods {
		if _, err := caller.Do(ctx, method); err != nil {
			return 0, err
		}
	}
	journal, err := s.i.Journal(ctx)
	if err != nil {
		return 0, err
	}
	found := 0
	for _, match := range taskTook.FindAllStringSubmatch(journal, -1) {
		waited, ours := known[match[1]]
		took, err := time.ParseDuration(match[2])
		if err != nil || !ours {
			continue
		}
		found++
		sum += max(waited-took, 0)
	}
	if found == 0 {
		return 0, fmt.Errorf("the agent's journal mentions none of the tasks %v", methods)
	}
	return sum, nil
}
