package monit

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"cambium/internal/retry"
	"cambium/internal/vcap"
)

// Process is a service in the format of get_state.
type Process struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Uptime struct {
		Seconds int `json:"secs,omitempty"`
	} `json:"uptime"`
	Memory struct {
		KB      int     `json:"kb,omitempty"`
		Percent float64 `json:"percent"`
	} `json:"mem"`
	CPU struct {
		Total float64 `json:"total"`
	} `json:"cpu"`
}

// Supervisor controls all services of the group.
type Supervisor struct {
	*Client
	// StopBudget replaces stopBudget, if it is set.
	StopBudget time.Duration
	// Poll is the interval at which stopping services are polled; half a second if zero.
	Poll time.Duration
}

// StartAll starts all services.
func (s Supervisor) StartAll(ctx context.Context) error { return s.each(ctx, s.Start) }

// StartUnmonitored starts the services that are not supervised. It waits until a newly started monit answers.
func (s Supervisor) StartUnmonitored(ctx context.Context) (started []string, err error) {
	status, err := s.statusWithRetry(ctx)
	if err != nil {
		return nil, err
	}
	for _, service := range status.Services {
		if service.Monitored || service.Pending {
			continue
		}
		if err := s.Start(ctx, service.Name); err != nil {
			return started, err
		}
		started = append(started, service.Name)
	}
	return started, nil
}

// stateWritten returns when monit last wrote its state file, which is below the system root or the base directory, or
// zero if there is none. Call it before monit starts, which writes a new file.
func stateWritten(root string, dirs vcap.Dirs) (last time.Time) {
	// The stemcell's monitrc names one, monit's own default is in root's home.
	own := []string{filepath.Join(root, "root/.monit.state"), filepath.Join(root, ".monit.state")}
	for _, path := range append(own, dirs.MonitState(), dirs.SupervisorState()) {
		if info, err := os.Stat(path); err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last
}

// UnmonitorAll ends the supervision of all services.
func (s Supervisor) UnmonitorAll(ctx context.Context) error { return s.each(ctx, s.Unmonitor) }

func (s Supervisor) each(ctx context.Context, act func(context.Context, string) error) error {
	status, err := s.statusWithRetry(ctx)
	if err != nil {
		return err
	}
	for _, service := range status.Services {
		if err := act(ctx, service.Name); err != nil {
			return err
		}
	}
	return nil
}

// statusWithRetry repeats Status for as long as an action may take, because monit does not answer at once after a boot
// or a reload.
func (s Supervisor) statusWithRetry(ctx context.Context) (status Status, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, actionBudget, fmt.Errorf("no answer within %v", actionBudget))
	defer cancel()
	err = retry.Do(ctx, retry.Backoff{Min: s.pause()}, func(ctx context.Context) (err error) {
		status, err = s.Status(ctx)
		return err
	})
	return status, err
}

// Observe returns the state of all services together, and the services in the format of get_state. It ignores the
// marker of a stopped instance. If monit does not answer at once, the state is unknown.
func (s Supervisor) Observe(ctx context.Context) (state string, processes []Process, err error) {
	status, err := s.Status(ctx)
	if err != nil {
		return StateUnknown, nil, err
	}
	state = StateRunning
	for _, v := range status.Services {
		processes = append(processes, v.process())
		if v.State == StateStarting {
			state = StateStarting
		} else if v.State != StateRunning && state != StateStarting {
			state = StateFailing
		}
	}
	return state, processes, nil
}

func (v Service) process() Process {
	p := Process{Name: v.Name, State: v.State}
	p.Uptime.Seconds, p.Memory.KB, p.Memory.Percent, p.CPU.Total = v.UptimeSeconds, v.MemoryKB, v.MemoryPercent,
		v.CPUPercent
	return p
}
