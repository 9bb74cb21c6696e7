// Package oneline joins the lines of a text, such as an error joined from several, so that it fits into a log entry, a
// console line or the status, and cannot forge a second line.
package oneline

import (
	"strings"
	"unicode"
)

// Of joins the lines with semicolons. It replaces other unprintable characters with spaces, since they could begin a
// terminal's escape sequence or reverse the line.
func Of(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.Join(lines, "; "))
}
