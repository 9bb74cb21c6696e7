package agent

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/agent/action"
	"cambium/internal/retry"
)

const (
	// heartbeatPeriod is half the time after which the Health Monitor considers an agent lost.
	heartbeatPeriod = 30 * time.Second
	// vitalsTimeout bounds one measurement, in case a file system does not answer.
	vitalsTimeout = 5 * time.Second
)

// Publisher sends reports to the Health Monitor.
type Publisher interface {
	Publish(ctx context.Context, target, topic string, payload any) error
	Connected() bool
}

// heartbeat is the report to the Health Monitor. A null value means that no spec was applied, or that the supervisor
// does not answer.
type heartbeat struct {
	Deployment string  `json:"deployment"`
	Job        *string `json:"job"`
	Index      *int    `json:"index"`
	JobState   string  `json:"job_state"`
	Vitals     any     `json:"vitals"`
	NodeID     string  `json:"node_id"`
	Processes  *int    `json:"number_of_processes"`
}

// Heartbeats sends heartbeats to the Health Monitor.
type Heartbeats struct {
	Bus    Publisher
	Jobs   action.Jobs
	Vitals func(ctx context.Context) (any, error)
	// Ready is closed when the agent is ready; no heartbeat is sent before.
	Ready <-chan struct{}
	// Connected receives a token when the bus has become reachable again. The next heartbeat is then sent at once.
	// Heartbeats that could not be sent before are dropped.
	Connected <-chan struct{}
	Log       *logrus.Entry
}

// Run sends a heartbeat as soon as the agent is ready, and then one each period. The phase is random, so that agents
// that started together do not report together.
func (h Heartbeats) Run(ctx context.Context) error {
	select {
	case <-h.Ready:
	case <-ctx.Done():
		return nil
	}
	sent := h.first(ctx)
	timer := time.NewTimer(heartbeatPeriod/2 + rand.N(heartbeatPeriod/2))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			timer.Reset(heartbeatPeriod)
		case <-h.Connected:
			// The first connection announces itself a moment after it can be used.
			if time.Since(sent) < connectDebounce {
				continue
			}
		case <-ctx.Done():
			return nil
		}
		if h.send(ctx, h.collect(ctx)) {
			sent = time.Now()
		}
	}
}

const (
	// connectDebounce is the time after a heartbeat during which a new connection triggers no other.
	connectDebounce = 2 * time.Second
	// supervisorStart bounds how long the first heartbeat waits for the supervisor, which starts at the same time as
	// the agent. Without its answer, the heartbeat would report an unknown number of processes.
	supervisorStart = 10 * time.Second
)

var supervisorPoll = retry.Backoff{Min: 100 * time.Millisecond, Max: time.Second}

// first sends the first heartbeat, and waits up to supervisorStart for the supervisor's answer. It returns when the
// heartbeat was sent, or the zero time if there was no connection.
func (h Heartbeats) first(ctx context.Context) (sent time.Time) {
	var b heartbeat
	within, cancel := context.WithTimeout(ctx, supervisorStart)
	defer cancel()
	for attempt := 0; ; attempt++ {
		b = h.collect(ctx)
		if b.Processes != nil || retry.Sleep(within, supervisorPoll.Pause(attempt)) != nil {
			break
		}
	}
	if h.send(ctx, b) {
		return time.Now()
	}
	return time.Time{}
}

// send publishes a heartbeat if the bus is connected. Callers collect it in any case, because that also records the
// state for bosh-dns.
func (h Heartbeats) send(ctx context.Context, b heartbeat) bool {
	if !h.Bus.Connected() {
		return false
	}
	if err := h.Bus.Publish(ctx, "hm", "heartbeat", b); err != nil {
		h.Log.WithError(err).Warn("cannot send a heartbeat")
		return false
	}
	return true
}

// collect never fails. It leaves out values that cannot be read, because without a heartbeat the resurrector would
// recreate the VM.
func (h Heartbeats) collect(ctx context.Context) heartbeat {
	b := heartbeat{Vitals: struct{}{}}
	ctx, cancel := context.WithTimeout(ctx, vitalsTimeout)
	defer cancel()
	vitals := action.RunInBackground(func() (any, error) { return h.Vitals(ctx) })
	state, processes, ok := action.ObserveJobs(ctx, h.Jobs)
	b.JobState = state
	if ok {
		n := len(processes)
		b.Processes = &n
	}
	if spec, err := h.Jobs.Spec(); err != nil {
		h.Log.WithError(err).Warn("heartbeat sent without the applied spec")
	} else {
		b.Deployment, b.Job, b.Index, b.NodeID = spec.Deployment, spec.InstanceName(), spec.Index, spec.ID
	}
	select {
	case v := <-vitals:
		if v.Err != nil {
			h.Log.WithError(v.Err).Warn("heartbeat sent without vitals")
		} else {
			b.Vitals = v.Value
		}
	case <-ctx.Done():
		h.Log.Warn("heartbeat sent without vitals: collecting them takes too long")
	}
	return b
}
