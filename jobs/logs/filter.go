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

// maxAlternatives bounds what the braces of all filters stand for, since each file is compared with all of it: thirty
// times {a,b} in one filter would be a thousand million patterns.
const maxAlternatives = 1000

// patterns turns filters into globs. One that names a directory means everything below it.
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
			return nil, fmt.Errorf("log filter %q: more than %d alternatives in all: use fewer braces", f, maxAlternatives)
		}
		globs = append(globs, f, f+"/**")
	}
	if len(globs) == 0 {
		globs = []string{"**"}
	}
	return globs, nil
}

// alternatives is at least the number of patterns without braces that a pattern stands for: whichever commas belong to
// which braces, that number is highest if all have the same share.
func alternatives(pattern string) float64 {
	braces := float64(strings.Count(pattern, "{"))
	if braces == 0 {
		return 1
	}
	return math.Pow(float64(strings.Count(pattern, ","))/braces+1, braces)
}

// matches reports whether one of the globs matches. It fails when ctx ends.
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
