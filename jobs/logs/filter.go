package logs

import (
	"context"
	"fmt"
	"math"
	"path"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/sys/unix"
)

// maxAlternatives bounds the number of patterns to which the braces of all filters expand, because each file is
// compared with all of them. {a,b} thirty times in one filter would be a thousand million patterns.
const maxAlternatives = 1000

// patterns converts filters to globs. A filter that names a directory matches everything below it.
func patterns(filters []string) ([]string, error) {
	var globs []string
	total := 0.0
	for _, f := range filters {
		f = path.Clean(strings.TrimPrefix(strings.TrimSpace(f), "./"))
		switch {
		case len(f) >= unix.PathMax:
			return nil, fmt.Errorf("log filter %q…: it is longer than a path can be", f[:64])
		case f == "." || strings.HasPrefix(f, "/") || f == ".." || strings.HasPrefix(f, "../") ||
			!doublestar.ValidatePattern(f):
			return nil, fmt.Errorf("log filter %q: the pattern must stay in the log directory", f)
		}
		if total += alternatives(f); total > maxAlternatives {
			return nil, fmt.Errorf("log filter %q: more than %d alternatives in all: use fewer braces", f,
				maxAlternatives)
		}
		globs = append(globs, f, f+"/**")
	}
	if len(globs) == 0 {
		globs = []string{"**"}
	}
	return globs, nil
}

// alternatives returns an upper bound for the number of patterns to which the braces expand. Whichever commas belong to
// which braces, the number is highest if all braces have the same number of commas.
func alternatives(pattern string) float64 {
	braces := float64(strings.Count(pattern, "{"))
	if braces == 0 {
		return 1
	}
	return math.Pow(float64(strings.Count(pattern, ","))/braces+1, braces)
}

// matches reports whether a glob matches rel. It fails when ctx ends.
func matches(ctx context.Context, globs []string, rel string) (bool, error) {
	for _, g := range globs {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		if doublestar.MatchUnvalidated(g, rel) {
			return true, nil
		}
	}
	return false, nil
}
