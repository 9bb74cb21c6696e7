package jsondoc

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
		"{\"a\":1\n\"b\":2}": "f:1:7: error: missing comma after this value",
		"{\"a\":1,,}":        "f:1:8: error: expected a key in double quotes",
		"{a:1}":              "f:1:2: error: expected a key in double quotes",
		"{\"a\" 1}":          "f:1:6: error: expected a colon after the key",
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
		if got := Read("f", []byte(document)).Report.String(); got != want {
			t.Errorf("%.40q: got %s, want %s", document, got, want)
		}
	}
}

func TestTooLargeIsSaidAtOnce(t *testing.T) {
	d := Read("f", make([]byte, MaxSize+1))
	if len(d.Values()) != 0 || d.Report.String() != "f: error: document is larger than 16 MiB" {
		t.Errorf("got %d values, %s", len(d.Values()), d.Report)
	}
}

type sample struct {
	Text   string            `json:"text"`
	Number *uint8            `json:"number"`
	Yes    bool              `json:"yes"`
	List   []string          `json:"list"`
	Object map[string]nested `json:"object"`
	Any    any               `json:"any"`
}

type nested struct {
	X    string
	Kind string `spelling:"exact"`
}

func TestForgivenMistakesLetTheRestBeChecked(t *testing.T) {
	var s sample
	d, _ := Decode("f", []byte("{\"number\": 1\n\"list\": [\"a\",],\n\"TEXT\": \"t\",}"), &s, Tolerate)
	if s.Text != "t" || d.Report.Count(report.Error) != 3 {
		t.Errorf("got %+v and the report %s; want all three commas reported and the text read", s, d.Report)
	}
}

// What encoding/json refuses is reported at every place; the rest is decoded, and the defaults stay.
func TestEveryMistakeOfType(t *testing.T) {
	s := sample{Text: "default", Yes: true}
	d, text := Decode("f", []byte(`{"TEXT":1,"number":300,"yes":null,"list":["a",null,2],"any":{"x":[1]},
 "object":{"deep key":{"x":true,"kind":1,"Kind":"k"},"n":null,"l":[]},"more":{"kept":1e400}}`), &s, Tolerate)
	want := `f:1:9: error: text: expected a string, got a number
f:1:20: error: number: expected a whole number, got a number
f:1:52: error: list[2]: expected a string, got a number
f:2:28: error: object["deep key"].X: expected a string, got a boolean
f:2:33: warning: object["deep key"].kind: unknown key; did you mean Kind?
f:2:67: error: object.l: expected an object, got a list`
	if got := d.Findings().String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if s.Text != "default" || !s.Yes || !reflect.DeepEqual(s.List, []string{"a", "", ""}) ||
		s.Object["deep key"].Kind != "k" || len(s.Object) != 3 {
		t.Errorf("got %+v", s)
	}
	if want := `{"text":null,"number":null,"yes":null,"list":["a",null,null],"any":{"x":[1]},"object":{"deep key":` +
		`{"X":null,"kind":null,"Kind":"k"},"n":null,"l":null},"more":{"kept":1e400}}`; string(text) != want {
		t.Errorf("the text became\n%s\nwant\n%s", text, want)
	}
}

func TestRules(t *testing.T) {
	var s sample
	d, text := Decode("f", []byte(`{"Words":7,"object":{"a":{"x":1,"other":2}},"x":1}`), &s, Tolerate,
		Rule{Path: "words", Key: "text", Rewrite: func(raw string, _ func(report.Severity, string)) string {
			return `"` + raw + `"`
		}},
		Rule{Path: "object.*.x", Rewrite: func(raw string, say func(report.Severity, string)) string {
			say(report.Warning, "odd")
			return `"x"`
		}})
	if s.Text != "7" || s.Object["a"].X != "x" ||
		string(text) != `{"text":"7","object":{"a":{"X":"x","other":2}},"x":1}` {
		t.Errorf("got %+v from %s", s, text)
	}
	if got := d.Findings().String(); got != "f:1:31: warning: object.a.X: odd" {
		t.Errorf("report is %s", got)
	}
}

// One mistake is reported once, and what is missing where it should be.
func TestErrorsOfTheContent(t *testing.T) {
	var s sample
	d, _ := Decode("f", []byte(`{"object":{"a":5,"ab":{}},
"list":[]}`), &s, Tolerate)
	d.Errorf("object.a.X", "missing")
	d.Errorf("object.ab.X", "missing")
	d.Errorf("text", "missing")
	d.Warnf("list", "empty")
	want := `f:1:1: error: text: missing
f:1:16: error: object.a: expected an object, got a number
f:1:23: error: object.ab.X: missing
f:2:8: warning: list: empty`
	if got := d.Findings().String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestUnknownKeys(t *testing.T) {
	parse := func(u Unknown) string {
		var s struct {
			UseRegistry int
			Type        int `spelling:"exact"`
		}
		d, _ := Decode("f", []byte(`{"UseRegistry":1,"useregistri":1,"Color":1,"USEREGISTRY":2,"type":3}`), &s, u)
		if s.UseRegistry != 2 || s.Type != 0 {
			t.Errorf("got %+v", s)
		}
		return d.Findings().String()
	}
	want := `f:1:2: warning: UseRegistry: duplicate key: the last one counts, this one is ignored
f:1:18: warning: useregistri: unknown key; did you mean UseRegistry?
f:1:60: warning: type: unknown key; did you mean Type?`
	if got := parse(Tolerate); got != want {
		t.Errorf("tolerating: got\n%s\nwant\n%s", got, want)
	}
	if got := parse(Warn); !strings.Contains(got,
		"f:1:34: warning: Color: unknown key, ignored; the nearest known key is") {
		t.Errorf("warning: got\n%s", got)
	}
}

// FuzzDecode compares with encoding/json alone: the same documents are good, with the same values, and the text that is
// returned means the same.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{"text":"\u00e9\ud83d\ude00\n","number":255,"yes":true,"list":["a",null],"any":[1e400]}`,
		`{"text":"a","TEXT":null,"object":{"a":{"text":"x"},"a":{}},"Object":{"b":null}}`, `{"number":-1,"yes":0}`,
		`{"text":1,}`, "\"\xff\"",
		`{"te\u0078t":"\ud800"}`, "[[[[", `{"a":1 "b":2}`, ``, `01`, `null`, `{"list":[[]],"ob\u212aect":{}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		type plain struct {
			Text   string            `json:"text"`
			Number *uint8            `json:"number"`
			Yes    bool              `json:"yes"`
			List   []string          `json:"list"`
			Object map[string]sample `json:"object"`
			Any    json.RawMessage   `json:"any"`
		}
		var got, again, want plain
		d, text := Decode("f", data, &got, Warn)
		for _, e := range d.Report.Entries {
			if e.Line < 1 || e.Column < 1 || e.Line > bytes.Count(data, []byte("\n"))+1 || e.Column > len(data)+1 {
				t.Fatalf("%q: impossible place %d:%d", data, e.Line, e.Column)
			}
		}
		if bytes.HasPrefix(data, byteOrderMark) || strings.Contains(d.Report.String(), "nested deeper") {
			return
		}
		good := json.Unmarshal(data, &want) == nil && string(bytes.TrimSpace(data)) != "null"
		if good == d.Report.Failed() {
			t.Fatalf("%q: encoding/json accepts: %v, here: %s", data, good, d.Report)
		}
		if !good {
			return
		}
		if err := json.Unmarshal(text, &again); err != nil {
			t.Fatalf("%q became %q: %v", data, text, err)
		}
		for _, p := range []*plain{&got, &want, &again} {
			if p.Any != nil {
				var compact bytes.Buffer
				if err := json.Compact(&compact, p.Any); err != nil {
					t.Fatal(err)
				}
				p.Any = compact.Bytes()
			}
		}
		if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(again, want) {
			t.Fatalf("%q: got %#v and again %#v, want %#v", data, got, again, want)
		}
	})
}
