// Package jsoncut truncates text to a length in JSON, not counting the quotes. As in json.Marshal, <, > and & take six
// bytes each.
package jsoncut

import "unicode/utf8"

// Head returns the longest prefix of text that takes at most room bytes in JSON.
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

// Tail returns the longest suffix of text that takes at most room bytes in JSON.
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

// encoded returns the length of a rune of size bytes in JSON.
func encoded(r rune, size int) int {
	switch {
	case r == '"', r == '\\', r == '\n', r == '\r', r == '\t', r == '\b', r == '\f':
		return 2
	case r < ' ', r == '<', r == '>', r == '&', r == '\u2028', r == '\u2029', r == utf8.RuneError && size == 1:
		return 6
	}
	return size
}
