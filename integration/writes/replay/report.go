//go:build linux

package replay

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"cambium/internal/atomicfile"
)

// SetRow replaces the row in a page's tables that has the same first cell.
func SetRow(page string, cells ...any) error {
	data, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	lines := strings.Split(string(data), "\n")
	n := slices.IndexFunc(lines, func(line string) bool {
		return strings.HasPrefix(line,
			fmt.Sprintf("| %v |", cells[0]))
	})
	if n < 0 {
		return fmt.Errorf("%s has no row for %v", page, cells[0])
	}
	lines[n] = "|"
	for _, cell := range cells {
		lines[n] += fmt.Sprintf(" %v |", cell)
	}
	return atomicfile.Write(page, []byte(strings.Join(lines, "\n")), 0o644)
}
