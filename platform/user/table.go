package user

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"cambium/internal/atomicfile"
)

// table is an account file: lines with fields between colons, the first of which is the name. Other lines (comments,
// NIS markers, damage) are preserved.
type table struct {
	path    string
	fields  int
	present bool
	lines   []string
	before  []byte // content of the file
	mode    fs.FileMode
	uid     int
	gid     int
}

func readTable(path string, fields int) (*table, error) {
	t := &table{path: path, fields: fields, mode: 0o644}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read accounts: %w", err)
	}
	if t.before, err = os.ReadFile(path); err != nil {
		return nil, fmt.Errorf("read accounts: %w", err)
	}
	t.present, t.mode = true, info.Mode().Perm()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		t.uid, t.gid = int(st.Uid), int(st.Gid)
	}
	t.parse(t.before)
	return t, nil
}

func (t *table) parse(data []byte) {
	t.lines = nil
	if len(data) > 0 {
		t.lines = strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	}
}

func (t *table) bytes() []byte {
	if len(t.lines) == 0 {
		return nil
	}
	return []byte(strings.Join(t.lines, "\n") + "\n")
}

// record splits a line into fields. It returns nil if the line is not a record.
func (t *table) record(line string) []string {
	if line == "" || strings.ContainsRune("#+- \t", rune(line[0])) {
		return nil
	}
	fields := strings.Split(line, ":")
	if len(fields) != t.fields || fields[0] == "" {
		return nil
	}
	return fields
}

// all iterates over the records. A caller may keep them, but must not change them.
func (t *table) all(yield func([]string) bool) {
	for _, line := range t.lines {
		if r := t.record(line); r != nil && !yield(r) {
			return
		}
	}
}

// find returns a copy of the first record of that name, which is the effective one.
func (t *table) find(name string) ([]string, bool) {
	for r := range t.all {
		if r[0] == name {
			return r, true
		}
	}
	return nil, false
}

// set replaces the first record of the same name, or adds one before any NIS markers.
func (t *table) set(record ...string) {
	line := strings.Join(record, ":")
	end := len(t.lines)
	for i, have := range t.lines {
		if r := t.record(have); r != nil && r[0] == record[0] {
			t.lines[i] = line
			return
		}
		if end == len(t.lines) && (strings.HasPrefix(have, "+") || strings.HasPrefix(have, "-")) {
			end = i
		}
	}
	t.lines = slices.Insert(t.lines, end, line)
}

// remove removes all records of that name.
func (t *table) remove(name string) {
	t.lines = slices.DeleteFunc(t.lines, func(line string) bool {
		r := t.record(line)
		return r != nil && r[0] == name
	})
}

// edit calls change to modify each record in place.
func (t *table) edit(change func(record []string)) {
	for i, line := range t.lines {
		if r := t.record(line); r != nil {
			change(r)
			t.lines[i] = strings.Join(r, ":")
		}
	}
}

func (t *table) save() error {
	now := t.bytes()
	if bytes.Equal(now, t.before) || !t.present && now == nil {
		return nil
	}
	// Do not write only to add a missing newline at the end.
	if len(t.before) > 0 && bytes.Equal(now, append(bytes.Clone(t.before), '\n')) {
		return nil
	}
	if err := atomicfile.Write(t.path, now, t.mode, atomicfile.Owner(t.uid, t.gid)); err != nil {
		return err
	}
	t.before, t.present = now, true
	return nil
}

// members splits a group's list of members.
func members(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

func withMember(list, name string, in bool) string {
	names := members(list)
	has := slices.Contains(names, name)
	switch {
	case in && !has:
		names = append(names, name)
	case !in && has:
		names = slices.DeleteFunc(names, func(n string) bool { return n == name })
	}
	return strings.Join(names, ",")
}
