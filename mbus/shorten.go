package mbus

import "unicode/utf8"

// truncated marks the place where the middle of a long exception was taken out.
const truncated = "\n...[truncated]...\n"

// shorten keeps the beginning and the end of text so that both together take at most room bytes
// once written as JSON. The end gets the odd byte, because tools print the cause last.
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
