package jsontree

import (
	"bytes"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"cambium/internal/report"
)

// position turns an offset into line and column, both from 1; columns count characters.
func (d *Document) position(offset int) (line, column int) {
	if d.lines == nil {
		d.lines = []int{0}
		for i := 0; ; {
			n := bytes.IndexByte(d.Data[i:], '\n')
			if n < 0 {
				break
			}
			i += n + 1
			d.lines = append(d.lines, i)
		}
	}
	line = sort.SearchInts(d.lines, offset+1)
	if line == 1 && offset >= len(mark) && bytes.HasPrefix(d.Data, mark) {
		return line, utf8.RuneCount(d.Data[len(mark):min(offset, len(d.Data))]) + 1
	}
	return line, utf8.RuneCount(d.Data[d.lines[line-1]:min(offset, len(d.Data))]) + 1
}

// path is a chain towards the root, so that a path costs nothing until it is printed.
type path struct {
	parent *path
	key    string
	index  int
	item   bool
}

func (p *path) String() string {
	var parts []string
	for ; p != nil && p.parent != nil; p = p.parent {
		switch {
		case p.item:
			parts = append(parts, "["+strconv.Itoa(p.index)+"]")
		case plain(p.key):
			parts = append(parts, "."+p.key)
		default:
			parts = append(parts, "["+quote(p.key)+"]")
		}
	}
	var b strings.Builder
	for i := len(parts) - 1; i >= 0; i-- {
		b.WriteString(parts[i])
	}
	return strings.TrimPrefix(b.String(), ".")
}

func plain(key string) bool {
	for _, r := range key {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' {
			return false
		}
	}
	return key != "" && len(key) <= maxKey
}

const (
	maxKey   = 64 // longer keys are cut in messages
	maxEdits = 2  // a key with more than these is no misspelling of another
)

// quote prints a key for a message: quoted, and cut where it is too long to be one.
func quote(key string) string {
	if utf8.RuneCountInString(key) > maxKey {
		key = string([]rune(key)[:maxKey]) + "…"
	}
	return strconv.Quote(key)
}

// Value is a node of a document together with its path. The zero Value is absent, and so is a
// member that is missing; a member that is null counts as missing unless asked for.
type Value struct {
	doc    *Document
	node   *Node
	path   *path
	offset int // of the key, or of the value itself; used while node is nil
}

// Node returns the tree below the value; nil when it is absent.
func (v Value) Node() *Node { return v.node }

// Kind returns the kind of the value.
func (v Value) Kind() Kind {
	if v.node == nil {
		return Absent
	}
	return v.node.Kind
}

// Present reports a value that is there and not null.
func (v Value) Present() bool { return v.node != nil && v.node.Kind != Null }

// Path returns the JSON path, such as Infrastructure.Settings.Sources[1].
func (v Value) Path() string { return v.path.String() }

// Step is one part of a path: a key, or an index when Item is true.
type Step struct {
	Key   string
	Index int
	Item  bool
}

// Steps returns the path from the root.
func (v Value) Steps() (all []Step) {
	for p := v.path; p != nil && p.parent != nil; p = p.parent {
		all = append(all, Step{Key: p.key, Index: p.index, Item: p.item})
	}
	slices.Reverse(all)
	return all
}

// Step follows one part of a path; what is not there is absent.
func (v Value) Step(s Step) Value {
	if s.Item {
		return v.Item(s.Index)
	}
	if exact := v.Member(s.Key); exact.node != nil {
		return exact
	}
	return v.At(s.Key)
}

// Raw returns the bytes of the value as they stand in the document.
func (v Value) Raw() []byte {
	if v.node == nil {
		return nil
	}
	return v.doc.Data[v.node.Offset:v.node.End]
}

// Bytes returns the bytes of another node of the same document.
func (v Value) Bytes(n *Node) []byte { return v.doc.Data[n.Offset:n.End] }

// At returns a member of an object, looked up without regard to case and without a report; it
// is absent when v is no object.
func (v Value) At(key string) Value {
	return v.member(func(have string) bool { return strings.EqualFold(have, key) })
}

// Member is At for a key that is data and matched exactly.
func (v Value) Member(key string) Value {
	return v.member(func(have string) bool { return have == key })
}

func (v Value) member(match func(string) bool) (found Value) {
	if v.Kind() != Object {
		return Value{}
	}
	for _, m := range v.node.Members {
		if match(m.Key) {
			found = Value{doc: v.doc, node: m.Value, path: &path{parent: v.path, key: m.Key}, offset: m.Offset}
		}
	}
	return found
}

// Item returns a member of a list; it is absent when there is none.
func (v Value) Item(i int) Value {
	if v.Kind() != List || i >= len(v.node.Items) {
		return Value{}
	}
	return Value{doc: v.doc, node: v.node.Items[i], path: &path{parent: v.path, index: i, item: true}}
}

func (v Value) add(s report.Severity, message string) {
	if v.doc == nil {
		return
	}
	offset := v.offset
	if v.node != nil {
		offset = v.node.Offset
	}
	line, column := v.doc.position(offset)
	v.doc.report.Add(report.Entry{Severity: s, File: v.doc.Name, Line: line, Column: column, Path: v.Path(), Message: message})
}

// Errorf reports an error at the value. The arguments must not be content of the document.
func (v Value) Errorf(format string, args ...any) { v.add(report.Error, fmt.Sprintf(format, args...)) }

// Warnf reports a warning at the value. The arguments must not be content of the document.
func (v Value) Warnf(format string, args ...any) {
	v.add(report.Warning, fmt.Sprintf(format, args...))
}

// Expected reports a value of the wrong kind.
func (v Value) Expected(what string) { v.Errorf("expected %s, got %s", what, v.Kind()) }

// Text stores a string. Null and absent leave *into as it is; another kind is an error.
func (v Value) Text(into *string) {
	if !v.Present() {
		return
	}
	if v.node.Kind != String {
		v.Expected("a string")
		return
	}
	*into = v.node.Text
}

// Scalar stores a string or a number in its text form.
func (v Value) Scalar(into *string) {
	if !v.Present() {
		return
	}
	if v.node.Kind != String && v.node.Kind != Number {
		v.Expected("a string")
		return
	}
	*into = v.node.Text
}

// Bool stores a boolean.
func (v Value) Bool(into *bool) {
	if !v.Present() {
		return
	}
	if v.node.Kind != Bool {
		v.Expected("a boolean")
		return
	}
	*into = v.node.True
}

// Items returns the members of a list with their positions.
func (v Value) Items() []Value {
	if !v.Present() {
		return nil
	}
	if v.node.Kind != List {
		v.Expected("a list")
		return nil
	}
	all := make([]Value, len(v.node.Items))
	for i, n := range v.node.Items {
		all[i] = Value{doc: v.doc, node: n, path: &path{parent: v.path, index: i, item: true}}
	}
	return all
}

// Strings stores a list of strings; an empty list is stored as such, not as nil. A null item
// is an empty string, as in encoding/json.
func (v Value) Strings(into *[]string) {
	if !v.Present() {
		return
	}
	if v.node.Kind != List {
		v.Expected("a list of strings")
		return
	}
	all := make([]string, len(v.node.Items))
	for i, item := range v.Items() {
		item.Text(&all[i])
	}
	*into = all
}
