package jsontree

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"cambium/internal/report"
)

func TestMistakesHaveTheirPlace(t *testing.T) {
	for document, want := range map[string]string{
		"":                   "f:1:1: error: document is empty",
		" \n ":               "f:2:2: error: document is empty",
		"{\"a\":1,\n}":       "f:1:7: error: trailing comma before \"}\"",
		"[1,2,]":             "f:1:5: error: trailing comma before \"]\"",
		"{\"a\":1\n\"b\":2}": "f:1:7: error: missing comma behind this value",
		"{\"a\":1,,}":        "f:1:8: error: expected a key in double quotes",
		"{a:1}":              "f:1:2: error: expected a key in double quotes",
		"{\"a\" 1}":          "f:1:6: error: expected a colon behind the key",
		"{\"a\":}":           "f:1:6: error: expected a value",
		"{\"a\":1":           "f:1:7: error: document ends early",
		"{":                  "f:1:2: error: document ends early",
		"[1 2]":              "f:1:4: error: expected a comma or \"]\"",
		"[1":                 "f:1:3: error: document ends early",
		"[":                  "f:1:2: error: document ends early",
		"\"abc":              "f:1:5: error: document ends early",
		"\"a\\":              "f:1:3: error: unknown escape sequence inside a string",
		"\"é\\q\"":           "f:1:4: error: unknown escape sequence inside a string",
		"\"\\u12G4\"":        "f:1:6: error: unknown escape sequence inside a string",
		"{\"é\":\"a\nb\"}":   "f:1:8: error: line break or control character inside a string",
		"01":                 "f:1:2: error: expected the end of the document",
		"-":                  "f:1:1: error: malformed number",
		"1.":                 "f:1:2: error: malformed number",
		"1e+":                "f:1:3: error: malformed number",
		"nul":                "f:1:3: error: expected a value",
		"{} x":               "f:1:4: error: expected the end of the document",
		strings.Repeat("[", 200) + strings.Repeat("]", 200): "f:1:102: error: nested deeper than 100 levels",
		"\xef\xbb\xbf{\"a\":tru}":                           "f:1:9: error: expected a value",
	} {
		var rep report.Report
		Parse("f", []byte(document), &rep)
		if got := rep.String(); got != want {
			t.Errorf("%.40q: got %s, want %s", document, got, want)
		}
	}
}

func TestTooLargeIsSaidAtOnce(t *testing.T) {
	var rep report.Report
	if v := Parse("f", make([]byte, MaxSize+1), &rep); v.Kind() != Absent || rep.String() != "f: error: document is larger than 16 MiB" {
		t.Errorf("got %v, %s", v.Kind(), rep)
	}
}

func TestForgivenMistakesLetTheRestBeChecked(t *testing.T) {
	var rep report.Report
	v := Parse("f", []byte("{\"a\": 1\n\"b\": [2,],\n\"c\": 3,}"), &rep)
	var c string
	v.Fields().Get("C").Scalar(&c)
	if c != "3" || rep.Count(report.Error) != 3 {
		t.Errorf("c is %q and the report %s; want all three commas reported and the value read", c, rep)
	}
}

func TestTypedAccess(t *testing.T) {
	var rep report.Report
	f := Parse("f", []byte(`{"text":"t","number":1.50,"yes":true,"list":["a",null],"mixed":["a",1],"null":null,"object":{"deep key":{"x":1}}}`), &rep).Fields()
	var (
		text, number = "default", ""
		yes          bool
		list, none   []string
	)
	f.Get("TEXT").Text(&text)
	f.Get("number").Scalar(&number)
	f.Get("yes").Bool(&yes)
	f.Get("list").Strings(&list)
	f.Get("null").Strings(&none)
	f.Get("absent").Text(&text)
	if text != "t" || number != "1.50" || !yes || !reflect.DeepEqual(list, []string{"a", ""}) || none != nil || len(rep.Entries) != 0 {
		t.Errorf("got %q %q %v %q %q, report %s", text, number, yes, list, none, rep)
	}
	f.Get("number").Text(&text)
	f.Get("text").Bool(&yes)
	f.Get("text").Fields()
	f.Get("mixed").Strings(&list)
	f.Get("yes").Items()
	for _, v := range f.Get("object").Fields().All() {
		v.Fields().Get("x").Text(&text)
	}
	want := `f:1:22: error: number: expected a string, got a number
f:1:9: error: text: expected a boolean, got a string
f:1:9: error: text: expected an object, got a string
f:1:69: error: mixed[1]: expected a string, got a number
f:1:33: error: yes: expected a list, got a boolean
f:1:110: error: object["deep key"].x: expected a string, got a number`
	if got := rep.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestUnknownKeys(t *testing.T) {
	parse := func(u Unknown) string {
		var rep report.Report
		f := Parse("f", []byte(`{"UseRegistry":1,"useregistri":1,"Color":1,"USEREGISTRY":2,"type":3}`), &rep).Fields()
		f.Get("UseRegistry")
		f.GetExact("Type")
		f.Done(u)
		return rep.String()
	}
	want := `f:1:18: warning: useregistri: unknown key; did you mean UseRegistry?
f:1:2: warning: UseRegistry: duplicate key: the last one counts, this one is ignored
f:1:60: warning: type: unknown key; did you mean Type?`
	if got := parse(Tolerate); got != want {
		t.Errorf("tolerating: got\n%s\nwant\n%s", got, want)
	}
	if got := parse(Warn); !strings.Contains(got, "f:1:34: warning: Color: unknown key, ignored; the nearest known key is") {
		t.Errorf("warning: got\n%s", got)
	}
}

// value turns a tree into what encoding/json makes of the same document.
func value(n *Node) any {
	switch n.Kind {
	case Bool:
		return n.True
	case Number:
		return json.Number(n.Text)
	case String:
		return n.Text
	case List:
		all := make([]any, len(n.Items))
		for i, item := range n.Items {
			all[i] = value(item)
		}
		return all
	case Object:
		all := make(map[string]any, len(n.Members))
		for _, m := range n.Members {
			all[m.Key] = value(m.Value)
		}
		return all
	}
	return nil
}

// FuzzParse compares with encoding/json: the same documents are good, with the same values.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{`{"a":[1,-2.5e3,"\u00e9\ud83d\ude00\n",true,false,null],"b":{}}`, `{"a":1,}`, "\"\xff\"", `"\ud800"`, `"\ud800\u0041"`, "[[[[", `{"a":1 "b":2}`, ``, `01`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var rep report.Report
		v := Parse("f", data, &rep)
		for _, e := range rep.Entries {
			if e.Line < 1 || e.Column < 1 || e.Line > bytes.Count(data, []byte("\n"))+1 || e.Column > len(data)+1 {
				t.Fatalf("%q: impossible place %d:%d", data, e.Line, e.Column)
			}
		}
		if bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
			return
		}
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		var want any
		good := d.Decode(&want) == nil && json.Valid(data)
		if good && rep.Failed() && strings.Contains(rep.String(), "nested deeper") {
			return
		}
		if good == rep.Failed() {
			t.Fatalf("%q: encoding/json accepts: %v, here: %s", data, good, rep)
		}
		if good && !reflect.DeepEqual(value(v.Node()), want) {
			t.Fatalf("%q: got %#v, want %#v", data, value(v.Node()), want)
		}
	})
}
