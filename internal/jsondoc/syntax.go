// Package jsondoc reads documents in which an operator must find errors: agent.json, settings, updates. encoding/json
// decodes them into structs. This package adds what it lacks: it finds all errors in one run, with line and column,
// warns of misspelled and duplicate keys, and can rewrite forms that other agents accept before they are decoded. It
// limits size and depth, and its messages never contain a value of the document.
//
// Do not use it for messages: encoding/json is faster if positions are not needed.
package jsondoc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"cambium/internal/report"
)

// Limits of a document. Settings have a few KiB; certificates and bundles of trusted CAs may add some hundred.
const (
	MaxSize  = 16 << 20
	maxDepth = 100
	// maxRepairs bounds how often a document is parsed again after a comma was repaired.
	maxRepairs = 20
)

// byteOrderMark is at the start of texts from some editors. It is skipped, and columns do not count it.
var byteOrderMark = []byte("\xef\xbb\xbf")

// Document is a parsed document and its errors.
type Document struct {
	// Report has the findings so far.
	Report report.Report

	name   string
	text   []byte
	places []place
	lines  []int          // offsets of line starts, computed on first use
	paths  map[string]int // places by path, computed on first use
}

// Read parses data and reports syntax errors; name stands for the file in messages. If the syntax cannot be repaired,
// the document has no values.
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

// check reports all syntax errors. It returns the text with repaired commas and all values at their offsets, and
// whether that text is JSON.
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

// repairableComma finds a trailing or missing comma before the character at offset, where encoding/json has failed. It
// returns the position and the replacement. A missing comma can only replace white space, so that offsets do not
// change.
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

// explanations maps parts of encoding/json's errors to our messages. The former quote a character of the document,
// which may be part of a password.
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
