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

// readyTimeout bounds the wait for an agent's answer, which takes long in an emulated machine.
const readyTimeout = 5 * time.Minute

// AnnounceDisks announces the disks that the machine was created with to the agent, as a Director does after
// attach_disk.
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

// Await waits until the agent of a running machine answers or has a verdict. It returns the verdict if the boot has
// failed.
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

// progressPause is the interval at which progress is reported during a slow boot.
const progressPause = 5 * time.Second

// waitsFor describes the progress of the boot.
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

// verdictPause is the interval at which the agent's status file is read.
const verdictPause = 500 * time.Millisecond

// account returns the agent's status. It is empty if there is none yet.
func account(i *Instance) (d status.Document) {
	if data, err := i.Status(); err == nil {
		_ = json.Unmarshal(data, &d) // invalid only if incomplete; the next read finds it
	}
	return d
}

// failure returns the verdict of the last failed boot of this process of the agent, or of the one before.
func failure(d status.Document) string {
	if d.State == status.Failed {
		return d.Verdict
	}
	if n := len(d.Earlier); n > 0 && d.Earlier[n-1].State == status.Failed {
		return d.Earlier[n-1].Verdict
	}
	return ""
}

// unanswered returns an error with the end of the agent's log.
func unanswered(ctx context.Context, i *Instance, err error) error {
	journal, _ := i.Journal(context.WithoutCancel(ctx))
	lines := strings.Split(strings.TrimSpace(journal), "\n")
	return fmt.Errorf("%w; the end of the agent's log:\n%s", err, strings.Join(lines[max(0, len(lines)-15):], "\n"))
}
