// Package report collects everything that is wrong with a document, so that an operator sees
// all of it at once and where it stands. It is a leaf: decoders add entries, commands and the
// boot log print them. Messages never quote values of a document, because any of them may be a
// secret; the position leads the reader to it.
package report

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Severity tells errors, which make a document unusable, from warnings.
type Severity int

// Warning does not keep a document from being used; Error does.
const (
	Warning Severity = iota
	Error
)

// String returns the word used in printed entries.
func (s Severity) String() string {
	if s == Error {
		return "error"
	}
	return "warning"
}

// MarshalJSON writes the word.
func (s Severity) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// Entry is one finding. Line and Column start at 1; 0 means that the finding has no position,
// for example because it concerns something that is missing altogether.
type Entry struct {
	Severity Severity `json:"severity"`
	File     string   `json:"file"`
	Line     int      `json:"line,omitempty"`
	Column   int      `json:"column,omitempty"`
	Path     string   `json:"path,omitempty"`
	Message  string   `json:"message"`
}

// String prints the entry in the form that editors and compilers understand.
func (e Entry) String() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", e.Line, e.Column)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	b.WriteString(e.Severity.String())
	b.WriteString(": ")
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Message)
	return b.String()
}

// Report is a list of findings. The zero value is an empty one.
type Report struct{ Entries []Entry }

// Add appends one finding.
func (r *Report) Add(e Entry) { r.Entries = append(r.Entries, e) }

// Append takes over the findings of another report.
func (r *Report) Append(other Report) { r.Entries = append(r.Entries, other.Entries...) }

// Sort puts the findings in the order of the document; within one position, errors first.
func (r *Report) Sort() {
	slices.SortStableFunc(r.Entries, func(a, b Entry) int {
		if a.File != b.File {
			return strings.Compare(a.File, b.File)
		}
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		if a.Column != b.Column {
			return a.Column - b.Column
		}
		return int(b.Severity) - int(a.Severity)
	})
}

// Count returns the number of findings of a severity.
func (r Report) Count(s Severity) (n int) {
	for _, e := range r.Entries {
		if e.Severity == s {
			n++
		}
	}
	return n
}

// Failed reports whether there is an error among the findings.
func (r Report) Failed() bool { return r.Count(Error) > 0 }

// String prints one finding per line.
func (r Report) String() string {
	lines := make([]string, len(r.Entries))
	for i, e := range r.Entries {
		lines[i] = e.String()
	}
	return strings.Join(lines, "\n")
}

// Err returns nil, or an invalid that prints every error of the report.
func (r Report) Err() error {
	var only Report
	for _, e := range r.Entries {
		if e.Severity == Error {
			only.Add(e)
		}
	}
	if len(only.Entries) == 0 {
		return nil
	}
	return &invalid{Report: only}
}

// invalid is the error form of a report that holds errors. A caller that acts on it asks the
// sender of the document again or falls back to an older copy.
type invalid struct{ Report Report }

// Error lists every finding, separated by semicolons, so that it fits in one log line.
func (i *invalid) Error() string { return strings.ReplaceAll(i.Report.String(), "\n", "; ") }
