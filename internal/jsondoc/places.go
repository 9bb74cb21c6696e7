package jsondoc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"cambium/internal/report"
)

// Kind is the type of a JSON value, represented by its first character.
type Kind byte

// The kinds of JSON values.
const (
	Null   Kind = 'n'
	Bool   Kind = 't'
	Number Kind = '0'
	String Kind = '"'
	List   Kind = '['
	Object Kind = '{'
)

// KindOf returns the kind of a value.
func KindOf(raw string) Kind {
	switch raw[0] {
	case 'n', 't', '"', '[', '{':
		return Kind(raw[0])
	case 'f':
		return Bool
	}
	return Number
}

// String returns the kind with its article, for messages.
func (k Kind) String() string {
	return map[Kind]string{Null: "null", Bool: "a boolean", Number: "a number", String: "a string", List: "a list",
		Object: "an object"}[k]
}

// place is the position of a value in the text. The places of a document are in its order, the root first.
type place struct {
	parent     int    // index of its place; -1 for the root
	key        string // or the index in a list
	item       bool   // it is in a list
	keyStart   int
	keyEnd     int
	start, end int
}

// findPlaces finds the position of each value. The text must be valid JSON.
func (d *Document) findPlaces() {
	tokens := json.NewDecoder(bytes.NewReader(d.text))
	tokens.UseNumber()
	// next returns the offset of the next token.
	next := func() int {
		at := int(tokens.InputOffset())
		for strings.IndexByte(" \t\r\n,:", d.text[at]) >= 0 {
			at++
		}
		return at
	}
	var value func(p place, depth int) bool
	value = func(p place, depth int) bool {
		p.start = next()
		if depth > maxDepth {
			d.fail(p.start, tooDeep)
			return false
		}
		at := len(d.places)
		d.places = append(d.places, p)
		open, _ := tokens.Token()
		if _, nested := open.(json.Delim); nested {
			for i := 0; tokens.More(); i++ {
				child := place{parent: at, key: strconv.Itoa(i), item: true}
				if open == json.Delim('{') {
					child.keyStart = next()
					key, _ := tokens.Token()
					child.key, child.item, child.keyEnd = key.(string), false, int(tokens.InputOffset())
				}
				if !value(child, depth+1) {
					return false
				}
			}
			_, _ = tokens.Token()
		}
		d.places[at].end = int(tokens.InputOffset())
		return true
	}
	if !value(place{parent: -1}, 0) {
		d.places = nil
	}
}

// Findings returns the findings, sorted by position.
func (d *Document) Findings() report.Report {
	d.Report.Sort()
	return d.Report
}

// Value is a value of a document with its path.
type Value struct {
	Path string
	Raw  string
}

func (d *Document) value(i int) Value {
	return Value{Path: d.path(i), Raw: string(d.text[d.places[i].start:d.places[i].end])}
}

// Values returns all values in the order of the document, the root first. There are none if the document cannot be
// parsed.
func (d *Document) Values() []Value {
	all := make([]Value, len(d.places))
	for i := range d.places {
		all[i] = d.value(i)
	}
	return all
}

// At returns the value at a path. Of duplicates, it returns the last.
func (d *Document) At(path string) (Value, bool) {
	if i, ok := d.find(path); ok {
		return d.value(i), true
	}
	return Value{}, false
}

func (d *Document) find(path string) (int, bool) {
	if d.paths == nil {
		d.paths = make(map[string]int, len(d.places))
		for i := range d.places {
			d.paths[d.path(i)] = i
		}
	}
	i, ok := d.paths[path]
	return i, ok
}

func (d *Document) path(i int) string {
	p := d.places[i]
	switch {
	case p.parent < 0:
		return ""
	case p.item:
		return d.path(p.parent) + "[" + p.key + "]"
	}
	return strings.TrimPrefix(d.path(p.parent)+Key(p.key), ".")
}

// Key formats a key as part of a path.
func Key(key string) string {
	if isWord(key) {
		return "." + key
	}
	return "[" + quote(key) + "]"
}

// Item formats an index as part of a path.
func Item(i int) string { return "[" + strconv.Itoa(i) + "]" }

func isWord(key string) bool {
	for _, r := range key {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' {
			return false
		}
	}
	return key != "" && len(key) <= maxKey
}

// maxKey is the longest key that is shown in full.
const maxKey = 64

// quote formats a key for a message: quoted, and cut to maxKey.
func quote(key string) string {
	if utf8.RuneCountInString(key) > maxKey {
		key = string([]rune(key)[:maxKey]) + "…"
	}
	return strconv.Quote(key)
}

// Errorf reports an error at the path, or at the nearest parent if that is missing. It does nothing if the value, or
// one that contains it, already has an error, which may be the cause. The arguments must not contain values of the
// document.
func (d *Document) Errorf(path, format string, args ...any) {
	for _, e := range d.Report.Entries {
		if rest, within := strings.CutPrefix(path, e.Path); within && e.Severity == report.Error && e.Path != "" &&
			(rest == "" || rest[0] == '.' || rest[0] == '[') {
			return
		}
	}
	d.add(report.Error, path, fmt.Sprintf(format, args...))
}

// Warnf is like Errorf, but always reports, and as a warning.
func (d *Document) Warnf(path, format string, args ...any) {
	d.add(report.Warning, path, fmt.Sprintf(format, args...))
}

func (d *Document) add(s report.Severity, path, message string) {
	if len(d.places) == 0 {
		return // it was reported that there is nothing to read
	}
	at, ok := d.find(path)
	for near := path; !ok && near != ""; at, ok = d.find(near) {
		near = near[:max(0, strings.LastIndexAny(near, ".["))]
	}
	d.addAt(s, d.places[at].start, path, message)
}

func (d *Document) addAt(s report.Severity, offset int, path, message string) {
	line, column := d.position(offset)
	d.Report.Add(report.Entry{Severity: s, File: d.name, Line: line, Column: column, Path: path, Message: message})
}

// position converts an offset to a line and a column, which start at 1. Columns count characters.
func (d *Document) position(offset int) (line, column int) {
	if d.lines == nil {
		d.lines = []int{0}
		for i, c := range d.text {
			if c == '\n' {
				d.lines = append(d.lines, i+1)
			}
		}
	}
	line = sort.SearchInts(d.lines, offset+1)
	return line, utf8.RuneCount(d.text[d.lines[line-1]:offset]) + 1
}
