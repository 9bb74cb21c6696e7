package task

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/atomicfile"
)

// The journal is a file of lines, each a checksum and a JSON object; later lines of one id add to
// earlier ones. A crash can only truncate the last line, which is then ignored. It never holds a
// task's arguments.

// compactAbove is the size from which on the file is rewritten without what is forgotten; a
// variable for the sake of tests.
var compactAbove int64 = 4 << 20

type entry struct {
	ID      string          `json:"id"`
	Method  string          `json:"method,omitempty"`
	Started time.Time       `json:"started,omitzero"`
	Note    json.RawMessage `json:"note,omitempty"`
	Ended   time.Time       `json:"ended,omitzero"`
	Value   json.RawMessage `json:"value,omitempty"`
	Failed  bool            `json:"failed,omitempty"`
	Error   string          `json:"error,omitempty"`
}

func (e *entry) add(later entry) {
	if later.Method != "" {
		e.Method = later.Method
	}
	if later.Note != nil {
		e.Note = later.Note
	}
	if !later.Ended.IsZero() {
		e.Ended, e.Value, e.Failed, e.Error = later.Ended, later.Value, later.Failed, later.Error
	}
}

func (e entry) weight() int { return len(e.Value) + len(e.Error) }

func (e entry) line() ([]byte, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.ChecksumIEEE(data), data), nil
}

func parseLine(line []byte) (entry, bool) {
	sum, data, found := bytes.Cut(line, []byte(" "))
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if !found || err != nil || crc32.ChecksumIEEE(data) != uint32(want) {
		return entry{}, false
	}
	var e entry
	if json.Unmarshal(data, &e) != nil || e.ID == "" {
		return entry{}, false
	}
	return e, true
}

// readJournal returns the tasks in order of their end, those without one last. What is damaged
// is left out; torn reports a last line without an end.
func readJournal(path string) (all []entry, torn bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("task journal: %w", err)
	}
	torn = len(data) > 0 && data[len(data)-1] != '\n'
	byID := map[string]*entry{}
	var order []*entry
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		e, ok := parseLine(line)
		if !ok {
			continue
		}
		if known := byID[e.ID]; known != nil {
			known.add(e)
			continue
		}
		byID[e.ID] = &e
		order = append(order, &e)
	}
	slices.SortStableFunc(order, func(a, b *entry) int {
		if a.Ended.IsZero() != b.Ended.IsZero() {
			if a.Ended.IsZero() {
				return 1
			}
			return -1
		}
		return a.Ended.Compare(b.Ended)
	})
	for _, e := range order {
		if e.Method != "" {
			all = append(all, *e)
		}
	}
	return all, torn, nil
}

type appended struct {
	line []byte
	done func(error)
}

// journal appends lines, many per fsync when they come fast. The file is open only while a batch is written: the file
// system of the settings can be unmounted under a running agent.
type journal struct {
	path     string
	log      *logrus.Entry
	snapshot func() []entry

	mu      sync.Mutex // guards what follows
	pending []appended
	wake    chan struct{} // holds one token when there is something to write
	closed  bool

	finished chan struct{}

	// Owned by the writing goroutine.
	size  int64
	limit int64 // of size, before the next compaction
	torn  bool  // the file may end within a line
}

func openJournal(path string, torn bool, snapshot func() []entry, log *logrus.Entry) (*journal, error) {
	j := &journal{path: path, torn: torn, limit: compactAbove, log: log, snapshot: snapshot,
		wake: make(chan struct{}, 1), finished: make(chan struct{})}
	file, err := j.open()
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("task journal: %w", err)
	}
	go j.write()
	return j, nil
}

// append queues e; done is called when it is durable or cannot be made so.
func (j *journal) append(e entry, done func(error)) {
	line, err := e.line()
	if err != nil {
		done(fmt.Errorf("task journal: %w", err))
		return
	}
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		done(fmt.Errorf("task journal: %w", os.ErrClosed))
		return
	}
	j.pending = append(j.pending, appended{line, done})
	j.mu.Unlock()
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

func (j *journal) close() {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return
	}
	j.closed = true
	close(j.wake)
	j.mu.Unlock()
	<-j.finished
}

// write is the one goroutine that touches the file.
func (j *journal) write() {
	defer close(j.finished)
	for range j.wake {
		j.flush()
	}
	j.flush()
}

func (j *journal) flush() {
	j.mu.Lock()
	batch := j.pending
	j.pending = nil
	j.mu.Unlock()
	if len(batch) == 0 {
		return
	}
	err := j.store(batch)
	for _, a := range batch {
		a.done(err)
	}
	if j.size > j.limit {
		if err := j.compact(); err != nil {
			j.log.WithError(err).Warn("task journal not compacted")
		}
	}
}

// store appends a batch. What one lost is written by the compaction behind the next that works.
func (j *journal) store(batch []appended) error {
	written := j.size
	file, err := j.open()
	if err != nil {
		j.limit = 0
		return err
	}
	if j.size != written { // of another file system, which lacks what was written so far
		j.limit = 0
	}
	w := bufio.NewWriter(file) // keeps the first error
	for _, a := range batch {
		n, _ := w.Write(a.line)
		j.size += int64(n)
	}
	if err = w.Flush(); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		j.torn, j.limit = true, 0 // half a line may be in it
	}
	return err
}

func (j *journal) open() (*os.File, error) {
	file, err := os.OpenFile(j.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && info.Mode().Perm() != 0o600 {
		err = file.Chmod(0o600)
	}
	n := 0
	if err == nil && j.torn {
		n, err = file.WriteString("\n")
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	j.torn, j.size = false, info.Size()+int64(n)
	return file, nil
}

// compact rewrites the file from what is still known.
func (j *journal) compact() error {
	var content bytes.Buffer
	for _, e := range j.snapshot() {
		line, err := e.line()
		if err != nil {
			return err
		}
		content.Write(line)
	}
	if err := atomicfile.Write(j.path, content.Bytes(), 0o600); err != nil {
		return err
	}
	j.torn, j.size = false, int64(content.Len())
	j.limit = max(compactAbove, 2*j.size)
	return nil
}
