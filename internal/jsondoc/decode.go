package jsondoc

import (
	"bytes"
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"cambium/internal/report"
	"cambium/internal/spelling"
)

// Rule rewrites a value before it is decoded, to accept a form that the struct, or another reader of the document, does
// not know.
type Rule struct {
	// Path selects values: keys (in any case), separated by dots; "*" matches any key or index.
	Path string
	// Key, if set, replaces the last key of the path, which is an alias of Key.
	Key string
	// Rewrite, if set, returns the JSON that is decoded instead, or null. It reports problems with say.
	Rewrite func(raw string, say func(report.Severity, string)) string
}

// Unknown decides how unknown keys are treated.
type Unknown int

// Tolerate accepts unknown keys, and warns only of likely misspellings. Warn warns of every unknown key.
const (
	Tolerate Unknown = iota
	Warn
)

// Decode decodes data into a struct or map that holds the defaults. Like encoding/json it ignores the case of keys,
// skips unknown members, and treats null as missing. If the report has errors, the result is incomplete. text is the
// document after the rules were applied, with known keys spelled as in the struct and everything else unchanged. It is
// null if the document cannot be parsed.
func Decode[T any](name string, data []byte, into *T, u Unknown, rules ...Rule) (d *Document, text []byte) {
	d = Read(name, data)
	if len(d.places) == 0 {
		return d, []byte("null")
	}
	c := checker{Document: d, unknown: u, types: make([]reflect.Type, len(d.places)), last: map[member]int{}}
	for _, r := range rules {
		c.rules = append(c.rules, rule{r, strings.FieldsFunc(r.Path, func(r rune) bool { return r == '.' })})
	}
	for i := range d.places {
		c.check(i, reflect.TypeFor[T]())
	}
	text = c.edited()
	if c.types[0] == nil && d.Report.Failed() {
		d.places = nil // of another kind: there is nothing else to say
	}
	if err := json.Unmarshal(text, into); err != nil && !d.Report.Failed() {
		d.Errorf("", "cannot be decoded")
	}
	return d, text
}

// checker compares each value with the type into which it is decoded.
type checker struct {
	*Document
	unknown Unknown
	rules   []rule
	types   []reflect.Type // by place; nil if nothing below it is decoded
	last    map[member]int
	edits   []edit
}

type rule struct {
	Rule
	steps []string
}

// member is a key of an object.
type member struct {
	parent int
	key    string
}

type edit struct {
	start, end int
	text       string
}

func (c *checker) replace(start, end int, text string) {
	if string(c.text[start:end]) != text {
		c.edits = append(c.edits, edit{start, end, text})
	}
}

// edited returns the text with all edits, and without white space.
func (c *checker) edited() []byte {
	var out, compact bytes.Buffer
	at := 0
	for _, e := range c.edits {
		out.Write(c.text[at:e.start])
		out.WriteString(e.text)
		at = e.end
	}
	out.Write(c.text[at:])
	_ = json.Compact(&compact, out.Bytes()) // JSON, as Read found and Rewrite returns it
	return compact.Bytes()
}

func (c *checker) check(i int, t reflect.Type) {
	p := &c.places[i]
	raw := string(c.text[p.start:p.end])
	r := c.rule(i)
	if p.parent < 0 && KindOf(raw) == Null && t.Kind() == reflect.Struct && !unmarshals(t) {
		c.Errorf("", "expected an object, got null")
		return
	}
	if p.parent >= 0 {
		if t = c.member(i, r.Key); t == nil {
			return
		}
	}
	now := raw
	if r.Rewrite != nil {
		now = r.Rewrite(raw, func(s report.Severity, message string) { c.addAt(s, p.start, c.path(i), message) })
	}
	if want := mismatch(t, now); want != "" {
		c.addAt(report.Error, p.start, c.path(i), want+", got "+KindOf(now).String())
		now = "null"
	}
	if c.replace(p.start, p.end, now); now == raw && hasMembers(t) {
		c.types[i] = t
	}
}

// hasMembers reports whether members of the type are decoded one by one.
func hasMembers(t reflect.Type) bool {
	if t.Kind() == reflect.Struct {
		return len(fieldsOf(t)) > 0
	}
	return (t.Kind() == reflect.Map || t.Kind() == reflect.Slice) && !unmarshals(t)
}

// rule returns the rule for a place, or an empty one.
func (c *checker) rule(i int) Rule {
next:
	for _, r := range c.rules {
		at := i
		for _, step := range slices.Backward(r.steps) {
			p := c.places[at]
			if p.parent < 0 || step != "*" && (p.item || !strings.EqualFold(step, p.key)) {
				continue next
			}
			at = p.parent
		}
		if at == 0 {
			return r.Rule
		}
	}
	return Rule{}
}

// member returns the type of a member of an object or list, or nil if it is not decoded. It changes a known key, or an
// alias of one, to the spelling of its field.
func (c *checker) member(i int, name string) reflect.Type {
	p := &c.places[i]
	parent := c.types[p.parent]
	switch {
	case parent == nil:
		return nil
	case p.item:
		return pointed(parent.Elem())
	case parent.Kind() == reflect.Map:
		c.noteDuplicate(i)
		return pointed(parent.Elem())
	}
	fields := fieldsOf(parent)
	at := slices.IndexFunc(fields, func(f field) bool { return strings.EqualFold(f.name, cmp.Or(name, p.key)) })
	if at >= 0 && fields[at].exact && fields[at].name != p.key {
		c.replace(p.start, p.end, "null") // encoding/json would take it for the field
		at = -1
	}
	if at < 0 {
		c.warnUnknown(i, fields)
		return nil
	}
	if p.key != fields[at].name {
		p.key = fields[at].name
		c.replace(p.keyStart, p.keyEnd, strconv.Quote(p.key))
	}
	c.noteDuplicate(i)
	return pointed(fields[at].of)
}

// field is a struct field that encoding/json decodes, with its key.
type field struct {
	name  string
	of    reflect.Type
	exact bool // set by the tag `spelling:"exact"`: the case of the key matters
}

// fieldsOf returns the fields of a struct.
func fieldsOf(t reflect.Type) (all []field) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "-" && f.IsExported() {
			all = append(all, field{cmp.Or(name, f.Name), f.Type, f.Tag.Get("spelling") == "exact"})
		}
	}
	return all
}

func pointed(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

func unmarshals(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
}

// mismatch returns what was expected in place of a value, or "" if the value fits the type.
func mismatch(t reflect.Type, raw string) string {
	kind := KindOf(raw)
	if kind == Null {
		return ""
	}
	if unmarshals(t) && (kind != Object || !hasMembers(t)) {
		if err := json.Unmarshal([]byte(raw), reflect.New(t).Interface()); err != nil {
			return err.Error()
		}
		return ""
	}
	want, ok := "", true
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		want, ok = "expected an object", kind == Object
	case reflect.Slice:
		if want, ok = "expected a list", kind == List; t.Elem().Kind() == reflect.String {
			want = "expected a list of strings"
		}
	case reflect.String:
		want, ok = "expected a string", kind == String
	case reflect.Bool:
		want, ok = "expected a boolean", kind == Bool
	case reflect.Interface:
	default:
		want, ok = "expected a whole number", json.Unmarshal([]byte(raw), reflect.New(t).Interface()) == nil
	}
	if ok {
		return ""
	}
	return want
}

func (c *checker) noteDuplicate(i int) {
	m := member{c.places[i].parent, c.places[i].key}
	if first, duplicate := c.last[m]; duplicate {
		c.warnKey(first, "duplicate key: the last one counts, this one is ignored")
	}
	c.last[m] = i
}

// warnKey warns of a key, spelled as in the document.
func (c *checker) warnKey(i int, message string) {
	p := c.places[i]
	var key string
	_ = json.Unmarshal(c.text[p.keyStart:p.keyEnd], &key) // a string of a text that is JSON
	c.addAt(report.Warning, p.keyStart, strings.TrimPrefix(c.path(p.parent)+Key(key), "."), message)
}

// maxEdits bounds the edit distance between a misspelled key and a known one.
const maxEdits = 2

// warnUnknown warns of an unknown key and names the most similar known one. It is likely to be meant if the distance is
// at most maxEdits and a third of its length.
func (c *checker) warnUnknown(i int, known []field) {
	key := c.places[i].key
	best, distance := "", maxKey
	for _, k := range known {
		if len(key) > maxKey || c.unknown == Tolerate && max(len(k.name)-len(key), len(key)-len(k.name)) > maxEdits {
			continue // not likely, and nothing else is asked for
		}
		if d := spelling.Distance(strings.ToLower(key), strings.ToLower(k.name)); d < distance {
			best, distance = k.name, d
		}
	}
	switch {
	case best != "" && distance <= maxEdits && distance*3 <= len(best):
		c.warnKey(i, "unknown key; did you mean "+best+"?")
	case c.unknown == Warn && best != "":
		c.warnKey(i, "unknown key, ignored; the nearest known key is "+best)
	case c.unknown == Warn:
		c.warnKey(i, "unknown key, ignored")
	}
}
