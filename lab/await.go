package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"cambium/internal/status"
	"cambium/lab/director"
)

// readyTimeout bounds the wait for an agent's answer; an emulated machine is slow.
const readyTimeout = 5 * time.Minute

// AnnounceDisks tells the agent of the disks that the machine was made with, as a Director does after attach_disk.
func (i *Instance) AnnounceDisks(ctx context.Context) error {
	if i.Agent == nil {
		return nil
	}
	for _, a := range i.Disks() {
		if a.Disk.ID == ephemeralDisk {
			continue
		}
		if _, err := i.Agent.Do(ctx, "add_persistent_disk", a.Disk.ID, a.Path); err != nil {
			return fmt.Errorf("add_persistent_disk %s: %w", a.Disk.ID, err)
		}
	}
	return nil
}

// Await waits until the agent of a machine that was switched on answers, or has come to a verdict by itself. A verdict
// on a boot that failed is returned.
func (i *Instance) Await(ctx context.Context, progress func(format string, args ...any)) (verdict string, err error) {
	within, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	begin := time.Now()
	said := begin
	answered := make(chan error, 1)
	if i.Agent != nil {
		go func() { answered <- i.Ready(within) }()
	}
	for {
		select {
		case err := <-answered:
			if err == nil {
				progress("the agent answered %.1f s after power-on", time.Since(begin).Seconds())
				return "", nil
			}
			var exception *director.Exception
			if errors.As(err, &exception) { // an agent whose boot has failed answers with its verdict
				return exception.Message, nil
			}
			return "", unanswered(ctx, i, err)
		case <-i.Done():
			return "", fmt.Errorf("machine %s powered itself off; its console is %s", i.Short, i.Console())
		case <-within.Done():
			return "", unanswered(ctx, i, fmt.Errorf("no verdict from the agent: %w", within.Err()))
		case <-time.After(verdictPause):
		}
		d := account(i)
		if time.Since(said) >= progressPause {
			said = time.Now()
			progress("waiting for the agent: %.0f s%s", time.Since(begin).Seconds(), waitsFor(d))
		}
		if d.State == status.Failed || d.State == status.Starting && len(d.Earlier) > 0 {
			if verdict = failure(d); verdict != "" {
				return verdict, nil
			}
		}
		if i.Agent == nil && (d.State == status.Ready || d.State == status.Degraded) {
			progress("the agent was %s %.1f s after power-on", d.State, time.Since(begin).Seconds())
			return "", nil
		}
	}
}

// progressPause is the interval at which a slow boot shows that it goes on.
const progressPause = 5 * time.Second

// waitsFor says how far the boot is, once the agent runs.
func waitsFor(d status.Document) string {
	var running []string
	for _, step := range d.Steps {
		if step.Start > 0 && step.End == 0 {
			running = append(running, step.Name)
		}
	}
	if len(running) == 0 {
		return ""
	}
	return ": " + strings.Join(running, ", ")
}

// verdictPause is the interval at which the agent's status, a file in the machine, is read.
const verdictPause = 500 * time.Millisecond

// account is the agent's status, empty as long as there is none.
func account(i *Instance) (d status.Document) {
	if data, err := i.Status(); err == nil {
		_ = json.Unmarshal(data, &d) // invalid only if incomplete; the next read finds it
	}
	return d
}

// failure is the verdict on the last boot that failed, of this process of the agent or of the one
// before.
func failure(d status.Document) string {
	if d.State == status.Failed {
		return d.Verdict
	}
	if n := len(d.Earlier); n > 0 && d.Earlier[n-1].State == status.Failed {
		return d.Earlier[n-1].Verdict
	}
	return ""
}

// unanswered is the error for an agent that does not answer, with the end of its log.
func unanswered(ctx context.Context, i *Instance, err error) error {
	journal, _ := i.Journal(context.WithoutCancel(ctx))
	lines := strings.Split(strings.TrimSpace(journal), "\n")
	return fmt.Errorf("%w; the end of the agent's log:\n%s", err, strings.Join(lines[max(0, len(lines)-15):], "\n"))
}
