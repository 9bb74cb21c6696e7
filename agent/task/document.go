package task

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"cambium/internal/atomicfile"
)

// document is what survives a restart: the ended tasks in order of their end, then the running ones in order of their
// start. It never holds a task's arguments.
type document struct {
	Tasks []entry `json:"tasks"`
}

type entry struct {
	ID      string          `json:"id"`
	Method  string          `json:"method"`
	Started time.Time       `json:"started"`
	Note    json.RawMessage `json:"note,omitempty"`
	Ended   time.Time       `json:"ended,omitzero"`
	Value   json.RawMessage `json:"value,omitempty"`
	Failed  bool            `json:"failed,omitempty"`
	Error   string          `json:"error,omitempty"`
}

func (e entry) weight() int { return len(e.Value) + len(e.Error) }

var errDamaged = errors.New("the record of tasks is damaged")

// read returns the entries of the document at path; there are none without a file.
func read(path string) ([]entry, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("record of tasks: %w", err)
	}
	var d document
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errDamaged, path, err)
	}
	if slices.ContainsFunc(d.Tasks, func(e entry) bool { return e.ID == "" || e.Method == "" }) {
		return nil, fmt.Errorf("%w: %s: a task without id or method", errDamaged, path)
	}
	return d.Tasks, nil
}

// setAside renames a damaged document, so that an operator can inspect it.
func setAside(path string) error {
	if err := os.Rename(path, path+".corrupt"); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// document returns what to write, and the number of the last change in it.
func (s *Tasks) document() (document, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := document{Tasks: make([]entry, 0, len(s.byID))}
	for _, t := range s.byID {
		d.Tasks = append(d.Tasks, t.entry)
	}
	slices.SortFunc(d.Tasks, func(a, b entry) int {
		if a.Ended.IsZero() != b.Ended.IsZero() {
			return b.Ended.Compare(a.Ended) // running ones last
		}
		return cmp.Or(a.Ended.Compare(b.Ended), a.Started.Compare(b.Started))
	})
	return d, s.changes
}

// save returns when every change made before it is durable. One that a concurrent call has written is not written
// again.
func (s *Tasks) save() error {
	if s.path == "" {
		return nil
	}
	s.mu.Lock()
	last := s.changes
	s.mu.Unlock()
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.written >= last {
		return nil
	}
	d, changes := s.document()
	data, err := json.Marshal(d)
	if err == nil {
		err = atomicfile.Write(s.path, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("record of tasks: %w", err)
	}
	s.written = changes
	return nil
}
