// Package oneline makes one line of a text, such as an error that was joined from several, so that it fits a log entry,
// a console and a status, and cannot forge a second one.
package oneline

import "strings"

// Of joins the lines by semicolons, and replaces other control characters by spaces.
func Of(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.Join(lines, "; "))
}
