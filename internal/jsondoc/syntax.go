// Package jsondoc reads documents whose mistakes an operator has to find: agent.json, settings, updates.
// encoding/json decodes them into structs. This package adds what it lacks: every mistake is found in one run and has
// line and column, misspelled and duplicate keys are warned of, and what other agents accept in another form can be
// rewritten before it is decoded. Size and depth are limited, and no message ever contains a value of the document.
//
// It is not for the wire: encoding/json alone is faster where no position is needed.
package jsondoc

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

// byteOrderMark is written by some editors at the start of a text; it is skipped and counts for no column.
var byteOrderMark = []byte("\xef\xbb\xbf")

// Document is a text that was read, and what was found wrong with it.
type Document struct {
	// Report has the findings so far.
	Report report.Report

	name   string
	text   []byte
	places []place
	lines  []int          // offsets of line starts, computed on first use
	paths  map[string]int // places by path, computed on first use
}

// Read reads data and reports problems of its syntax under name. A document so broken that nothing can be said about
// its content has no value.
func Read(name string, data []byte) *Document {
	d := &Document{name: name, text: bytes.TrimPrefix(data, byteOrderMark)}
	if len(data) > MaxSize {
		d.Report.Add(report.Entry{Severity: report.Error, File: name,
			Message: fmt.Sprintf("document is larger than %d MiB", MaxSize>>20)})
		return d
	}
	if text, ok := d.check(); ok {
		d.text = text
		d.findPlaces()
	}
	return d
}

func (d *Document) fail(offset int, message string) {
	line, column := d.position(offset)
	d.Report.Add(report.Entry{Severity: report.Error, File: d.name, Line: line, Column: column, Message: message})
}

// check reports what is wrong with the syntax. It returns the text with its commas repaired, every
// value still at its offset, and whether that text is JSON.
func (d *Document) check() (text []byte, ok bool) {
	text = d.text
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
		return last + 1, ',', "missing comma after this value"
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
	{"after object key", "expected a colon after the key"},
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

func (d *Document) explain(err error) string {
	if len(bytes.TrimSpace(d.text)) == 0 {
		return "document is empty"
	}
	for _, e := range explanations {
		if strings.Contains(err.Error(), e.library) {
			return e.ours
		}
	}
	return "not valid JSON"
}
