package mbus

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// decodePlain reads the envelopes that make up nearly all traffic without the cost of a general
// decoder: known keys in lower case, each at most once, texts without escapes, and arguments
// that are texts or none at all. It refuses everything else rather than judge it.
func decodePlain(data []byte) (r Request, ok bool) {
	p := plainReader{rest: data}
	if !p.take('{') {
		return Request{}, false
	}
	var seen [4]bool
	once := func(i int) bool {
		first := !seen[i]
		seen[i] = true
		return first
	}
	for {
		key, is := p.text()
		if !is || !p.take(':') {
			return Request{}, false
		}
		switch string(key) {
		case "method":
			value, is := p.text()
			if !is || !once(0) {
				return Request{}, false
			}
			r.Method = string(value)
		case "reply_to":
			value, is := p.text()
			if !is || !once(1) {
				return Request{}, false
			}
			r.ReplyTo = string(value)
		case "protocol":
			if r.Protocol, is = p.digits(); !is || !once(2) {
				return Request{}, false
			}
		case "arguments":
			if r.Arguments, is = p.texts(); !is || !once(3) {
				return Request{}, false
			}
		default:
			return Request{}, false
		}
		switch {
		case p.take(','):
		case p.take('}'):
			p.space()
			return r, len(p.rest) == 0
		default:
			return Request{}, false
		}
	}
}

// plainReader consumes JSON from the front; what it returns points into the message.
type plainReader struct{ rest []byte }

func (p *plainReader) space() {
	for len(p.rest) > 0 && (p.rest[0] == ' ' || p.rest[0] == '\n' || p.rest[0] == '\t' || p.rest[0] == '\r') {
		p.rest = p.rest[1:]
	}
}

func (p *plainReader) take(b byte) bool {
	p.space()
	if len(p.rest) == 0 || p.rest[0] != b {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

func (p *plainReader) text() ([]byte, bool) {
	if !p.take('"') {
		return nil, false
	}
	end := bytes.IndexByte(p.rest, '"')
	if end < 0 || !plainText(p.rest[:end]) {
		return nil, false
	}
	value := p.rest[:end]
	p.rest = p.rest[end+1:]
	return value, true
}

// texts reads an array of texts. As raw messages they are what the general decoder would give.
func (p *plainReader) texts() ([]json.RawMessage, bool) {
	if !p.take('[') {
		return nil, false
	}
	all := []json.RawMessage{}
	if p.take(']') {
		return all, true
	}
	for {
		p.space()
		start := p.rest
		value, is := p.text()
		if !is {
			return nil, false
		}
		all = append(all, bytes.Clone(start[:len(value)+2]))
		switch {
		case p.take(','):
		case p.take(']'):
			return all, true
		default:
			return nil, false
		}
	}
}

// digits reads a small number that is not negative.
func (p *plainReader) digits() (int, bool) {
	p.space()
	n := 0
	for n < len(p.rest) && p.rest[n] >= '0' && p.rest[n] <= '9' {
		n++
	}
	if n == 0 || n > 9 || n > 1 && p.rest[0] == '0' {
		return 0, false
	}
	value, err := strconv.Atoi(string(p.rest[:n]))
	p.rest = p.rest[n:]
	return value, err == nil
}

// plainText reports texts that stand for themselves in JSON.
func plainText[T string | []byte](s T) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
