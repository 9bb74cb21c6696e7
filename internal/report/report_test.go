package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
)

func TestReport(t *testing.T) {
	var r Report
	if r.Err() != nil || r.Failed() || r.String() != "" {
		t.Error("an empty report is not good")
	}
	r.Add(Entry{Severity: Warning, File: "f", Line: 3, Column: 1, Path: "c", Message: "odd"})
	if r.Err() != nil {
		t.Error("a warning fails")
	}
	r.Append(Report{Entries: []Entry{
		{Severity: Error, File: "f", Line: 2, Column: 9, Path: "b", Message: "bad"},
		{Severity: Warning, File: "f", Line: 2, Column: 1, Message: "first"},
		{Severity: Error, File: "f", Message: "whole file"},
		{Severity: Error, File: "e", Line: 9, Column: 1, Message: "other file"},
		{Severity: Error, File: "f", Line: 3, Column: 1, Path: "c", Message: "worse"},
	}})
	r.Sort()
	want := `e:9:1: error: other file
f: error: whole file
f:2:1: warning: first
f:2:9: error: b: bad
f:3:1: error: c: worse
f:3:1: warning: c: odd`
	if got := r.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	var invalid *invalid
	err := fmt.Errorf("load: %w", r.Err())
	if !errors.As(err, &invalid) || invalid.Report.Count(Error) != 4 || invalid.Report.Count(Warning) != 0 {
		t.Errorf("got %v, want the four errors", err)
	}
	if got, want := err.Error(), "load: e:9:1: error: other file; f: error: whole file; f:2:9: error: b: bad; f:3:1: error: c: worse"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	data, err := json.Marshal(r.Entries[3])
	if want := `{"severity":"error","file":"f","line":2,"column":9,"path":"b","message":"bad"}`; err != nil ||
		string(data) != want {
		t.Errorf("got %s, %v, want %s", data, err, want)
	}
}
