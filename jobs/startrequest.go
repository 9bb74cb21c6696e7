package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"cambium/internal/atomicfile"
	"cambium/internal/vcap"
)

// StartRequest remembers the Director's last start until monit has it on disk. monit writes what is started and
// stopped only now and then: a power cut soon after a stop and a start leaves a file that says "stopped", and
// without this record the jobs would stay down for good. It lies beside monit's files and goes with the VM.
//
// The record counts for the whole instance and only until monit has shown the started state and written its
// file afterwards. From then on monit's own states count: a service that an operator stopped stays down.
type StartRequest struct{ Dirs vcap.Dirs }

type startRecord struct {
	Requested time.Time `json:"requested"`
	// Shown is the time at which monit first supervised every service after the request; zero until then.
	Shown time.Time `json:"shown"`
	// Pending is the stage of a start that a boot holds back for scripts; empty if it does not.
	Pending string `json:"pending,omitempty"`
}

// Record makes a start durable, and what it waits for.
func (r StartRequest) Record(now time.Time, pending string) error {
	return r.write(startRecord{Requested: now, Pending: pending})
}

// pend records a stage; the empty one ends the waiting. Without a request there is one from now on.
func (r StartRequest) pend(stage string, now time.Time) error {
	record, err := r.read()
	if err != nil || record.Requested.IsZero() {
		record = startRecord{Requested: now}
	}
	record.Pending = stage
	return r.write(record)
}

// forget takes it back: a stopped instance has its own marker.
func (r StartRequest) forget() error {
	if err := atomicfile.Remove(r.Dirs.StartRequested()); err != nil {
		return fmt.Errorf("start request: %w", err)
	}
	return nil
}

// shown notes that monit supervises every service. Only the first time after a request counts.
func (r StartRequest) shown(now time.Time) error {
	record, err := r.read()
	if err != nil || record.Requested.IsZero() || !record.Shown.IsZero() {
		return err
	}
	record.Shown = now
	return r.write(record)
}

// Due reports whether a monit that has just been started is to be asked again to start everything, given when
// its state file was last written before that. A record that cannot be read is due: starting what runs
// already changes nothing.
func (r StartRequest) Due(stateWritten time.Time) bool {
	record, err := r.read()
	if err != nil {
		return true
	}
	return startDue(record, stateWritten)
}

func startDue(record startRecord, stateWritten time.Time) bool {
	switch {
	case record.Requested.IsZero() || record.Pending != "":
		return false
	case record.Shown.IsZero():
		return true
	}
	return !stateWritten.After(record.Shown)
}

func (r StartRequest) read() (record startRecord, err error) {
	data, err := os.ReadFile(r.Dirs.StartRequested())
	if errors.Is(err, fs.ErrNotExist) {
		return startRecord{}, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &record)
	}
	if err != nil {
		return startRecord{}, fmt.Errorf("start request: %w", err)
	}
	return record, nil
}

func (r StartRequest) write(record startRecord) error {
	// Two times always encode.
	data, _ := json.Marshal(record)
	if err := os.MkdirAll(r.Dirs.Monit(), 0o755); err != nil {
		return fmt.Errorf("start request: %w", err)
	}
	return atomicfile.Write(r.Dirs.StartRequested(), data, 0o600)
}
