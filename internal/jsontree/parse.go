// Package jsontree parses JSON into a tree that knows the line and column of everything, for
// documents whose mistakes an operator has to find: agent.json, settings, updates. encoding/json
// reads the document; this package adds where each value stands, looks keys up without regard to
// case as upstream does, warns of duplicate and unknown keys, and goes on behind a superfluous or
// missing comma so that one run shows all mistakes. Size and depth are limited, and no message
// ever contains a value of the document.
//
// It is not for the wire: encoding/json alone is faster where no position is needed.
package jsontree

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"cambium/internal/report"
)

// Limits of a document. A settings document is a few KiB; certificates and trusted CA bundles
// may make it some hundred.
const (
	MaxSize  = 16 << 20
	maxDepth = 100
	// maxRepairs bounds how often a document is parsed again after a repaired comma.
	maxRepairs = 20
)

// byteOrderMark is what some editors leave at the start; it is skipped and counts for no column.
var byteOrderMark = []byte("\xef\xbb\xbf")

// Kind is the type of a JSON value.
type Kind uint8

// The kinds of JSON values. Absent is a member that is not there.
const (
	Absent Kind = iota
	Null
	Bool
	Number
	String
	List
	Object
)

// String names the kind with its article, as messages need it.
func (k Kind) String() string {
	return [...]string{"nothing", "null", "a boolean", "a number", "a string", "a list", "an object"}[k]
}

// Node is one value of the tree.
type Node struct {
	Kind Kind
	// Text is the decoded string, or the number as it was written.
	Text    string
	True    bool
	Items   []*Node
	Members []Member

	start, end int // in the document, in bytes
}

// Member is one key of an object and its value, in the order of the document.
type Member struct {
	Key   string
	Value *Node

	start int // of the key
}

// document is a parsed document and where its problems are reported.
type document struct {
	name   string
	data   []byte
	report *report.Report
	lines  []int // offsets of line starts, computed on first use
}

// Parse reads data, reports problems under name and returns the root. The root is absent when
// the document is so broken that there is no tree.
func Parse(name string, data []byte, into *report.Report) Value {
	d := &document{name: name, data: bytes.TrimPrefix(data, byteOrderMark), report: into}
	root := Value{doc: d, path: &path{}}
	if len(data) > MaxSize {
		into.Add(report.Entry{Severity: report.Error, File: name, Message: fmt.Sprintf("document is larger than %d MiB", MaxSize>>20)})
		return root
	}
	if text, ok := d.check(); ok {
		b := builder{doc: d, text: text}
		if node, ok := b.value(0); ok {
			root.node = node
		}
	}
	return root
}

func (d *document) fail(offset int, message string) {
	line, column := d.position(offset)
	d.report.Add(report.Entry{Severity: report.Error, File: d.name, Line: line, Column: column, Message: message})
}

// check reports what is wrong with the syntax. It returns the text with its commas repaired, every
// value still at its offset, and whether that text is JSON.
func (d *document) check() (text []byte, ok bool) {
	text = d.data
	for repairs := 0; ; repairs++ {
		err := json.Unmarshal(text, new(json.RawMessage))
		if err == nil {
			return text, true
		}
		offset := len(text)
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && !strings.Contains(err.Error(), "unexpected end") {
			offset = int(syntax.Offset) - 1
		}
		at, comma, message := repairableComma(text, offset, err)
		if message == "" || repairs == maxRepairs {
			d.fail(offset, d.explain(err))
			return nil, false
		}
		d.fail(at, message)
		text = bytes.Clone(text)
		text[at] = comma
	}
}

// repairableComma finds a trailing or missing comma in front of the character at offset, at which
// encoding/json has failed: its place, and its replacement. A missing comma can take the place of
// white space only, so that nothing moves.
func repairableComma(text []byte, offset int, err error) (at int, replacement byte, message string) {
	if offset == len(text) {
		return 0, 0, ""
	}
	before := bytes.TrimRight(text[:offset], " \t\r\n")
	last := len(before) - 1
	switch next := text[offset]; {
	case last >= 0 && before[last] == ',' && (next == '}' || next == ']'):
		return last, ' ', fmt.Sprintf("trailing comma before %q", string(next))
	case strings.Contains(err.Error(), "after object key:value pair") && next == '"' && last+1 < offset:
		return last + 1, ',', "missing comma behind this value"
	}
	return 0, 0, ""
}

// explanations are messages by what encoding/json says. Its own messages quote a character of the
// document, which may be one of a password.
var explanations = []struct{ library, ours string }{
	{"unexpected end", "document ends early"},
	{"looking for beginning of object key string", "expected a key in double quotes"},
	{"looking for beginning of value", "expected a value"},
	{"after object key:value pair", `expected a comma or "}"`},
	{"after object key", "expected a colon behind the key"},
	{"after array element", `expected a comma or "]"`},
	{"after top-level value", "expected the end of the document"},
	{"in string literal", "line break or control character inside a string"},
	{"in string escape code", "unknown escape sequence inside a string"},
	{"hexadecimal character escape", "unknown escape sequence inside a string"},
	{"numeric literal", "malformed number"},
	{"in literal", "expected a value"},
	{"exceeded max depth", tooDeep},
}

var tooDeep = fmt.Sprintf("nested deeper than %d levels", maxDepth)

func (d *document) explain(err error) string {
	if len(bytes.TrimSpace(d.data)) == 0 {
		return "document is empty"
	}
	for _, e := range explanations {
		if strings.Contains(err.Error(), e.library) {
			return e.ours
		}
	}
	return "not valid JSON"
}

// builder makes the tree of a text that encoding/json has accepted, so that every value begins
// and ends where its first character says.
type builder struct {
	doc  *document
	text []byte
	pos  int
}

// next skips white space, commas and colons, and returns the character behind them.
func (b *builder) next() byte {
	for strings.IndexByte(" \t\r\n,:", b.text[b.pos]) >= 0 {
		b.pos++
	}
	return b.text[b.pos]
}

func (b *builder) value(depth int) (*Node, bool) {
	first := b.next()
	n := &Node{start: b.pos}
	if depth > maxDepth {
		b.doc.fail(b.pos, tooDeep)
		return nil, false
	}
	ok := true
	switch first {
	case '{':
		n.Kind = Object
		ok = b.children(n, '}', depth)
	case '[':
		n.Kind = List
		ok = b.children(n, ']', depth)
	case '"':
		n.Kind, n.Text = String, b.string()
	case 't', 'f':
		n.Kind, n.True = Bool, first == 't'
		b.word()
	case 'n':
		n.Kind = Null
		b.word()
	default:
		n.Kind, n.Text = Number, b.word()
	}
	n.end = b.pos
	return n, ok
}

func (b *builder) children(n *Node, end byte, depth int) bool {
	for b.pos++; b.next() != end; {
		m := Member{start: b.pos}
		if n.Kind == Object {
			m.Key = b.string()
		}
		var ok bool
		if m.Value, ok = b.value(depth + 1); !ok {
			return false
		}
		if n.Kind == Object {
			n.Members = append(n.Members, m)
		} else {
			n.Items = append(n.Items, m.Value)
		}
	}
	b.pos++
	return true
}

// word reads a number, true, false or null.
func (b *builder) word() string {
	start := b.pos
	for b.pos < len(b.text) && strings.IndexByte(" \t\r\n,]}", b.text[b.pos]) < 0 {
		b.pos++
	}
	return string(b.text[start:b.pos])
}

func (b *builder) string() string {
	start := b.pos
	for b.pos++; b.text[b.pos] != '"'; b.pos++ {
		if b.text[b.pos] == '\\' {
			b.pos++
		}
	}
	b.pos++
	var text string
	_ = json.Unmarshal(b.text[start:b.pos], &text) // a string of a text that is JSON
	return text
}
