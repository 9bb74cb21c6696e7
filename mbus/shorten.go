package mbus

import "unicode/utf8"

// truncated replaces the middle of a long exception.
const truncated = "\n...[truncated]...\n"

// shorten keeps the beginning and the end of text, so that both together need at most room bytes in JSON. The end gets
// one byte more if room is odd, because tools print the cause last.
func shorten(text string, room int) string {
	head := 0
	for left := room / 2; head < len(text); {
		r, size := utf8.DecodeRuneInString(text[head:])
		if left -= encodedSize(r, size); left < 0 {
			break
		}
		head += size
	}
	tail := len(text)
	for left := room - room/2; tail > head; {
		r, size := utf8.DecodeLastRuneInString(text[:tail])
		if left -= encodedSize(r, size); left < 0 {
			break
		}
		tail -= size
	}
	return text[:head] + truncated + text[tail:]
}

// encodedSize returns the number of bytes that encoding/json writes for a rune inside a string.
func encodedSize(r rune, size int) int {
	switch {
	case r == '"' || r == '\\' || r == '\n' || r == '\r' || r == '\t' || r == '\b' || r == '\f':
		return 2
	case r < 0x20, r == '\u2028', r == '\u2029':
		return 6
	case r == utf8.RuneError && size == 1:
		return 6 // written as \ufffd
	}
	return size
}
