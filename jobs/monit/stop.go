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

// stopBudget bounds how long StopAll waits for all services. A Director stops polling after five minutes and then takes
// the stop for done, so an error must reach it before.
const stopBudget = 5*time.Minute - 5*time.Second

var errBudget = errors.New("the time for stopping is over")

// StopAll stops all services. If wait is true, it first waits for pending actions, and returns when no service is
// monitored or pending any more and all processes that were running have ended, or when the budget is over.
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
	return fmt.Errorf("Timed out waiting for services '%s' to stop after %v: %w", strings.Join(waiting, ", "),
		budget, err)
}

// stopAndWait stops all services. If ctx ends first, it returns those that have not stopped.
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

// until polls the services until unfinished returns none. If ctx ends first, it returns the unfinished ones. It fails
// if monit does not answer for as long as an action may take. That must not look like a timeout, which a Director takes
// for a successful stop, because it is unknown what is running.
func (s Supervisor) until(ctx context.Context,
	unfinished func([]Service) ([]string, error)) (waiting []string, err error) {
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

// stopEach asks monit to stop each service.
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

// resume makes monit supervise services again that a drain has left unmonitored, so that they can be stopped. monit
// then also supervises the services on which these depend, and starts them if they do not run, so nothing may be
// stopped before. It skips services whose process has ended, as a drain may cause, because monit would start them.
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
	return retry.Do(
		ctx,
		retry.Backoff{Min: 50 * time.Millisecond, Max: 500 * time.Millisecond},
		func(ctx context.Context) error {
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
		},
	)
}

// sightings has the processes of the services before a stop. monit's report that a service is stopped does not mean
// that its process has ended.
type sightings struct {
	checks map[string]monitfile.Check
	all    []sighting
}

// sighting is a watched process. It cannot be confused with another one that has the same pid later.
type sighting struct {
	service string
	watch   *pidfile.Watch
	ended   chan struct{}
}

// addProcess watches the process of a service with a stop program. It ignores pid 1, which jobs without a process write
// to their pid files.
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

// left lists the processes that are still running.
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
