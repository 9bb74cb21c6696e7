package value

import (
	"encoding/json"
	"strings"
	"testing"
)

// document has a value of each type.
type document struct {
	Name  Name     `json:"name,omitzero"`
	Addr  Addr     `json:"addr,omitzero"`
	Bits  Bits     `json:"bits,omitzero"`
	MAC   MAC      `json:"mac,omitzero"`
	Group Group    `json:"group,omitzero"`
	Notes Metadata `json:"notes,omitempty"`
}

func TestValues(t *testing.T) {
	long := strings.Repeat("x", maxName+1)
	for given, want := range map[string]string{ // empty: it is refused
		`{}`: `{}`,
		`{"name":"","addr":"","bits":"","mac":"","group":null,"notes":null}`: `{}`,
		`{"name":null,"addr":null,"bits":null,"mac":null}`:                   `{}`,

		`{"name":"web 1.ü-_:"}`:      `{"name":"web 1.ü-_:"}`,
		`{"name":".."}`:              ``,
		`{"name":"a/b"}`:             ``,
		`{"name":"a\u0000"}`:         ``,
		`{"name":"a\nb"}`:            ``,
		`{"name":"\u001b[2J"}`:       ``,
		`{"name":"\u202ea"}`:         ``,
		"{\"name\":\"\xff\"}":        ``,
		`{"name":"` + long + `"}`:    ``,
		`{"name":7}`:                 ``,
		`{"addr":"10.0.0.1"}`:        `{"addr":"10.0.0.1"}`,
		`{"addr":"FD00:0::1"}`:       `{"addr":"fd00::1"}`,
		`{"addr":"fe80::1%/../x"}`:   ``,
		`{"addr":"fe80::1%eth0"}`:    ``,
		`{"addr":"::ffff:10.0.0.1"}`: ``,
		`{"addr":"10.0.0.1/24"}`:     ``,
		`{"addr":"010.0.0.1"}`:       ``,
		`{"addr":"10.0.0.1\n"}`:      ``,

		`{"bits":"32"}`:  `{"bits":"32"}`,
		`{"bits":"129"}`: ``,
		`{"bits":"-1"}`:  ``,
		`{"bits":"x"}`:   ``,
		`{"bits":32}`:    ``,

		`{"mac":"02:AA:00:00:00:01"}`:       `{"mac":"02:aa:00:00:00:01"}`,
		`{"mac":"01:00:00:00:00:01"}`:       ``,
		`{"mac":"02:00:00:00:00:01:02:03"}`: ``,
		`{"mac":"../../x"}`:                 ``,

		`{"group":1}`:     `{"group":1}`,
		`{"group":"one"}`: `{"group":"one"}`,
		`{"group":"a/b"}`: ``,
		`{"group":1.5}`:   ``,
		`{"group":[]}`:    ``,

		`{"notes":{"a":"b","n":1,"o":{"x":true}}}`:           `{"notes":{"a":"b","n":"1","o":"{\"x\":true}"}}`,
		`{"notes":{"a":"x\u001b[2J\ny"}}`:                    `{"notes":{"a":"x�[2J�y"}}`,
		`{"notes":{"` + long + `":"a"}}`:                     ``,
		`{"notes":{"a":"` + strings.Repeat(long, 20) + `"}}`: ``,
		`{"notes":[]}`: ``,
	} {
		var d document
		err := json.Unmarshal([]byte(given), &d)
		if want == "" {
			if err == nil {
				t.Errorf("%.100q is accepted as %+v", given, d)
			}
			continue
		}
		got, marshalErr := json.Marshal(d)
		if err != nil || marshalErr != nil || string(got) != want {
			t.Errorf("%s becomes %s, %v, %v; want %s", given, got, err, marshalErr, want)
		}
		var again document
		if err := json.Unmarshal(got, &again); err != nil {
			t.Errorf("%s cannot be read back: %v", got, err)
		}
	}
}
