// Package status is the machine-readable account of what the agent is doing and why: the
// state, the verdict, every boot step with its times, waits and evidence, and the progress of
// long work. The agent writes it; `agent status` and others read it. It never holds a secret.
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

// State says how far the agent is.
type State string

// The states of an agent. Degraded means ready, with warnings or for too long without its bus. No agent
// writes NotRunning: Observe finds it.
const (
	Starting   State = "starting"
	Ready      State = "ready"
	Degraded   State = "degraded"
	Failed     State = "failed"
	NotRunning State = "not-running"
)

// Outcome says how a step ended, or that it has not.
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

// Step is one row of the boot's timeline. Start and End are nanoseconds of the monotonic clock
// since the agent's process began, so that spans can be laid side by side.
type Step struct {
	Name     string   `json:"name"`
	Outcome  Outcome  `json:"outcome"`
	Start    int64    `json:"start_ns,omitempty"`
	End      int64    `json:"end_ns,omitempty"`
	Waiting  string   `json:"waiting_for,omitempty"`
	Waits    []Wait   `json:"waits,omitempty"`
	Evidence []string `json:"evidence,omitempty"`
	// Changes lists what the step changed on the machine, in the words of `agent plan`.
	Changes []string `json:"changes,omitempty"`
	Error   string   `json:"error,omitempty"`
	// Advice tells an operator what to do about a step that failed, or has not ended yet.
	Advice     string `json:"advice,omitempty"`
	Background bool   `json:"background,omitempty"`
	Parts      []Part `json:"parts,omitempty"`
}

// Took is the length of the step, or 0 while it runs.
func (s Step) Took() time.Duration {
	if s.End == 0 {
		return 0
	}
	return time.Duration(s.End - s.Start)
}

// Wait is a period of a step in which it waited for something.
type Wait struct {
	For   string `json:"for"`
	Start int64  `json:"start_ns"`
	End   int64  `json:"end_ns"`
}

// Settings says where the settings in force came from.
type Settings struct {
	From   string `json:"from"`
	Cached bool   `json:"cached"`
	// Why the sources did not serve, when Cached.
	Why string `json:"why,omitempty"`
}

// Progress is the progress of long work. Done and Total are bytes, Rate is bytes per second, and
// Remaining the time in seconds that it will take at that rate.
type Progress struct {
	Text      string    `json:"text"`
	Done      int64     `json:"done"`
	Total     int64     `json:"total,omitempty"`
	Files     int64     `json:"files,omitempty"`
	Rate      int64     `json:"rate,omitempty"`
	Remaining int64     `json:"remaining,omitempty"`
	Updated   time.Time `json:"updated"`
}

// Run is an earlier process of the agent in the same boot of the machine.
type Run struct {
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	State   State     `json:"state"`
	Verdict string    `json:"verdict,omitempty"`
	// Steps are kept of the last of them only.
	Steps []Step `json:"steps,omitempty"`
}

// End describes the end of a process.
type End struct {
	How string    `json:"how"` // such as "watchdog, killed by ABRT"
	At  time.Time `json:"at"`
}

// Reboot describes a reboot of the machine.
type Reboot struct {
	// Cause says when and why, as far as it is known.
	Cause string `json:"cause"`
	// Back says which disks and jobs came back; empty until they had their time to start, and operators know.
	Back string `json:"back,omitempty"`
}

// Account returns all that is known of the reboot.
func (r Reboot) Account() string {
	if r.Back == "" {
		return r.Cause
	}
	return r.Cause + "; " + r.Back
}

// Document is the content of the file.
type Document struct {
	Version int    `json:"version"`
	Agent   string `json:"agent"` // its version
	// Supervisor names the supervisor of the jobs' processes: monit, dummy or dummy-nats.
	Supervisor string `json:"supervisor,omitempty"`
	AgentID    string `json:"agent_id,omitempty"`
	BootID     string `json:"boot_id,omitempty"`
	PID        int    `json:"pid"`
	State      State  `json:"state"`
	// Verdict says why the boot failed or, while it is retried, why the last try failed.
	Verdict string `json:"verdict,omitempty"`
	// VerdictNS is the time at which the verdict was given or, by a step that still waits, repeated, on the clock of
	// Step.
	VerdictNS int64 `json:"verdict_ns,omitempty"`
	// Try counts the runs of the boot table by this process. NextTry is the latest time of the next one; other disks or
	// links, or a request, bring it forward.
	Try     int        `json:"try,omitempty"`
	NextTry *time.Time `json:"next_try,omitempty"`
	Started time.Time  `json:"started"`
	// Stopped is the time at which a process that does not run any more ended, or was last seen. LastState is the state
	// that it was in.
	Stopped   *time.Time `json:"stopped,omitempty"`
	LastState State      `json:"last_state,omitempty"`
	// Halted means that the process exists but does not run, because a signal stopped it. Ended describes an end that
	// was not on purpose, of the process before this one or of one that does not run any more. Restarts counts how
	// often systemd has started the agent again. No agent writes these.
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
	// Problems lists faults that `agent status` sees on the machine outside the agent, such as a full disk. No agent
	// writes them.
	Problems []string `json:"problems,omitempty"`
	// Unmounted is the CID of the persistent disk that unmount_disk took off and that is neither mounted again nor removed.
	Unmounted string `json:"unmounted_disk,omitempty"`
	// Down says how, and by whom, the machine was asked to go down while the agent ran.
	Down string `json:"down,omitempty"`
	// Reboot is the one before this boot; nil at the machine's first.
	Reboot   *Reboot             `json:"reboot,omitempty"`
	Steps    []Step              `json:"steps"`
	Progress map[string]Progress `json:"progress,omitempty"`
	Earlier  []Run               `json:"earlier,omitempty"`
	Origin   *Origin             `json:"origin,omitempty"`
	Marks    []Mark              `json:"marks,omitempty"`
	Tries    []Try               `json:"tries,omitempty"`
}

// Served reports that the boot has ended well, so that requests are served.
func (d Document) Served() bool { return d.State == Ready || d.State == Degraded }

// Retried reports that the boot has failed and goes on: a step still waits, or there will be another try.
func (d Document) Retried() bool { return d.State == Failed && (len(d.Steps) > 0 || d.NextTry != nil) }

// SameVerdict reports that the verdict of this document is that of an earlier one.
func (d Document) SameVerdict(earlier Document) bool {
	return d.PID == earlier.PID && d.Try == earlier.Try && d.VerdictNS == earlier.VerdictNS
}

// JobsWithheld is the topic of the warning that says why a machine serves without its jobs.
const JobsWithheld = "no job is started"

// ScriptsOnBoot is the topic of the warning that names scripts which failed after a boot of the machine.
const ScriptsOnBoot = "scripts after the boot"

// DuplicateAddress is the topic of the warning that names an address which another machine uses, too.
const DuplicateAddress = "duplicate address"

// PortTaken is the topic of the warning that names the process which has monit's port.
const PortTaken = "monit's port is taken"

// SmallerThanDisk ends the topics of the warnings about file systems that do not use their disks, after their directories.
const SmallerThanDisk = " is smaller than its disk"

// SmallerThanDisk returns the directories of the file systems that do not use their disks.
func (d *Document) SmallerThanDisk() (dirs []string) {
	for _, w := range d.Warnings {
		if dir, _, about := strings.Cut(w, SmallerThanDisk+": "); about {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// Warning is the one about a topic; empty if there is none, or no document.
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

// JobsWithheld returns the reason why no job is started; empty if jobs are, or if there is no document.
func (d *Document) JobsWithheld() string { return d.Warning(JobsWithheld) }

// updateState sets ready or degraded from the warnings and the bus.
func (d *Document) updateState() {
	if !d.Served() {
		return
	}
	d.State = Ready
	if len(d.Warnings) > 0 || d.Bus != nil && d.Bus.Overdue {
		d.State = Degraded
	}
}

// AddFindings adds what is wrong with the machine besides the agent. With a problem, an agent that serves is degraded.
func (d *Document) AddFindings(problems, warnings []string) {
	d.Problems = append(d.Problems, problems...)
	d.Warnings = append(d.Warnings, warnings...)
	if d.Served() && len(problems) > 0 {
		d.State = Degraded
	}
}

// Changes returns the number of changes that the steps of the boot have made.
func (d Document) Changes() (n int) {
	for _, s := range d.Steps {
		n += len(s.Changes)
	}
	return n
}

// earlierKept bounds the history of a crash loop.
const earlierKept = 10

// Recorder owns the file. Its methods may be called from any goroutine.
type Recorder struct {
	path  string
	began time.Time
	alive *alive

	mu      sync.Mutex // guards what follows, and the file
	doc     Document
	written time.Time   // when the file was replaced last
	state   State       // what it says
	pending *time.Timer // writes the file; nil if it is up to date
}

// writeInterval is the minimum time between two writes of the file, unless the state has changed: a
// boot changes the document a hundred times in as many milliseconds.
const writeInterval = 20 * time.Millisecond

// Open starts a new account at path. What an earlier process of the same boot left there is
// summed up in Earlier; anything unreadable is ignored, since it is only history.
func Open(path, version string) (*Recorder, error) {
	r := &Recorder{path: path, began: time.Now()}
	r.doc = Document{Version: 1, Agent: version, BootID: bootID(), PID: os.Getpid(), State: Starting,
		Started: r.began.UTC(), Steps: []Step{}, Origin: origin()}
	if old, err := Read(path); err == nil && old.BootID == r.doc.BootID {
		if n := len(old.Earlier); n > 0 {
			old.Earlier[n-1].Steps = nil
		}
		r.doc.Reboot = old.Reboot
		r.doc.Earlier = append(old.Earlier, Run{PID: old.PID, Started: old.Started, State: old.State, Verdict: old.Verdict, Steps: old.Steps})
		if extra := len(r.doc.Earlier) - earlierKept; extra > 0 {
			r.doc.Earlier = r.doc.Earlier[extra:]
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	var err error
	if r.alive, err = openAlive(path); err != nil {
		return nil, err
	}
	return r, r.Update(func(*Document) {})
}

// Alive records that the agent still runs, for Observe.
func (r *Recorder) Alive() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.alive.touch(time.Now())
}

// Close releases the file, for another Recorder of this process.
func (r *Recorder) Close() error { return errors.Join(r.Flush(), r.alive.file.Close()) }

// Stop records that the process ends now, on purpose.
func (r *Recorder) Stop() error {
	now := time.Now().UTC()
	return errors.Join(r.Update(func(d *Document) { d.Stopped = &now }), r.Flush())
}

// Now is the monotonic time since the account began, as used in Step.
func (r *Recorder) Now() int64 { return r.At(time.Now()) }

// At is a time of this process as used in Step.
func (r *Recorder) At(t time.Time) int64 { return int64(t.Sub(r.began)) }

// Update changes the document and replaces the file: at once when the state has changed, else within writeInterval. Whether the agent is ready or
// degraded follows from the rest of the document. If the file cannot be written, Update returns an error, and the document in memory is
// changed all the same.
func (r *Recorder) Update(change func(*Document)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.doc)
	r.doc.updateState()
	if wait := writeInterval - time.Since(r.written); wait > 0 && r.doc.State == r.state {
		if r.pending == nil {
			r.pending = time.AfterFunc(wait, func() { _ = r.Flush() }) // the next change says so again
		}
		return nil
	}
	return r.write()
}

// Flush replaces the file if it is not up to date.
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

// SetProgress records the progress of long work; an empty text removes it.
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

// SetWarning records the one warning about a topic; an empty text removes it. It reports whether that is news.
func (r *Recorder) SetWarning(topic, text string) (changed bool, err error) {
	about := topic + ": "
	var wanted []string
	if text != "" {
		wanted = []string{about + text}
	}
	r.mu.Lock()
	others := slices.DeleteFunc(slices.Clone(r.doc.Warnings), func(w string) bool { return strings.HasPrefix(w, about) })
	changed = !slices.Equal(r.doc.Warnings, append(others, wanted...))
	r.mu.Unlock()
	if !changed {
		return false, nil
	}
	return true, r.Update(func(d *Document) {
		d.Warnings = append(slices.DeleteFunc(slices.Clone(d.Warnings), func(w string) bool { return strings.HasPrefix(w, about) }), wanted...)
	})
}

// Snapshot is a copy of the document as it is now.
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

// ErrNone means that no agent has written a status in this boot.
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

// bootID tells one boot of the machine from the next. A container shares its host's id, so the
// id of its first process is added: its start time in clock ticks.
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
