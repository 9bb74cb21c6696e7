// Package jsoncut cuts a text so that its JSON encoding, without the quotes, fits into a message. It counts <, > and &
// as json.Marshal encodes them, with six bytes each.
package jsoncut

import "unicode/utf8"

// Head returns the longest beginning of text that needs at most room bytes.
func Head(text string, room int) string {
	end := 0
	for end < len(text) {
		r, size := utf8.DecodeRuneInString(text[end:])
		if room -= encoded(r, size); room < 0 {
			break
		}
		end += size
	}
	return text[:end]
}

// Tail returns the longest end of text that needs at most room bytes.
func Tail(text string, room int) string {
	start := len(text)
	for start > 0 {
		r, size := utf8.DecodeLastRuneInString(text[:start])
		if room -= encoded(r, size); room < 0 {
			break
		}
		start -= size
	}
	return text[start:]
}

// encoded returns the number of bytes that json.Marshal writes for a rune of size bytes.
func encoded(r rune, size int) int {
	switch {
	case r == '"', r == '\\', r == '\n', r == '\r', r == '\t', r == '\b', r == '\f':
		return 2
	case r < ' ', r == '<', r == '>', r == '&', r == '\u2028', r == '\u2029', r == utf8.RuneError && size == 1:
		return 6
	}
	return size
}
