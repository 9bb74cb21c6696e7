package task

import (
	"bytes"
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

// entry is the durable part of a task, which survives a restart. It never holds the task's arguments.
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

var errDamaged = errors.New("the task record is damaged")

// read returns the entries of the document at path: first the finished tasks in order of their end, then the running
// ones in order of their start. A missing file has no entries.
func read(path string) ([]entry, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("task record: %w", err)
	}
	var d struct {
		Tasks []entry `json:"tasks"`
	}
	if err := json.Unmarshal(data, &d); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errDamaged, path, err)
	}
	if slices.ContainsFunc(d.Tasks, func(e entry) bool { return e.ID == "" || e.Method == "" }) {
		return nil, fmt.Errorf("%w: %s: a task has no id or no method", errDamaged, path)
	}
	slices.SortFunc(d.Tasks, func(a, b entry) int {
		if a.Ended.IsZero() != b.Ended.IsZero() {
			return b.Ended.Compare(a.Ended) // running ones last
		}
		return cmp.Or(a.Ended.Compare(b.Ended), a.Started.Compare(b.Started))
	})
	return d.Tasks, nil
}

// setAside renames a damaged document, so that an operator can inspect it.
func setAside(path string) error {
	if err := os.Rename(path, path+".corrupt"); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// document encodes all tasks, one a line. changes is the number of the last change included.
func (s *Tasks) document() (data []byte, changes int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := make([][]byte, 0, len(s.byID))
	for _, t := range s.byID {
		if t.encoded == nil {
			if t.encoded, err = json.Marshal(t.entry); err != nil {
				return nil, 0, err
			}
		}
		lines = append(lines, t.encoded)
	}
	return fmt.Appendf(nil, "{\"tasks\":[\n%s\n]}\n", bytes.Join(lines, []byte(",\n"))), s.changes, nil
}

// save returns when all changes made before the call are durable. It writes nothing if a concurrent call has already
// written them.
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
	data, changes, err := s.document()
	if err == nil {
		err = atomicfile.Write(s.path, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("task record: %w", err)
	}
	s.written = changes
	return nil
}
