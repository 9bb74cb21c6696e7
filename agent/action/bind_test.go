package action

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
)

func raw(values ...string) (list []json.RawMessage) {
	for _, v := range values {
		list = append(list, json.RawMessage(v))
	}
	return list
}

type checked struct{ Name string }

func (c *checked) Check() error {
	if c.Name == "" {
		return errors.New("name is missing")
	}
	return nil
}

func TestBind(t *testing.T) {
	one := One(func(_ context.Context, s string) (string, error) { return "got " + s, nil })
	two := Two(func(_ context.Context, s string, m map[string]json.Number) (string, error) {
		return s + m["n"].String(), nil
	})
	maybe := MaybeOne(func(_ context.Context, s *string) (string, error) {
		if s == nil {
			return "none", nil
		}
		return *s, nil
	})
	one2 := OneMaybeTwo(func(_ context.Context, s string, n *uint64) (bool, error) { return n == nil, nil })
	check := One(func(_ context.Context, c checked) (string, error) { return c.Name, nil })
	for _, c := range []struct {
		name      string
		bind      Bind
		arguments []json.RawMessage
		want      any
		err       string
	}{
		{"one", one, raw(`"a"`), "got a", ""},
		{"surplus is ignored", one, raw(`"a"`, `"b"`, `{}`), "got a", ""},
		{"too few", two, raw(`"a"`), nil, "not enough arguments, expected 2, got 1"},
		{"none at all", one, nil, nil, "not enough arguments, expected 1, got 0"},
		{"wrong type", one, raw(`{"a":1}`), nil, "argument 1: unexpected object"},
		{"number content stays out of errors", one, raw(`12345678`), nil, "argument 1: unexpected number"},
		{"wrong second", two, raw(`"a"`, `[]`), nil, "argument 2: unexpected array"},
		{"null for a string", one, raw(`null`), nil, "argument 1: expected a value, got null"},
		{"null for a map", two, raw(`"a"`, `null`), "a", ""},
		{"numbers stay exact", two, raw(`"n="`, `{"n":18446744073709551615}`), "n=18446744073709551615", ""},
		{"optional absent", maybe, nil, "none", ""},
		{"optional null", maybe, raw(`null`), "none", ""},
		{"optional given", maybe, raw(`"full"`), "full", ""},
		{"second absent", one2, raw(`"a"`), true, ""},
		{"second given", one2, raw(`"a"`, `7`), false, ""},
		{"negative for unsigned", one2, raw(`"a"`, `-7`), nil, "argument 2: unexpected number"},
		{"two values", one, raw(`"a" "b"`), nil, "argument 1: more than one value"},
		{"malformed", one, raw(`"a`), nil, "argument 1: unexpected EOF"},
		{"checked", check, raw(`{}`), nil, "argument 1: name is missing"},
		{"checked null", check, raw(`null`), nil, "argument 1: name is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			run, err := c.bind(c.arguments)
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Fatalf("got error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := run(t.Context())
			if err != nil || got != c.want {
				t.Errorf("got %v, %v; want %v", got, err, c.want)
			}
		})
	}
}
