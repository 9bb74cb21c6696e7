package jsontree

import (
	"bytes"
	"fmt"
	"iter"
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
			parts = append(parts, "["+Quote(p.key)+"]")
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

const maxKey = 64

// Quote prints a key for a message: quoted, and cut where it is too long to be one.
func Quote(key string) string {
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

// Fields opens an object. Absent, null and (with an error) any other kind give an empty one.
func (v Value) Fields() *Fields {
	f := &Fields{value: v}
	if v.Present() && v.node.Kind != Object {
		v.Expected("an object")
		f.value.node = nil
	}
	return f
}

// Fields is an object being decoded. It remembers which keys were asked for: those are the
// known ones.
type Fields struct {
	value Value
	known []string
	exact map[string]bool
}

// Get looks a key up without regard to case. Of several spellings and duplicates the last one
// in the document counts, as in encoding/json; Done warns of the others.
func (f *Fields) Get(key string) Value {
	f.known = append(f.known, key)
	return f.find(key, func(have string) bool { return strings.EqualFold(have, key) })
}

// GetExact looks a key up in exactly this spelling.
func (f *Fields) GetExact(key string) Value {
	f.known = append(f.known, key)
	if f.exact == nil {
		f.exact = map[string]bool{}
	}
	f.exact[key] = true
	return f.find(key, func(have string) bool { return have == key })
}

func (f *Fields) find(key string, match func(string) bool) Value {
	found := Value{doc: f.value.doc, path: &path{parent: f.value.path, key: key}, offset: f.value.offset}
	if f.value.node == nil {
		return found
	}
	found.offset = f.value.node.Offset
	for _, m := range f.value.node.Members {
		if match(m.Key) {
			found.node, found.offset = m.Value, m.Offset
		}
	}
	return found
}

// All walks the members of an object whose keys are data: network names, disk CIDs. Of
// duplicates only the last is given.
func (f *Fields) All() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		if f.value.node == nil {
			return
		}
		last := make(map[string]int, len(f.value.node.Members))
		for i, m := range f.value.node.Members {
			last[m.Key] = i
		}
		for i, m := range f.value.node.Members {
			v := Value{doc: f.value.doc, node: m.Value, path: &path{parent: f.value.path, key: m.Key}, offset: m.Offset}
			if last[m.Key] != i {
				v.Warnf("key occurs again below; this one does not count")
				continue
			}
			if !yield(m.Key, v) {
				return
			}
		}
	}
}

// Unknown says what Done does with keys nobody asked for.
type Unknown int

// Tolerate accepts unknown keys and warns only of likely misspellings; Warn warns of each.
const (
	Tolerate Unknown = iota
	Warn
)

// Done warns of duplicates and of unknown keys, naming the nearest known key.
func (f *Fields) Done(u Unknown) {
	if f.value.node == nil {
		return
	}
	seen := make(map[string]int, len(f.value.node.Members))
	for i, m := range f.value.node.Members {
		if known := f.spelling(m.Key); known != "" {
			if first, again := seen[known]; again {
				f.at(first).Warnf("key occurs again below; this one does not count")
			}
			seen[known] = i
			continue
		}
		near, likely := f.nearest(m.Key)
		switch {
		case likely:
			f.at(i).Warnf("unknown key; did you mean %s?", near)
		case u == Warn && near != "":
			f.at(i).Warnf("unknown key, ignored; the nearest known key is %s", near)
		case u == Warn:
			f.at(i).Warnf("unknown key, ignored")
		}
	}
}

func (f *Fields) at(i int) Value {
	m := f.value.node.Members[i]
	return Value{doc: f.value.doc, path: &path{parent: f.value.path, key: m.Key}, offset: m.Offset}
}

func (f *Fields) spelling(key string) string {
	for _, k := range f.known {
		if k == key || !f.exact[k] && strings.EqualFold(k, key) {
			return k
		}
	}
	return ""
}

// nearest returns the known key with the fewest edits, and whether it is likely that it was
// meant: at most two edits, and fewer than a third of its letters.
func (f *Fields) nearest(key string) (best string, likely bool) {
	if len(key) > maxKey {
		return "", false
	}
	distance := maxKey
	for _, k := range f.known {
		if d := edits(strings.ToLower(key), strings.ToLower(k)); d < distance {
			best, distance = k, d
		}
	}
	return best, best != "" && distance <= 2 && distance*3 <= len(best)
}

// edits counts insertions, deletions and replacements between two short words.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}
