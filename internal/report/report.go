// Package report collects all errors of a document with their positions, so that an operator sees them at once.
// Decoders add entries; commands and the boot log print them. Messages never quote values of a document, because any of
// them may be a secret. The position shows where to look.
package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Severity distinguishes errors from warnings.
type Severity int

// An Error makes a document unusable, a Warning does not.
const (
	Warning Severity = iota
	Error
)

// String returns the severity as a word.
func (s Severity) String() string {
	if s == Error {
		return "error"
	}
	return "warning"
}

// MarshalJSON encodes the word.
func (s Severity) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// Entry is one finding. Line and Column start at 1. They are 0 if the finding has no position, for example because
// something is missing.
type Entry struct {
	Severity Severity `json:"severity"`
	File     string   `json:"file"`
	Line     int      `json:"line,omitempty"`
	Column   int      `json:"column,omitempty"`
	Path     string   `json:"path,omitempty"`
	Message  string   `json:"message"`
}

// String formats the entry as compilers do, so that editors can find its position.
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

// Report is a list of findings.
type Report struct{ Entries []Entry }

// Add appends a finding.
func (r *Report) Add(e Entry) { r.Entries = append(r.Entries, e) }

// Append appends the findings of another report.
func (r *Report) Append(other Report) { r.Entries = append(r.Entries, other.Entries...) }

// Sort sorts the findings by position, and at the same position puts errors first.
func (r *Report) Sort() {
	slices.SortStableFunc(r.Entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(b.Severity, a.Severity))
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

// Failed reports whether there are errors.
func (r Report) Failed() bool { return r.Count(Error) > 0 }

// String formats the findings, one per line.
func (r Report) String() string {
	lines := make([]string, len(r.Entries))
	for i, e := range r.Entries {
		lines[i] = e.String()
	}
	return strings.Join(lines, "\n")
}

// Err returns an error with all errors of the report, or nil.
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

// invalid is a report with errors, as an error. Callers ask the sender of the document again, or use an older copy.
type invalid struct{ Report Report }

// Error lists all errors on one line, separated by semicolons.
func (i *invalid) Error() string { return strings.ReplaceAll(i.Report.String(), "\n", "; ") }
