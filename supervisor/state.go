package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"cambium/internal/atomicfile"
)

// state is the document that survives a restart.
type state struct {
	Version  int                      `json:"version"`
	Services map[string]*serviceState `json:"services"`
	// Mails holds the undelivered alerts.
	Mails []Mail `json:"mails,omitempty"`
}

type serviceState struct {
	Monitored bool `json:"monitored"`
	Starts    int  `json:"starts,omitempty"`
	Cycles    int  `json:"cycles,omitempty"`
	Restarts  int  `json:"restarts,omitempty"`
}

const stateVersion = 1

// readState reads the document. A damaged one is set aside: running jobs matter more than the memory of which were
// stopped, and the Director starts and stops them anyway.
func (s *Supervisor) readState() (state, error) {
	empty := state{Version: stateVersion}
	text, err := os.ReadFile(s.StateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return empty, nil
	}
	if err != nil {
		return empty, fmt.Errorf("supervisor state: %w", err)
	}
	var read state
	if err := json.Unmarshal(text, &read); err != nil || read.Version != stateVersion {
		aside := s.StateFile + ".damaged"
		s.Log.WithError(err).WithField("kept",
			aside).Error("the supervisor's state is damaged and was set aside; all services are supervised")
		if err := os.Rename(s.StateFile, aside); err != nil {
			return empty, fmt.Errorf("supervisor state: %w", err)
		}
		return empty, nil
	}
	return read, nil
}

// WriteState writes the document for a supervisor that takes over from monit. monitored says which services are
// supervised.
func WriteState(path string, monitored map[string]bool) error {
	doc := state{Version: stateVersion, Services: map[string]*serviceState{}}
	for name, on := range monitored {
		doc.Services[name] = &serviceState{Monitored: on}
	}
	text, err := json.Marshal(doc)
	if err == nil {
		err = atomicfile.Write(path, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("supervisor state: %w", err)
	}
	return nil
}

// state returns the current document.
func (s *Supervisor) state() state {
	doc := state{Version: stateVersion, Services: map[string]*serviceState{}, Mails: s.alerts.pending()}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.services {
		doc.Services[v.Name] = &serviceState{v.monitor != Off, v.starts, v.cycles, v.restarts}
	}
	return doc
}

// saveState writes the document if it has changed.
func (s *Supervisor) saveState() {
	s.saving.Lock()
	defer s.saving.Unlock()
	text, err := json.Marshal(s.state())
	if err == nil && !bytes.Equal(text, s.saved) {
		if err = atomicfile.Write(s.StateFile, text, 0o600); err == nil {
			s.saved = text
		}
	}
	if err != nil {
		s.Log.WithError(err).
			Error("cannot write the supervisor's state; a restart may start services that were stopped")
	}
}
