package jsontree

import (
	"iter"
	"strings"

	"cambium/internal/spelling"
)

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
	return f.value.At(key)
}

// GetExact looks a key up in exactly this spelling.
func (f *Fields) GetExact(key string) Value {
	f.known = append(f.known, key)
	if f.exact == nil {
		f.exact = map[string]bool{}
	}
	f.exact[key] = true
	return f.value.Member(key)
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
			v := Value{doc: f.value.doc, node: m.Value, path: f.value.path.key(m.Key), offset: m.start}
			if last[m.Key] != i {
				v.Warnf("duplicate key: the last one counts, this one is ignored")
				continue
			}
			if !yield(m.Key, v) {
				return
			}
		}
	}
}

// Unknown says what Done does with keys that were not asked for.
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
			if first, duplicate := seen[known]; duplicate {
				f.at(first).Warnf("duplicate key: the last one counts, this one is ignored")
			}
			seen[known] = i
			continue
		}
		near, likely := f.nearest(m.Key, u)
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
	return Value{doc: f.value.doc, path: f.value.path.key(m.Key), offset: m.start}
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
// meant: at most maxEdits, and no more than a third of its letters.
func (f *Fields) nearest(key string, u Unknown) (best string, likely bool) {
	if len(key) > maxKey {
		return "", false
	}
	distance := maxKey
	for _, k := range f.known {
		if u == Tolerate && (len(k)-len(key) > maxEdits || len(key)-len(k) > maxEdits) {
			continue // not likely, and nothing else is asked for
		}
		if d := spelling.Distance(strings.ToLower(key), strings.ToLower(k)); d < distance {
			best, distance = k, d
		}
	}
	return best, best != "" && distance <= maxEdits && distance*3 <= len(best)
}
