package cli

import (
	"bytes"
	"slices"
	"testing"
)

func TestFold(t *testing.T) {
	for _, c := range []struct {
		text  string
		width int
		want  []string
	}{
		{"", 10, []string{""}},
		{"one two three", 80, []string{"one two three"}},
		{"one two three", 7, []string{"one two", "three"}},
		{"see 'agent settings --explain' for what", 28, []string{"see", "'agent settings --explain'", "for what"}},
		{"the disk's table isn't ours", 12, []string{"the disk's", "table isn't", "ours"}},
		{"a verylongwordindeed b", 8, []string{"a", "verylong", "wordinde", "ed b"}},
		{"'a quoted command that is long' b", 10, []string{"'a quoted", "command", "that is", "long' b"}},
		{"äöü äöü", 3, []string{"äöü", "äöü"}},
		{"'never closed and long", 9, []string{"'never", "closed", "and long"}},
	} {
		if got := fold(c.text, c.width); !slices.Equal(got, c.want) {
			t.Errorf("%q in %d columns: got %q, want %q", c.text, c.width, got, c.want)
		}
	}
}

func TestWidth(t *testing.T) {
	for value, want := range map[string]int{"": 80, "120": 120, "wide": 80, "-3": 80} {
		t.Setenv("COLUMNS", value)
		if got := Width(&bytes.Buffer{}); got != want {
			t.Errorf("COLUMNS=%q: %d, want %d", value, got, want)
		}
	}
}
