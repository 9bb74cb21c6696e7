// Package oneline makes one line of a text, such as an error that was joined from several, so that it fits a log entry,
// a console and a status, and cannot forge a second one.
package oneline

import (
	"strings"
	"unicode"
)

// Of joins the lines by semicolons, and replaces other characters that are not printed by spaces: they could begin an
// escape sequence of a terminal, or reverse the line.
func Of(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.Join(lines, "; "))
}
