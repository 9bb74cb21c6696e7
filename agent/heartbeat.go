package agent

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/agent/action"
)

const (
	// heartbeatPeriod is half of what the Health Monitor waits before it calls an agent lost.
	heartbeatPeriod = 30 * time.Second
	// vitalsPatience bounds one measurement, for a file system that does not answer.
	vitalsPatience = 5 * time.Second
)

// Publisher sends reports to the Health Monitor.
type Publisher interface {
	Publish(ctx context.Context, target, topic string, payload any) error
	Connected() bool
}

// Heartbeat is what the Health Monitor learns every half minute. Its null values mean: nothing
// applied, or a supervisor that does not answer.
type Heartbeat struct {
	Deployment string  `json:"deployment"`
	Job        *string `json:"job"`
	Index      *int    `json:"index"`
	JobState   string  `json:"job_state"`
	Vitals     any     `json:"vitals"`
	NodeID     string  `json:"node_id"`
	Processes  *int    `json:"number_of_processes"`
}

// Heartbeats sends them.
type Heartbeats struct {
	Bus    Publisher
	Jobs   action.Jobs
	Vitals func(ctx context.Context) (any, error)
	// Ready is closed when the agent may be taken for alive.
	Ready <-chan struct{}
	// Connected holds a token when the bus has become reachable again: the next heartbeat then
	// goes out at once, and none from the time before.
	Connected <-chan struct{}
	Log       *logrus.Entry
}

// Run sends a heartbeat at once and then one each period, at a phase of its own, so that a
// deployment's agents that were started together do not all report together.
func (h Heartbeats) Run(ctx context.Context) error {
	select {
	case <-h.Ready:
	case <-ctx.Done():
		return nil
	}
	h.beat(ctx)
	timer := time.NewTimer(heartbeatPeriod/2 + rand.N(heartbeatPeriod/2))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			timer.Reset(heartbeatPeriod)
		case <-h.Connected:
		case <-ctx.Done():
			return nil
		}
		h.beat(ctx)
	}
}

func (h Heartbeats) beat(ctx context.Context) {
	// The state is observed even when nobody hears of it: it is also recorded for bosh-dns.
	b := h.collect(ctx)
	if !h.Bus.Connected() {
		return
	}
	if err := h.Bus.Publish(ctx, "hm", "heartbeat", b); err != nil {
		h.Log.WithError(err).Warn("heartbeat not sent")
	}
}

// collect never fails: half a heartbeat is better than an agent that is taken for dead.
func (h Heartbeats) collect(ctx context.Context) Heartbeat {
	b := Heartbeat{Vitals: struct{}{}}
	ctx, cancel := context.WithTimeout(ctx, vitalsPatience)
	defer cancel()
	vitals := action.Beside(func() (any, error) { return h.Vitals(ctx) })
	state, processes, ok := action.Observe(ctx, h.Jobs)
	b.JobState = state
	if ok {
		n := len(processes)
		b.Processes = &n
	}
	if spec, err := h.Jobs.Spec(); err != nil {
		h.Log.WithError(err).Warn("heartbeat without the applied spec")
	} else {
		b.Deployment, b.Job, b.Index, b.NodeID = spec.Deployment, spec.InstanceName(), spec.Index, spec.ID
	}
	select {
	case v := <-vitals:
		if v.Err != nil {
			h.Log.WithError(v.Err).Warn("heartbeat without vitals")
		} else {
			b.Vitals = v.Value
		}
	case <-ctx.Done():
		h.Log.Warn("heartbeat without vitals, which take too long")
	}
	return b
}
