//go:build linux

package replay

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cambium/lab/fusetest"
)

const sector = 512

// logText is a log in the format of dm-log-writes. The data of an entry repeats the given letter; 0 means no data.
type logText struct{ bytes.Buffer }

func newLog(magic uint64) *logText {
	l := &logText{}
	l.sector(logSuper{Magic: magic, Version: logVersion, SectorSize: sector})
	return l
}

func (l *logText) sector(value any) {
	text, err := binary.Append(nil, binary.LittleEndian, value)
	if err != nil {
		panic(err) // constant input
	}
	l.Write(append(text, make([]byte, sector-len(text))...))
}

func (l *logText) add(at, count, flags uint64, letters string) *logText {
	l.sector(logEntry{Sector: at, Sectors: count, Flags: flags})
	for _, letter := range letters {
		l.Write(bytes.Repeat([]byte{byte(letter)}, sector))
	}
	return l
}

func TestLogOfWrites(t *testing.T) {
	l := newLog(logMagic).add(3, 2, 0, "ab").add(0, 0, logFlush, "").add(1, 100, logDiscard, "").add(7, 1, 0, "\x00")
	complete := l.Len()
	l.add(9, 2, 0, "c") // the second sector of its data is not there yet
	got, err := readLog(bytes.NewReader(l.Bytes()), 5, int64(l.Len()))
	if err != nil {
		t.Fatal(err)
	}
	want := []fusetest.Header{
		{Kind: fusetest.Wrote, Disk: 5, Offset: 3 * sector, Length: 2 * sector},
		{Kind: fusetest.Flushed, Disk: 5},
		{Kind: fusetest.Zeroed, Disk: 5, Offset: sector, Length: 100 * sector},
		{Kind: fusetest.Zeroed, Disk: 5, Offset: 7 * sector, Length: sector},
	}
	var headers []fusetest.Header
	for _, e := range got {
		headers = append(headers, e.Header)
	}
	if !slices.Equal(headers, want) {
		t.Fatalf("entries are %v, want %v", headers, want)
	}
	if data := string(got[0].Data); data != strings.Repeat("a", sector)+strings.Repeat("b", sector) {
		t.Errorf("data of the first write: %q", data)
	}
	if end := got[3].end; end != int64(complete) {
		t.Errorf("the last entry ends at %d, want %d", end, complete)
	}
	for name, bad := range map[string]*logText{"magic": newLog(4711), "flags": newLog(logMagic).add(1, 1, 1<<1, "x"),
		"superblock": {}} {
		if _, err := readLog(bytes.NewReader(bad.Bytes()), 0, int64(bad.Len())); err == nil ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("a log with wrong %s is read with %v", name, err)
		}
	}
}

// recordingOfTwo returns a recording of two disks: A, a flush and B on disk 0, and then C on disk 1.
func recordingOfTwo(t *testing.T) *Recording {
	t.Helper()
	dir := t.TempDir()
	first := newLog(logMagic)
	empty := int64(first.Len())
	first.add(0, 1, 0, "A").add(0, 0, logFlush, "")
	flushed := int64(first.Len())
	first.add(1, 1, 0, "B")
	second := newLog(logMagic).add(0, 1, 0, "C")
	var paths []string
	for name, l := range map[string]*logText{"a": first, "b": second} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, l.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	slices.Sort(paths)
	r, err := FromLogs([]Disk{{"a", 4 * sector}, {"b", 4 * sector}}, paths, []Moment{
		{Lengths: []int64{empty, empty}, Mark: MarkBegin},
		{Lengths: []int64{flushed, empty}},
		{Lengths: []int64{int64(first.Len()), empty}, Mark: "told"},
		{Lengths: []int64{int64(first.Len()), int64(second.Len())}, Mark: MarkEnd}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestMomentsOrderTheWritesOfSeveralDisks(t *testing.T) {
	r := recordingOfTwo(t)
	var order string
	for _, e := range r.Log {
		switch e.Kind {
		case fusetest.Wrote:
			order += string(e.Data[:1])
		case fusetest.Flushed:
			order += "!"
		case fusetest.Marked:
			order += " " + string(e.Data) + " "
		}
	}
	if order != " begin A!B told C end " {
		t.Fatalf("the order is %q", order)
	}
	if !slices.Equal(r.Cuts, []int{1, 3, 5, 7}) {
		t.Errorf("the power is cut at %v", r.Cuts)
	}
	for _, s := range r.States(rand.New(rand.NewPCG(1, 1)), 20, 0) {
		if !slices.Contains(r.Cuts, s.Cut) {
			t.Errorf("a state is between two moments: %v", s)
		}
	}
	if r.Reached(State{Cut: 3})["told"] || !r.Reached(State{Cut: 5})["told"] {
		t.Error("a mark is reached at a moment other than its own")
	}
}

func TestWhatWasFlushedIsOnTheDisk(t *testing.T) {
	r := recordingOfTwo(t)
	dir := t.TempDir()
	for s, want := range map[State][2]string{
		{Cut: 1, Chance: 1}: {"\x00\x00", "\x00\x00"},
		{Cut: 7}:            {"A\x00", "\x00\x00"},
		{Cut: 5, Chance: 1}: {"AB", "\x00\x00"},
		{Cut: 7, Chance: 1}: {"AB", "C\x00"},
	} {
		if err := r.Make(s, dir); err != nil {
			t.Fatal(err)
		}
		for n, name := range []string{"a", "b"} {
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if got := string(data[0]) + string(data[sector]); len(data) != 4*sector || got != want[n] {
				t.Errorf("%v: disk %s begins its sectors with %q, want %q", s, name, got, want[n])
			}
		}
	}
}

func TestSetRowKeepsTheRest(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("a\n| x | old |\n| xy | 1 |\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := SetRow(page, "x", 2, "new"); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(page); err != nil || string(data) != "a\n| x | 2 | new |\n| xy | 1 |\n" {
		t.Errorf("the page is %q, %v", data, err)
	}
	if err := SetRow(page, "z"); err == nil {
		t.Error("a row that is not there was replaced")
	}
}
