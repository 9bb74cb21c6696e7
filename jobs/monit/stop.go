package monit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"cambium/internal/pidfile"
	"cambium/internal/retry"
	"cambium/supervisor/monitfile"
)

// stopBudget bounds how long StopAll waits for all services together. A Director stops asking after five minutes and
// takes the stop for done, so an error must reach it before that.
const stopBudget = 5*time.Minute - 5*time.Second

var errBudget = errors.New("the time for stopping is over")

// StopAll stops every service. With wait it first lets pending actions end and then returns only when nothing is
// monitored or pending any more and the processes that ran have ended, for at most the budget.
func (s Supervisor) StopAll(ctx context.Context, wait bool) error {
	if !wait {
		return s.stopEach(ctx)
	}
	budget := cmp.Or(s.StopBudget, stopBudget)
	ctx, cancel := context.WithTimeoutCause(ctx, budget, errBudget)
	defer cancel()
	seen := sightings{checks: s.checks()}
	defer seen.close()
	waiting, err := s.stopAndWait(ctx, &seen)
	if !errors.Is(err, errBudget) {
		return err
	}
	// A Director takes an error with the words of the other one for a stop: nothing is known to run then.
	if left := seen.left(); len(left) > 0 {
		return fmt.Errorf("stopping services failed: %v after the stop there still runs %s; end it and stop again",
			budget, strings.Join(left, ", "))
	}
	//lint:ignore ST1005 the Director looks for these words
	return fmt.Errorf("Timed out waiting for services '%s' to stop after %v: %w", strings.Join(waiting, ", "), budget, err)
}

// stopAndWait stops every service, and returns those that it was waiting for if ctx ends.
func (s Supervisor) stopAndWait(ctx context.Context, seen *sightings) (waiting []string, err error) {
	waiting, err = s.until(ctx, func(services []Service) (pending []string, _ error) {
		for _, v := range services {
			seen.addProcess(v)
			if v.Pending {
				pending = append(pending, v.Name)
			}
		}
		return pending, nil
	})
	if err != nil {
		return waiting, fmt.Errorf("pending actions: %w", err)
	}
	if err := s.stopEach(ctx); err != nil {
		return nil, err
	}
	return s.until(ctx, func(services []Service) (unfinished []string, _ error) {
		var faults []string
		for _, v := range services {
			switch {
			case v.Pending:
				unfinished = append(unfinished, v.Name) // a fault of it may be from before the stop
			case v.Fault != "":
				faults = append(faults, fmt.Sprintf("%s: %s", v.Name, v.Fault))
			case v.Monitored:
				unfinished = append(unfinished, v.Name)
			}
		}
		if len(faults) > 0 {
			return nil, fmt.Errorf("stopping services failed: %s", strings.Join(faults, "; "))
		}
		return append(unfinished, seen.left()...), nil
	})
}

// until polls the services until none is unfinished, and returns those that are if ctx ends: monit has no
// notifications. A monit that does not answer for as long as an action may take is an error, and not a timeout, which
// the Director takes for a stop: nobody knows what runs.
func (s Supervisor) until(ctx context.Context, unfinished func([]Service) ([]string, error)) (waiting []string, err error) {
	for {
		status, err := s.statusWithRetry(ctx)
		if err != nil && ctx.Err() == nil {
			return waiting, err
		}
		if err == nil {
			if waiting, err = unfinished(status.Services); err != nil || len(waiting) == 0 {
				return nil, err
			}
		}
		if ended := retry.Sleep(ctx, cmp.Or(s.Poll, 500*time.Millisecond)); ended != nil {
			return waiting, errors.Join(ended, err)
		}
	}
}

// stopEach asks monit to stop every service.
func (s Supervisor) stopEach(ctx context.Context) error {
	status, err := s.statusWithRetry(ctx)
	if err != nil {
		return err
	}
	// The monit of stemcells stops what it does not monitor, if the process runs. A current one does nothing then.
	if !strings.HasPrefix(status.Version, "5.2.") {
		if err := s.resume(ctx, status.Services); err != nil {
			return err
		}
	}
	for _, service := range status.Services {
		if err := s.Stop(ctx, service.Name); err != nil {
			return err
		}
	}
	return nil
}

// resume makes monit supervise again what a drain left unmonitored and is about to be stopped. monit then also
// supervises what such a service depends on, and starts it if it does not run: so nothing must be stopped before. A
// service whose process has ended by itself, as a drain may do, is skipped: monit would start it only to stop it.
func (s Supervisor) resume(ctx context.Context, services []Service) error {
	var resumed []string
	checks := s.checks()
	for _, v := range services {
		if v.Monitored || !mayRun(checks[v.Name]) {
			continue
		}
		if err := s.act(ctx, "monitor", v.Name); err != nil {
			return err
		}
		resumed = append(resumed, v.Name)
	}
	if len(resumed) == 0 {
		return nil
	}
	// monit may be waiting for a start or stop program.
	ctx, cancel := context.WithTimeoutCause(ctx, stopBudget, fmt.Errorf("timed out after %v", stopBudget))
	defer cancel()
	return retry.Do(ctx, retry.Backoff{Min: 50 * time.Millisecond, Max: 500 * time.Millisecond}, func(ctx context.Context) error {
		status, err := s.Status(ctx)
		if err != nil {
			return err
		}
		for _, v := range status.Services {
			if slices.Contains(resumed, v.Name) && (!v.Monitored || v.Pending) {
				return fmt.Errorf("monit does not supervise %s again", v.Name)
			}
		}
		return nil
	})
}

// sightings are the processes that services had before a stop: monit's word that it has stopped a service says nothing
// about its process.
type sightings struct {
	checks map[string]monitfile.Check
	all    []sighting
}

// sighting is one process. The kernel reports the end of this very process, whatever has its pid later.
type sighting struct {
	service string
	watch   *pidfile.Watch
	ended   chan struct{}
}

// addProcess adds the process of a service, if it has a stop program: without one it is nobody's to stop. Init is not a
// job's process: jobs that have none write its pid.
func (s *sightings) addProcess(v Service) {
	check, known := s.checks[v.Name]
	if !known || check.Stop == nil {
		return
	}
	pid := v.PID
	if check.Pidfile != "" {
		pid, _ = pidfile.Read(check.Pidfile) // as for monit, nothing runs if it cannot be read
	}
	same := func(before sighting) bool { return before.watch.Pid == pid && !before.over() }
	if pid <= 1 || slices.ContainsFunc(s.all, same) {
		return
	}
	ended := make(chan struct{})
	if watch, err := pidfile.Follow(pid, func() { close(ended) }); err == nil { // else it has ended
		s.all = append(s.all, sighting{v.Name, watch, ended})
	}
}

func (s sighting) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// left are the processes that still run.
func (s *sightings) left() (processes []string) {
	for _, v := range s.all {
		if !v.over() {
			processes = append(processes, fmt.Sprintf("process %d of %s", v.watch.Pid, v.service))
		}
	}
	return processes
}

func (s *sightings) close() {
	for _, v := range s.all {
		v.watch.Close()
	}
}
