// Package status defines the status document, which describes what the agent is doing and why: its state, the verdict,
// each boot step with its times, waits and evidence, and the progress of long operations. The agent writes it; `agent
// status` and others read it. It contains no secrets.
package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"cambium/internal/atomicfile"
)

// State is the state of the agent.
type State string

// The states of an agent. Degraded means ready, but with warnings or without its bus for too long. No agent writes
// NotRunning; Observe sets it.
const (
	Starting   State = "starting"
	Ready      State = "ready"
	Degraded   State = "degraded"
	Failed     State = "failed"
	NotRunning State = "not-running"
)

// Outcome is the result of a step so far.
type Outcome string

// The outcomes of a step.
const (
	Pending  Outcome = "pending"
	Running  Outcome = "running"
	Done     Outcome = "done"
	Skipped  Outcome = "skipped"
	Warned   Outcome = "warned"
	Broken   Outcome = "failed"
	Canceled Outcome = "canceled"
)

// Step is a step of the boot. Start and End are nanoseconds of the monotonic clock since the start of the agent's
// process.
type Step struct {
	Name     string   `json:"name"`
	Outcome  Outcome  `json:"outcome"`
	Start    int64    `json:"start_ns,omitempty"`
	End      int64    `json:"end_ns,omitempty"`
	Waiting  string   `json:"waiting_for,omitempty"`
	Waits    []Wait   `json:"waits,omitempty"`
	Evidence []string `json:"evidence,omitempty"`
	// Changes lists the changes that the step made to the machine, as `agent plan` prints them.
	Changes []string `json:"changes,omitempty"`
	Error   string   `json:"error,omitempty"`
	// Advice says what an operator can do about a step that failed or has not ended.
	Advice     string `json:"advice,omitempty"`
	Background bool   `json:"background,omitempty"`
	Parts      []Part `json:"parts,omitempty"`
}

// Took returns the duration of the step, or 0 while it runs.
func (s Step) Took() time.Duration {
	if s.End == 0 {
		return 0
	}
	return time.Duration(s.End - s.Start)
}

// Wait is a period in which a step waited for something.
type Wait struct {
	For   string `json:"for"`
	Start int64  `json:"start_ns"`
	End   int64  `json:"end_ns"`
}

// Settings describes the origin of the settings in force.
type Settings struct {
	From   string `json:"from"`
	Cached bool   `json:"cached"`
	// The reason why the sources did not deliver them, if Cached is set.
	Why string `json:"why,omitempty"`
}

// Progress is the progress of a long operation. Done and Total are in bytes, Rate in bytes per second, and Remaining is
// the estimated time in seconds.
type Progress struct {
	Text      string    `json:"text"`
	Done      int64     `json:"done"`
	Total     int64     `json:"total,omitempty"`
	Files     int64     `json:"files,omitempty"`
	Rate      int64     `json:"rate,omitempty"`
	Remaining int64     `json:"remaining,omitempty"`
	Updated   time.Time `json:"updated"`
}

// Run is an earlier process of the agent since the machine's boot.
type Run struct {
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	State   State     `json:"state"`
	Verdict string    `json:"verdict,omitempty"`
	// Steps is kept only for the last of them.
	Steps []Step `json:"steps,omitempty"`
}

// End describes the end of a process.
type End struct {
	How string    `json:"how"` // such as "watchdog, killed by ABRT"
	At  time.Time `json:"at"`
}

// Reboot describes a reboot of the machine.
type Reboot struct {
	// Cause says when and why the machine rebooted, as far as it is known.
	Cause string `json:"cause"`
	// Back lists the disks and jobs that came back. It is empty until they have had time to start and the alert was
	// sent.
	Back string `json:"back,omitempty"`
}

// Summary returns Cause and Back as one text.
func (r Reboot) Summary() string {
	if r.Back == "" {
		return r.Cause
	}
	return r.Cause + "; " + r.Back
}

// Document is the content of the status file.
type Document struct {
	Version int    `json:"version"`
	Agent   string `json:"agent"` // version of the agent
	// Supervisor is the supervisor of the jobs: monit, systemd, dummy or dummy-nats.
	Supervisor string `json:"supervisor,omitempty"`
	AgentID    string `json:"agent_id,omitempty"`
	BootID     string `json:"boot_id,omitempty"`
	PID        int    `json:"pid"`
	State      State  `json:"state"`
	// Verdict is the reason why the boot failed or, while it is retried, why the last try failed.
	Verdict string `json:"verdict,omitempty"`
	// VerdictNS is the time at which the verdict was given or, by a step that still waits, repeated, on the same clock
	// as Step.
	VerdictNS int64 `json:"verdict_ns,omitempty"`
	// Try is the number of times that this process has run the boot table. NextTry is when it will run again at the
	// latest; a request, or a change of disks or links, may start it earlier.
	Try     int        `json:"try,omitempty"`
	NextTry *time.Time `json:"next_try,omitempty"`
	Started time.Time  `json:"started"`
	// Stopped is the time at which the process ended, or was last seen running. LastState is its state at that time.
	Stopped   *time.Time `json:"stopped,omitempty"`
	LastState State      `json:"last_state,omitempty"`
	// Halted means that a signal has stopped the process, which still exists. Ended describes how the last process
	// ended, unless it ended on purpose. Restarts is the number of automatic restarts by systemd. These are set by
	// readers, and not by the agent.
	Halted   bool `json:"halted,omitempty"`
	Ended    *End `json:"ended,omitempty"`
	Restarts int  `json:"restarts,omitempty"`
	// LogLevel is info or debug.
	LogLevel  string    `json:"log_level,omitempty"`
	ReadyNS   int64     `json:"ready_ns,omitempty"`
	First     bool      `json:"first_bootstrap,omitempty"`
	Unchanged bool      `json:"unchanged,omitempty"`
	Bus       *Bus      `json:"bus,omitempty"`
	Settings  *Settings `json:"settings,omitempty"`
	Warnings  []string  `json:"warnings,omitempty"`
	// Problems lists problems of the machine that `agent status` finds, such as a full disk. They are set by readers,
	// and not by the agent.
	Problems []string `json:"problems,omitempty"`
	// Unmounted is the CID of the persistent disk that unmount_disk has unmounted, until it is mounted again or
	// removed.
	Unmounted string `json:"unmounted_disk,omitempty"`
	// Down says how, and at whose request, the machine was going down while the agent ran.
	Down string `json:"down,omitempty"`
	// Reboot describes the reboot before this boot; nil on the machine's first boot.
	Reboot   *Reboot             `json:"reboot,omitempty"`
	Steps    []Step              `json:"steps"`
	Progress map[string]Progress `json:"progress,omitempty"`
	Earlier  []Run               `json:"earlier,omitempty"`
	Origin   *Origin             `json:"origin,omitempty"`
	Marks    []Mark              `json:"marks,omitempty"`
	Tries    []Try               `json:"tries,omitempty"`
}

// Serving reports whether the boot has succeeded, so that requests are served.
func (d Document) Serving() bool { return d.State == Ready || d.State == Degraded }

// Retrying reports whether the boot has failed but continues: a step still waits, or there will be another try.
func (d Document) Retrying() bool { return d.State == Failed && (len(d.Steps) > 0 || d.NextTry != nil) }

// SameVerdict reports whether the verdict is the same as that of an earlier document.
func (d Document) SameVerdict(earlier Document) bool {
	return d.PID == earlier.PID && d.Try == earlier.Try && d.VerdictNS == earlier.VerdictNS
}

// JobsWithheld is the topic of the warning that no job is started, and why.
const JobsWithheld = "no job is started"

// ScriptsOnBoot is the topic of the warning about scripts that failed after a reboot.
const ScriptsOnBoot = "scripts after the boot"

// DuplicateAddress is the topic of the warning about an address that another machine also uses.
const DuplicateAddress = "duplicate address"

// PortTaken is the topic of the warning about a process that has taken monit's port.
const PortTaken = "monit's port is taken"

// SmallerThanDisk is the suffix of the topics of warnings about file systems that do not fill their disks. The prefix
// is the directory.
const SmallerThanDisk = " is smaller than its disk"

// SmallerThanDisk returns the directories of file systems that do not fill their disks.
func (d *Document) SmallerThanDisk() (dirs []string) {
	for _, w := range d.Warnings {
		if dir, _, about := strings.Cut(w, SmallerThanDisk+": "); about {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// Warning returns the warning about a topic, or "". d may be nil.
func (d *Document) Warning(topic string) string {
	if d == nil {
		return ""
	}
	for _, w := range d.Warnings {
		if text, about := strings.CutPrefix(w, topic+": "); about {
			return text
		}
	}
	return ""
}

// JobsWithheld returns the reason why no job is started, or "". d may be nil.
func (d *Document) JobsWithheld() string { return d.Warning(JobsWithheld) }

// updateState sets the state of a serving agent to ready or degraded, depending on the warnings and the bus.
func (d *Document) updateState() {
	if !d.Serving() {
		return
	}
	d.State = Ready
	if len(d.Warnings) > 0 || d.Bus != nil && d.Bus.Overdue {
		d.State = Degraded
	}
}

// AddFindings adds problems and warnings of the machine. A serving agent with a problem is degraded.
func (d *Document) AddFindings(problems, warnings []string) {
	d.Problems = append(d.Problems, problems...)
	d.Warnings = append(d.Warnings, warnings...)
	if d.Serving() && len(problems) > 0 {
		d.State = Degraded
	}
}

// Changes returns the number of changes made by the steps of the boot.
func (d Document) Changes() (n int) {
	for _, s := range d.Steps {
		n += len(s.Changes)
	}
	return n
}

// earlierKept bounds the number of earlier processes, for a crash loop.
const earlierKept = 10

// Recorder writes the status file. Its methods may be called from any goroutine.
type Recorder struct {
	path  string
	began time.Time

	mu      sync.Mutex // guards the fields below, and the file
	doc     Document
	written time.Time   // when the file was last replaced
	state   State       // the state in the file
	pending *time.Timer // will write the file; nil if the file is up to date
}

// writeInterval is the minimum time between two writes, unless the state has changed. A boot changes the document a
// hundred times in as many milliseconds.
const writeInterval = 20 * time.Millisecond

// Open starts a new document at path. It keeps a summary of an earlier process of the same boot in Earlier, and ignores
// a file that it cannot read, since that is only history.
func Open(path, version string) (*Recorder, error) {
	r := &Recorder{path: path, began: time.Now()}
	r.doc = Document{Version: 1, Agent: version, BootID: bootID(), PID: os.Getpid(), State: Starting,
		Started: r.began.UTC(), Steps: []Step{}, Origin: origin()}
	if old, err := Read(path); err == nil && old.BootID == r.doc.BootID {
		if n := len(old.Earlier); n > 0 {
			old.Earlier[n-1].Steps = nil
		}
		r.doc.Reboot = old.Reboot
		r.doc.Earlier = append(old.Earlier,
			Run{PID: old.PID, Started: old.Started, State: old.State, Verdict: old.Verdict, Steps: old.Steps})
		if extra := len(r.doc.Earlier) - earlierKept; extra > 0 {
			r.doc.Earlier = r.doc.Earlier[extra:]
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	return r, r.Update(func(*Document) {})
}

// Alive touches the file, because its modification time tells when the agent was last seen running.
func (r *Recorder) Alive() error { return os.Chtimes(r.path, time.Time{}, time.Now()) }

// Stop records that the process ends on purpose.
func (r *Recorder) Stop() error {
	now := time.Now().UTC()
	return errors.Join(r.Update(func(d *Document) { d.Stopped = &now }), r.Flush())
}

// Now returns the monotonic time since the start of the process, as used in Step.
func (r *Recorder) Now() int64 { return r.At(time.Now()) }

// At converts a time of this process to that clock.
func (r *Recorder) At(t time.Time) int64 { return int64(t.Sub(r.began)) }

// Update changes the document and writes the file: at once if the state has changed, and within writeInterval if not.
// It sets the state of a serving agent. If the file cannot be written, it returns an error, but keeps the change in
// memory.
func (r *Recorder) Update(change func(*Document)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.doc)
	return r.changed()
}

// changed writes the document that has changed. The caller holds mu.
func (r *Recorder) changed() error {
	r.doc.updateState()
	if wait := writeInterval - time.Since(r.written); wait > 0 && r.doc.State == r.state {
		if r.pending == nil {
			r.pending = time.AfterFunc(wait, func() { _ = r.Flush() }) // the next change says so again
		}
		return nil
	}
	return r.write()
}

// Flush writes the file if it is not up to date.
func (r *Recorder) Flush() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending == nil {
		return nil
	}
	return r.write()
}

func (r *Recorder) write() error {
	if r.pending != nil {
		r.pending.Stop()
		r.pending = nil
	}
	data, err := json.Marshal(r.doc) // a boot writes it often; agent status --json is for people
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	r.written, r.state = time.Now(), r.doc.State
	// Readable by all: it holds no secret, and jobs' health checks may look at it.
	return atomicfile.Write(r.path, append(data, '\n'), 0o644, atomicfile.Volatile())
}

// SetProgress records the progress of a long operation. An empty text removes it.
func (r *Recorder) SetProgress(name string, p Progress) error {
	p.Updated = time.Now().UTC()
	return r.Update(func(d *Document) {
		if p.Text == "" {
			delete(d.Progress, name)
			return
		}
		if d.Progress == nil {
			d.Progress = map[string]Progress{}
		}
		d.Progress[name] = p
	})
}

// SetWarning sets the warning about a topic. An empty text removes it. It reports whether the warning has changed.
func (r *Recorder) SetWarning(topic, text string) (changed bool, err error) {
	about := topic + ": "
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.doc.Warning(topic) == text {
		return false, nil
	}
	r.doc.Warnings = slices.DeleteFunc(r.doc.Warnings, func(w string) bool { return strings.HasPrefix(w, about) })
	if text != "" {
		r.doc.Warnings = append(r.doc.Warnings, about+text)
	}
	return true, r.changed()
}

// Snapshot returns a copy of the document.
func (r *Recorder) Snapshot() Document {
	r.mu.Lock()
	defer r.mu.Unlock()
	data, err := json.Marshal(r.doc) // a boot writes it often; agent status --json is for people
	if err != nil {
		return Document{}
	}
	var copied Document
	if err := json.Unmarshal(data, &copied); err != nil {
		return Document{}
	}
	return copied
}

// ErrNone means that no agent has written a status since the machine's boot.
var ErrNone = errors.New("no status: the agent has not started in this boot")

// Read returns the document at path.
func Read(path string) (Document, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Document{}, ErrNone
	}
	if err != nil {
		return Document{}, fmt.Errorf("status: %w", err)
	}
	var d Document
	if err := json.Unmarshal(data, &d); err != nil {
		return Document{}, fmt.Errorf("status: %s: %w", path, err)
	}
	return d, nil
}

// bootID identifies the machine's boot. Containers share the host's id, so the start time of the container's first
// process (in clock ticks) is part of it.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	started := ""
	if _, ticks, ok := processStat("1"); ok {
		started = fmt.Sprintf("-%d", ticks)
	}
	return strings.TrimSpace(string(id)) + started
}
