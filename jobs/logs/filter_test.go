package logs

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/bmatcuk/doublestar/v4"
)

// Filters whose braces stand for more patterns than can be compared with each file are refused, alone and together;
// those that people write are not.
func TestFiltersAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		filters []string
		refused bool
	}{
		"usual":           {[]string{"*.{log,err}", "{a,b}/*.{log,out,gz}", "**/{a,b,c,d,e,f,g,h,i,j}*.log"}, false},
		"nested":          {[]string{"{web/{access,error},db/{slow,{audit,main}}}.log"}, false},
		"many":            {strings.Split(strings.Repeat("a.log ", 999)+"a.log", " "), false},
		"braces in a row": {[]string{strings.Repeat("{a,b}", 30) + "x"}, true},
		"nested braces":   {[]string{strings.Repeat("{{a,b},{a,b}}", 11) + "x"}, true},
		"beside a class":  {[]string{"{[}],a}" + strings.Repeat("{[}],a,b,c}", 10)}, true},
		"together":        {strings.Split(strings.Repeat("{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b} ", 10)+"a", " "), true},
		"long":            {[]string{strings.Repeat("a/", 2048) + "a"}, true},
	} {
		err := collector(t).Check(Selection{Types: "job", Filters: c.filters})
		if (err != nil) != c.refused {
			t.Errorf("%s: got %v, want refused %v", name, err, c.refused)
		}
	}
}

// The end of the context ends the comparison of one name with many filters.
func TestComparisonEndsWithItsCaller(t *testing.T) {
	gone := errors.New("the caller has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if found, err := matches(ctx, []string{"a", "**"}, "b"); found || !errors.Is(err, gone) {
		t.Errorf("got %v, %v", found, err)
	}
}

// FuzzFilter: a filter that is not refused stays in the directory, and stands for no more patterns than are allowed.
func FuzzFilter(f *testing.F) {
	for _, seed := range []string{"**/*.log", "a/{b,c}/*.{log,err}", "{a,{b,{c,d}}}x", `\{a,b}`, "[{]a,b}", "{[}],a}",
		"../x",
		"{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}", "{{},{,}}", "*a*a*a*a*b", "./{", "a}"} {
		f.Add(seed, "a/b/c.log")
	}
	f.Fuzz(func(t *testing.T, filter, name string) {
		globs, err := patterns([]string{filter})
		if err != nil {
			return
		}
		if _, err := matches(t.Context(), globs, name); err != nil {
			t.Fatal(err)
		}
		for _, g := range globs {
			if strings.HasPrefix(g, "/") || strings.HasPrefix(g, "../") {
				t.Errorf("%q leaves the directory", g)
			}
			left := maxAlternatives
			if found := anyOf(g, name, &left); left < 0 {
				t.Errorf("%q stands for more than %d patterns", g, maxAlternatives)
			} else if found != doublestar.MatchUnvalidated(g, name) {
				t.Errorf("%q and %q: the patterns without braces say %v", g, name, found)
			}
		}
	})
}

// anyOf matches a name with the patterns without braces that a pattern stands for, which it counts down from left.
func anyOf(pattern, name string, left *int) bool {
	begin, parts, rest := firstBraces(pattern)
	if parts == nil {
		*left--
		return doublestar.MatchUnvalidated(pattern, name)
	}
	found := false
	for _, part := range parts {
		if *left >= 0 && anyOf(pattern[:begin]+part+rest, name, left) {
			found = true
		}
	}
	return found
}

// firstBraces splits a pattern at its first braces, if it has any.
func firstBraces(pattern string) (begin int, parts []string, rest string) {
	depth, from := 0, 0
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case c == '[':
			for i++; i < len(pattern) && pattern[i] != ']'; i++ {
				if pattern[i] == '\\' {
					i++
				}
			}
		case c == '{':
			if depth++; depth == 1 {
				begin, from = i, i+1
			}
		case depth == 1 && (c == ',' || c == '}'):
			parts, from = append(parts, pattern[from:i]), i+1
			if c == '}' {
				return begin, parts, pattern[from:]
			}
		case c == '}' && depth > 0:
			depth--
		}
	}
	return 0, nil, ""
}
