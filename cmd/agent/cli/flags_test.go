package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		args        []string
		least, most int
		code        int
		ok          bool
		arguments   []string
		json        bool
		base        string
	}{
		{nil, 0, 0, ExitOK, true, nil, false, ""},
		{[]string{"-json", "a", "b"}, 0, -1, ExitOK, true, []string{"a", "b"}, true, ""},
		{[]string{"a", "--json", "b", "-b", "dir", "c"}, 3, 3, ExitOK, true, []string{"a", "b", "c"}, true, "dir"},
		{[]string{"a", "b", "--b=dir"}, 0, -1, ExitOK, true, []string{"a", "b"}, false, "dir"},
		{[]string{"-", "--json"}, 0, -1, ExitOK, true, []string{"-"}, true, ""},
		{[]string{"a", "--", "--json", "b"}, 0, -1, ExitOK, true, []string{"a", "--json", "b"}, false, ""},
		{[]string{"--", "a", "--json"}, 0, -1, ExitOK, true, []string{"a", "--json"}, false, ""},
		{[]string{"a", "--", "--", "b"}, 0, -1, ExitOK, true, []string{"a", "--", "b"}, false, ""},
		{[]string{"a"}, 2, -1, ExitUsage, false, nil, false, ""},
		{[]string{"a", "--json", "b"}, 0, 1, ExitUsage, false, nil, false, ""},
		{[]string{"a", "--hurry"}, 0, -1, ExitUsage, false, nil, false, ""},
		{[]string{"a", "-b"}, 0, -1, ExitUsage, false, nil, false, ""},
		{[]string{"a", "--help"}, 0, 0, ExitOK, false, nil, false, ""},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			flags := NewFlags("try", Help{Arguments: "[FILE]", Purpose: "Tries."}, &stdout, &stderr)
			json := flags.Bool("json", false, "print JSON")
			base := flags.String("b", "", "`BASE` directory")
			code, ok := flags.Parse(c.args, c.least, c.most)
			if code != c.code || ok != c.ok {
				t.Fatalf("exit code %d, ok %v; want %d, %v", code, ok, c.code, c.ok)
			}
			if help := !ok && code == ExitOK; help != (stdout.Len() > 0) ||
				(code == ExitUsage) != strings.Contains(stderr.String(),
					"usage: agent try [FILE]\n'agent try --help' shows more\n") {
				t.Errorf("%q on the standard output, %q on the standard error", stdout.String(), stderr.String())
			}
			if !ok {
				return
			}
			if !slices.Equal(flags.Args(), c.arguments) || *json != c.json || *base != c.base {
				t.Errorf("arguments %q, json %v, base %q; want %q, %v, %q", flags.Args(), *json, *base, c.arguments, c.json, c.base)
			}
		})
	}
}

func TestParseLeading(t *testing.T) {
	var stdout, stderr bytes.Buffer
	flags := NewFlags("try", Help{}, &stdout, &stderr)
	json := flags.Bool("json", false, "print JSON")
	if code, ok := flags.ParseLeading([]string{"word", "--hurry", "-json"}); code != ExitOK || !ok || *json {
		t.Errorf("exit code %d, ok %v, json %v; want the first word to end the flags", code, ok, *json)
	}
}
