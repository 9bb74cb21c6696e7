package trial

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"cambium/internal/atomicfile"
	"cambium/internal/status"
)

// State is the state of a trial.
type State string

// The states, in their usual order.
const (
	none      State = "none"
	scheduled State = "scheduled"
	running   State = "running"
	confirmed State = "confirmed" // until the next reboot
	kept      State = "kept"
	failed    State = "failed" // the stemcell's agent runs again
	ended     State = "ended"  // by `back` or a reboot: the stemcell's agent runs again
)

// Record is the outcome of the last operation, for scripts.
type Record struct {
	State State `json:"state"`
	// Reason is a sentence, empty after success.
	Reason string `json:"reason,omitempty"`
	// Agent and Before are the versions of this agent and of the stemcell's.
	Agent  string    `json:"agent,omitempty"`
	Before string    `json:"before,omitempty"`
	Time   time.Time `json:"time,omitzero"`
	// After is the pid of the command that has started the trial in the background, such as the errand's. The command
	// returns when it finds its pid here, and the background process waits until it has ended.
	After int `json:"after,omitempty"`
}

func (r Record) String() string {
	text := string(r.State)
	if r.Agent != "" {
		text += fmt.Sprintf(": Cambium %s in place of %s, %s", r.Agent, r.Before, r.Time.Format(time.RFC3339))
	}
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	return text
}

func readRecord(path string) (r Record, err error) {
	r.State = none
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func (r Record) write(path string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(data, '\n'), 0o644)
}

// settle corrects a record from before a reboot. busy means that an operation is running, and mounted that this agent
// is mounted over the stemcell's.
func settle(r Record, busy, mounted bool) Record {
	switch r.State {
	case scheduled, running:
		if !busy && mounted {
			r.State, r.Reason = failed, "the trial's process was ended; run back, or reboot"
		} else if !busy {
			r.State, r.Reason = ended, "a reboot has ended the trial before its outcome; the stemcell's agent runs"
		}
	case confirmed:
		if !mounted && !busy {
			r.State, r.Reason = ended, "a reboot has brought the stemcell's agent back"
		}
	}
	return r
}

// facts describes the machine before an operation.
type facts struct {
	record        Record
	busy, mounted bool
	// swapped is set after `keep`: the stemcell's agent lies beside this one.
	swapped bool
	// served is set while this agent runs and answers.
	served bool
	// binary is the reason why the binary cannot be tried, or nil.
	binary error
	// systemd is systemd's version, or 0 if another init runs.
	systemd int
	missing []string // features of the kernel without which a boot fails
	tasks   []string // methods of tasks that run
	// migrating is set while a store is copied to another persistent disk.
	migrating bool
	// free compares the free bytes of file systems with those that an operation needs.
	free []space
}

type space struct {
	dir        string
	free, need uint64
}

// minSystemd is the version of the oldest line of stemcells.
const minSystemd = 249

// refusal returns the reason why an operation must not begin, or nil.
func refusal(operation string, f facts) error {
	switch {
	case f.busy:
		return errors.New("a trial, or its end, is under way; status shows its outcome")
	case operation == back && !f.mounted && !f.swapped:
		return errors.New("there is nothing to go back from: this VM runs its stemcell's agent; run try first")
	case operation == keep && f.swapped && !f.mounted:
		return errors.New("this agent is kept already")
	case operation == keep && (!f.mounted || f.record.State != confirmed):
		return errors.New("no trial has confirmed this agent since the last boot; run try first")
	case operation == keep && !f.served:
		return errors.New("this agent does not serve now; look at 'agent status', or run back")
	case operation == try && (f.mounted || f.swapped || f.served):
		return errors.New("this agent runs here already; run back first")
	}
	if operation == try {
		if err := unfit(f); err != nil {
			return err
		}
	}
	switch {
	case len(f.tasks) > 0:
		return fmt.Errorf("the agent works on %s; try again after it", strings.Join(f.tasks, ", "))
	case f.migrating:
		return errors.New("a persistent disk is being migrated; try again after it")
	}
	return nil
}

// unfit returns the reason why this agent cannot work on the machine, or nil.
func unfit(f facts) error {
	if f.binary != nil {
		return f.binary
	}
	if f.systemd > 0 && f.systemd < minSystemd {
		return fmt.Errorf("systemd %d is too old; %d or newer is needed", f.systemd, minSystemd)
	}
	if len(f.missing) > 0 {
		return fmt.Errorf("the kernel lacks %s; Linux 5.8 or newer is needed", strings.Join(f.missing, ", "))
	}
	for _, s := range f.free {
		if s.free < s.need {
			return fmt.Errorf("%s has %d MiB free, and %d are needed; make room first", s.dir, s.free>>20, s.need>>20)
		}
	}
	return nil
}

// sight describes the new agent as observed.
type sight struct {
	since time.Duration // since the restart
	pid   int
	ends  int  // exits so far
	ours  bool // the process runs this agent
	// doc is the status document of this process; nil until it has written one.
	doc *status.Document
}

// maxEnds bounds the exits of the new agent during a trial.
const maxEnds = 3

// judge decides whether the trial is over. reason is empty if the agent has passed.
func judge(s sight, limit time.Duration) (over bool, reason string) {
	switch {
	case s.ends > maxEnds:
		return true, fmt.Sprintf("the new agent has ended %d times%s", s.ends, verdict(s.doc))
	case s.proven():
		return true, ""
	case s.since < limit:
		return false, ""
	}
	within := fmt.Sprintf("within %s the new agent ", limit)
	switch {
	case s.pid == 0 || !s.ours:
		return true, within + "did not run"
	case s.doc == nil:
		return true, within + "reported nothing: it hangs"
	case !s.doc.Serving():
		return true, within + "was not ready" + verdict(s.doc)
	case !s.doc.Bus.Reachable():
		return true, within + "was ready, but did not reach the bus: " + s.doc.Bus.String()
	}
	return true, within + "got no confirmation of a heartbeat from the Director's server"
}

// proven reports whether the agent is ready and the NATS server has confirmed a heartbeat. The HTTPS bus of create-env
// has no heartbeats.
func (s sight) proven() bool {
	return s.ours && s.doc != nil && s.doc.Serving() && s.doc.Bus != nil &&
		(s.doc.Bus.State == status.BusListening || s.doc.Marked(status.MarkHeartbeat))
}

func verdict(d *status.Document) string {
	if d == nil || d.Verdict == "" {
		return ""
	}
	return ": " + d.Verdict
}
