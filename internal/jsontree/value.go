package jsontree

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"cambium/internal/report"
)

// position turns an offset into line and column, both from 1; columns count characters.
func (d *document) position(offset int) (line, column int) {
	if d.lines == nil {
		d.lines = []int{0}
		for i, c := range d.data {
			if c == '\n' {
				d.lines = append(d.lines, i+1)
			}
		}
	}
	line = sort.SearchInts(d.lines, offset+1)
	return line, utf8.RuneCount(d.data[d.lines[line-1]:offset]) + 1
}

// Step is one part of a path: a key, or an index when Item is true.
type Step struct {
	Key   string
	Index int
	Item  bool
}

// path is a chain towards the root, so that a path costs nothing until it is printed.
type path struct {
	parent *path
	Step
}

func (p *path) key(key string) *path { return &path{p, Step{Key: key}} }
func (p *path) index(i int) *path    { return &path{p, Step{Index: i, Item: true}} }

// steps returns the path from the root.
func (p *path) steps() (all []Step) {
	for ; p != nil && p.parent != nil; p = p.parent {
		all = append(all, p.Step)
	}
	slices.Reverse(all)
	return all
}

func (p *path) String() string {
	var b strings.Builder
	for _, s := range p.steps() {
		switch {
		case s.Item:
			fmt.Fprintf(&b, "[%d]", s.Index)
		case isWord(s.Key):
			b.WriteString("." + s.Key)
		default:
			b.WriteString("[" + quote(s.Key) + "]")
		}
	}
	return strings.TrimPrefix(b.String(), ".")
}

func isWord(key string) bool {
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
	doc    *document
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

// Steps returns the path from the root.
func (v Value) Steps() []Step { return v.path.steps() }

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
	return v.doc.data[v.node.start:v.node.end]
}

// Bytes returns the bytes of another node of the same document.
func (v Value) Bytes(n *Node) []byte { return v.doc.data[n.start:n.end] }

// At returns a member of an object, looked up without regard to case; it is absent when there is
// none or v is no object.
func (v Value) At(key string) Value {
	return v.member(key, func(have string) bool { return strings.EqualFold(have, key) })
}

// Member is At for a key that is data and matched exactly.
func (v Value) Member(key string) Value {
	return v.member(key, func(have string) bool { return have == key })
}

// member returns the last member whose key matches, as encoding/json does. An absent member has
// the position of the object that lacks it.
func (v Value) member(key string, match func(string) bool) Value {
	found := Value{doc: v.doc, path: v.path.key(key), offset: v.offset}
	if v.node == nil {
		return found
	}
	found.offset = v.node.start
	for _, m := range v.node.Members {
		if match(m.Key) {
			found.node, found.offset = m.Value, m.start
		}
	}
	return found
}

// Item returns a member of a list; it is absent when there is none.
func (v Value) Item(i int) Value {
	if v.Kind() != List || i >= len(v.node.Items) {
		return Value{}
	}
	return Value{doc: v.doc, node: v.node.Items[i], path: v.path.index(i)}
}

func (v Value) add(s report.Severity, message string) {
	if v.doc == nil {
		return
	}
	offset := v.offset
	if v.node != nil {
		offset = v.node.start
	}
	line, column := v.doc.position(offset)
	v.doc.report.Add(report.Entry{Severity: s, File: v.doc.name, Line: line, Column: column, Path: v.Path(), Message: message})
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
		all[i] = Value{doc: v.doc, node: n, path: v.path.index(i)}
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
