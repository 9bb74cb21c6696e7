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

// StartRequest records the Director's last start until monit has saved its state. monit writes its state file only now
// and then. After a power cut soon after a stop and a start, the file would still say "stopped", and the jobs would
// stay down for good. The record is beside monit's files, on the VM's disk.
//
// It counts for the whole instance, until monit has supervised all services and then saved its state. After that only
// monit's state counts: a service that an operator has stopped stays stopped.
type StartRequest struct{ Dirs vcap.Dirs }

type startRecord struct {
	Requested time.Time `json:"requested"`
	// Shown is the time at which monit first supervised all services after the request, or zero.
	Shown time.Time `json:"shown"`
	// Pending is the stage of a start that waits for scripts after a boot, or "".
	Pending string `json:"pending,omitempty"`
}

// Record records a start, and the stage for which it waits.
func (r StartRequest) Record(now time.Time, pending string) error {
	return r.write(startRecord{Requested: now, Pending: pending})
}

// setPending records a stage; "" ends the wait. If there is no request, it records one at now.
func (r StartRequest) setPending(stage string, now time.Time) error {
	record, err := r.read()
	if err != nil || record.Requested.IsZero() {
		record = startRecord{Requested: now}
	}
	record.Pending = stage
	return r.write(record)
}

// forget removes the record. A stopped instance has a marker of its own.
func (r StartRequest) forget() error {
	if err := atomicfile.Remove(r.Dirs.StartRequested()); err != nil {
		return fmt.Errorf("start request: %w", err)
	}
	return nil
}

// shown records that monit supervises all services. Only the first call after a request has an effect.
func (r StartRequest) shown(now time.Time) error {
	record, err := r.read()
	if err != nil || record.Requested.IsZero() || !record.Shown.IsZero() {
		return err
	}
	record.Shown = now
	return r.write(record)
}

// Due reports whether everything must be started again, after monit was started. stateWritten is when monit's state
// file was last written before. If the record cannot be read, Due returns true: starting a running service changes
// nothing.
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
