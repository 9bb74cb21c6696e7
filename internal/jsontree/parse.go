// Package jsontree parses JSON into a tree that knows the line and column of everything, for
// documents whose mistakes an operator has to find: agent.json, settings, updates. Keys are
// looked up without regard to case, as upstream does; duplicate keys, trailing and missing
// commas are reported and parsing goes on, so that one look shows all that is wrong. Size and
// depth are limited, and no message ever contains a value of the document.
//
// It is not for the wire: encoding/json is faster where nobody asks for a position.
package jsontree

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"cambium/internal/report"
)

// Limits of a document. A settings document is a few KiB; certificates and trusted CA bundles
// may make it some hundred.
const (
	MaxSize  = 16 << 20
	MaxDepth = 100
)

// mark is the byte order mark that some editors leave; it is skipped and counts for no column.
var mark = []byte("\xef\xbb\xbf")

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
	// Offset and End delimit the value in the document, in bytes.
	Offset, End int
	// Text is the decoded string, or the number as it was written.
	Text    string
	True    bool
	Items   []*Node
	Members []Member
}

// Member is one key of an object and its value, in the order of the document.
type Member struct {
	Key    string
	Offset int
	Value  *Node
}

// Document is a parsed document and where its problems are reported.
type Document struct {
	Name   string
	Data   []byte
	report *report.Report
	lines  []int // offsets of line starts, made when first needed
}

// Parse reads data, reports problems under name and returns the root. The root is absent when
// the document is so broken that there is no tree.
func Parse(name string, data []byte, into *report.Report) Value {
	d := &Document{Name: name, Data: data, report: into}
	root := Value{doc: d, path: &path{}}
	if len(data) > MaxSize {
		into.Add(report.Entry{Severity: report.Error, File: name, Message: fmt.Sprintf("document is larger than %d MiB", MaxSize>>20)})
		return root
	}
	p := parser{doc: d, data: data}
	if bytes.HasPrefix(data, mark) {
		p.pos = len(mark)
	}
	p.space()
	if p.pos == len(data) {
		p.fail(p.pos, "document is empty")
		return root
	}
	node, ok := p.value(0)
	if !ok {
		return root
	}
	p.space()
	if p.pos < len(data) {
		p.fail(p.pos, "expected the end of the document")
		return root
	}
	root.node = node
	return root
}

type parser struct {
	doc  *Document
	data []byte
	pos  int
}

func (p *parser) fail(offset int, message string) {
	line, column := p.doc.position(offset)
	p.doc.report.Add(report.Entry{Severity: report.Error, File: p.doc.Name, Line: line, Column: column, Message: message})
}

func (p *parser) space() {
	for p.pos < len(p.data) {
		switch p.data[p.pos] {
		case ' ', '\t', '\r', '\n':
			p.pos++
		default:
			return
		}
	}
}

// peek returns the next byte that is not white space, or 0 at the end.
func (p *parser) peek() byte {
	p.space()
	if p.pos == len(p.data) {
		return 0
	}
	return p.data[p.pos]
}

func (p *parser) value(depth int) (*Node, bool) {
	if depth > MaxDepth {
		p.fail(p.pos, fmt.Sprintf("nested deeper than %d levels", MaxDepth))
		return nil, false
	}
	n := &Node{}
	c := p.peek()
	n.Offset = p.pos
	ok := true
	switch {
	case c == '{':
		n.Kind = Object
		ok = p.object(n, depth)
	case c == '[':
		n.Kind = List
		ok = p.list(n, depth)
	case c == '"':
		n.Kind = String
		n.Text, ok = p.text()
	case c == '-' || c >= '0' && c <= '9':
		n.Kind = Number
		n.Text, ok = p.number()
	case p.word("true"):
		n.Kind, n.True = Bool, true
	case p.word("false"):
		n.Kind = Bool
	case p.word("null"):
		n.Kind = Null
	case c == 0 && p.pos == len(p.data):
		p.fail(p.pos, "document ends early: expected a value")
		ok = false
	default:
		p.fail(p.pos, "expected a value")
		ok = false
	}
	n.End = p.pos
	return n, ok
}

func (p *parser) word(w string) bool {
	if len(p.data)-p.pos < len(w) || string(p.data[p.pos:p.pos+len(w)]) != w {
		return false
	}
	p.pos += len(w)
	return true
}

func (p *parser) object(n *Node, depth int) bool {
	p.pos++
	if p.peek() == '}' {
		p.pos++
		return true
	}
	for {
		if p.peek() != '"' {
			return p.unexpected("a key in double quotes")
		}
		m := Member{Offset: p.pos}
		var ok bool
		if m.Key, ok = p.text(); !ok {
			return false
		}
		if p.peek() != ':' {
			return p.unexpected("a colon behind the key")
		}
		p.pos++
		if m.Value, ok = p.value(depth + 1); !ok {
			return false
		}
		n.Members = append(n.Members, m)
		if done, ok := p.next('}'); done || !ok {
			return ok
		}
	}
}

func (p *parser) list(n *Node, depth int) bool {
	p.pos++
	if p.peek() == ']' {
		p.pos++
		return true
	}
	for {
		item, ok := p.value(depth + 1)
		if !ok {
			return false
		}
		n.Items = append(n.Items, item)
		if done, ok := p.next(']'); done || !ok {
			return ok
		}
	}
}

// next goes on to the next member or item, or past the end. A comma before the end and a comma
// that is missing are reported and forgiven, so that what follows is checked too.
func (p *parser) next(end byte) (done, ok bool) {
	last := p.pos
	switch c := p.peek(); {
	case c == end:
		p.pos++
		return true, true
	case c == ',':
		comma := p.pos
		p.pos++
		if p.peek() == end {
			p.fail(comma, fmt.Sprintf("trailing comma before %q", string(end)))
			p.pos++
			return true, true
		}
		return false, true
	case c == '"' && end == '}':
		p.fail(last, "missing comma behind this value")
		return false, true
	}
	if end == '}' {
		return false, p.unexpected(`a comma or "}"`)
	}
	return false, p.unexpected(`a comma or "]"`)
}

func (p *parser) unexpected(what string) bool {
	if p.pos == len(p.data) {
		p.fail(p.pos, "document ends early: expected "+what)
	} else {
		p.fail(p.pos, "expected "+what)
	}
	return false
}

func (p *parser) number() (string, bool) {
	start := p.pos
	digits := func() (n int) {
		for p.pos < len(p.data) && p.data[p.pos] >= '0' && p.data[p.pos] <= '9' {
			p.pos++
			n++
		}
		return n
	}
	if p.data[p.pos] == '-' {
		p.pos++
	}
	first := p.pos
	n := digits()
	bad := n == 0 || n > 1 && p.data[first] == '0'
	if p.pos < len(p.data) && p.data[p.pos] == '.' {
		p.pos++
		bad = digits() == 0 || bad
	}
	if p.pos < len(p.data) && (p.data[p.pos] == 'e' || p.data[p.pos] == 'E') {
		p.pos++
		if p.pos < len(p.data) && (p.data[p.pos] == '+' || p.data[p.pos] == '-') {
			p.pos++
		}
		bad = digits() == 0 || bad
	}
	if bad {
		p.fail(start, "malformed number")
		return "", false
	}
	return string(p.data[start:p.pos]), true
}

// text reads a string. Bytes that are no UTF-8 become U+FFFD, as in encoding/json.
func (p *parser) text() (string, bool) {
	start := p.pos
	p.pos++
	from := p.pos
	for p.pos < len(p.data) { // without escapes, which is nearly always, the text is a slice
		switch c := p.data[p.pos]; {
		case c == '"':
			s := string(p.data[from:p.pos])
			p.pos++
			return s, true
		case c == '\\' || c < ' ' || c >= utf8.RuneSelf:
			return p.escaped(start, from)
		}
		p.pos++
	}
	p.fail(start, "string is not closed")
	return "", false
}

func (p *parser) escaped(start, from int) (string, bool) {
	out := append([]byte(nil), p.data[from:p.pos]...)
	for p.pos < len(p.data) {
		c := p.data[p.pos]
		switch {
		case c == '"':
			p.pos++
			return string(out), true
		case c == '\\':
			r, ok := p.escape()
			if !ok {
				return "", false
			}
			out = utf8.AppendRune(out, r)
		case c < ' ':
			p.fail(p.pos, "line break or control character inside a string")
			return "", false
		default:
			r, size := utf8.DecodeRune(p.data[p.pos:])
			out = utf8.AppendRune(out, r)
			p.pos += size
		}
	}
	p.fail(start, "string is not closed")
	return "", false
}

func (p *parser) escape() (rune, bool) {
	at := p.pos
	p.pos++
	if p.pos == len(p.data) {
		p.fail(at, "string is not closed")
		return 0, false
	}
	c := p.data[p.pos]
	p.pos++
	switch c {
	case '"', '\\', '/':
		return rune(c), true
	case 'b':
		return '\b', true
	case 'f':
		return '\f', true
	case 'n':
		return '\n', true
	case 'r':
		return '\r', true
	case 't':
		return '\t', true
	case 'u':
		r, ok := p.hex4()
		if !ok {
			break
		}
		if !utf16.IsSurrogate(r) {
			return r, true
		}
		if p.pos+1 < len(p.data) && p.data[p.pos] == '\\' && p.data[p.pos+1] == 'u' {
			mark := p.pos
			p.pos += 2
			if low, ok := p.hex4(); ok {
				if both := utf16.DecodeRune(r, low); both != utf8.RuneError {
					return both, true
				}
			}
			p.pos = mark
		}
		return utf8.RuneError, true
	}
	p.fail(at, "unknown escape sequence inside a string")
	return 0, false
}

func (p *parser) hex4() (rune, bool) {
	if len(p.data)-p.pos < 4 {
		return 0, false
	}
	v, err := strconv.ParseUint(string(p.data[p.pos:p.pos+4]), 16, 32)
	if err != nil {
		return 0, false
	}
	p.pos += 4
	return rune(v), true
}
