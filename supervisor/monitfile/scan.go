package monitfile

import (
	"fmt"
	"strconv"
	"strings"
)

// maxArguments is the maximum number of words of a command.
const maxArguments = 64

// noise has the words that monit ignores between two others.
var noise = func() map[string]bool {
	words := map[string]bool{}
	for word := range strings.FieldsSeq(`is as are for on only with within without program programs and has using use
		the sum than usage was times but of does`) {
		words[word] = true
	}
	return words
}()

// token is a word, a quoted string, or a single other byte. It is empty at the end of the text.
type token struct {
	text         string
	quoted       bool
	line, column int
}

func (t token) isEnd() bool { return t.text == "" && !t.quoted }

// lower returns the token in lower case, to compare it with keywords. It returns "" for a quoted string, which is never
// a keyword.
func (t token) lower() string {
	if t.quoted {
		return ""
	}
	return strings.ToLower(t.text)
}

// found describes the token in an error.
func (t token) found() string {
	const most = 40
	switch {
	case t.isEnd():
		return "found the end of the file"
	case len(t.text) > most:
		return fmt.Sprintf("found %q…", t.text[:most])
	default:
		return fmt.Sprintf("found %q", t.text)
	}
}

// scanner splits a text into tokens. After the first error it returns only the end of the text.
type scanner struct {
	source string
	rest   string
	// line and column say where rest begins, counted from 1. Columns count bytes.
	line, column int
	ahead        *token // the token that peek has read
	service      string // the current check
	err          error
}

// fail records an error, unless there is one.
func (s *scanner) fail(at token, format string, args ...any) {
	if s.err != nil {
		return
	}
	message := fmt.Sprintf(format, args...)
	if s.service != "" {
		message = fmt.Sprintf("service %q: %s", s.service, message)
	}
	s.err = &Error{Source: s.source, Line: at.line, Column: at.column, Message: message}
	s.rest, s.ahead = "", nil
}

func (s *scanner) here() token { return token{line: s.line, column: s.column} }

// skip returns the next n bytes and moves past them.
func (s *scanner) skip(n int) string {
	text := s.rest[:n]
	s.rest = s.rest[n:]
	s.line += strings.Count(text, "\n")
	if last := strings.LastIndexByte(text, '\n'); last >= 0 {
		s.column = n - last
	} else {
		s.column += n
	}
	return text
}

// space skips white space and comments, and reports whether they contained a comma.
func (s *scanner) space() (comma bool) {
	for s.rest != "" {
		switch s.rest[0] {
		case ' ', '\t', '\r', '\n', ';', ',', '(', ')':
			comma = comma || s.rest[0] == ','
			s.skip(1)
		case '#':
			end := strings.IndexByte(s.rest, '\n')
			if end < 0 {
				end = len(s.rest)
			}
			s.skip(end)
		default:
			return comma
		}
	}
	return comma
}

// wordLength returns the length of the word at the start of text.
func wordLength(text string) int {
	for i := range len(text) {
		if c := text[i]; c <= ' ' || c == 0x7f || strings.IndexByte(`!@:{}"';(),%`, c) >= 0 {
			return i
		}
	}
	return len(text)
}

// raw reads the next token. It does not skip noise, because a service may have such a name.
func (s *scanner) raw() token {
	s.space()
	t := s.here()
	switch {
	case s.rest == "":
	case s.rest[0] == '"' || s.rest[0] == '\'':
		end := strings.IndexByte(s.rest[1:], s.rest[0])
		if end < 0 {
			s.fail(t, "unterminated string: expected a closing %c", s.rest[0])
			return t
		}
		t.text = s.unescape(t, s.skip(end + 2)[1:end+1])
		t.quoted = s.err == nil // an empty string in place of the end would be read forever
	case strings.HasPrefix(s.rest, "!="):
		t.text = s.skip(2)
	default:
		t.text = s.skip(max(1, wordLength(s.rest)))
	}
	return t
}

// peek returns the next token that is not noise, without moving past it.
func (s *scanner) peek() token {
	if s.ahead == nil {
		t := s.raw()
		for noise[t.lower()] {
			t = s.raw()
		}
		s.ahead = &t
	}
	return *s.ahead
}

func (s *scanner) next() token {
	t := s.peek()
	s.ahead = nil
	return t
}

// take reads the next token if it is one of the keywords, and returns it.
func (s *scanner) take(keywords ...string) (keyword string, ok bool) {
	word := s.peek().lower()
	for _, k := range keywords {
		if word == k {
			s.ahead = nil
			return k, true
		}
	}
	return "", false
}

// expect reads one of the keywords, or fails.
func (s *scanner) expect(what string, keywords ...string) string {
	word, ok := s.take(keywords...)
	if !ok {
		s.unexpected(s.peek(), what)
	}
	return word
}

func (s *scanner) unexpected(t token, what string) { s.fail(t, "expected %s, %s", what, t.found()) }

// isWord reports whether the token is a string or a word.
func (t token) isWord() bool {
	return t.text != "" && (t.quoted || wordLength(t.text) == len(t.text))
}

// word reads a word or a string.
func (s *scanner) word(what string) string { return s.wordOf(s.next(), what) }

func (s *scanner) wordOf(t token, what string) string {
	if !t.isWord() {
		s.unexpected(t, what)
	}
	return t.text
}

// name reads the name of a service, which may be a noise word. It fails if the name does not fit on one line.
func (s *scanner) name(what string) string { return s.nameOf(s.raw(), what) }

func (s *scanner) nameOf(t token, what string) string {
	if strings.ContainsFunc(t.text, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		s.fail(t, "expected %s without control characters, %s", what, t.found())
	}
	return s.wordOf(t, what)
}

// path reads an absolute path.
func (s *scanner) path() string {
	t := s.next()
	if !t.isWord() || t.text[0] != '/' || t.quoted && t.line != s.line {
		s.unexpected(t, "an absolute path")
	}
	return t.text
}

// number reads an integer between least and most.
func (s *scanner) number(what string, least, most int) int {
	t := s.next()
	if _, isNumber := t.number(); !isNumber {
		s.unexpected(t, what)
		return least
	}
	n, err := strconv.Atoi(t.text)
	if err != nil || n < least || n > most {
		s.fail(t, "expected %s from %d to %d, %s", what, least, most, t.found())
		return least
	}
	return n
}

// number returns the value of a numeric token, which may have a decimal point.
func (t token) number() (value float64, ok bool) {
	if t.quoted || t.text == "" || strings.Trim(t.text, "0123456789.") != "" || t.text[0] == '.' {
		return 0, false
	}
	value, err := strconv.ParseFloat(t.text, 64)
	return value, err == nil
}

// unescape replaces the escape sequences of a string: a backslash before n, t, r, a space or a backslash, and \0x with
// two hexadecimal digits.
func (s *scanner) unescape(at token, text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '\\' && i+1 < len(text) {
			switch e := text[i+1]; {
			case e == 'n' || e == 't' || e == 'r':
				c = map[byte]byte{'n': '\n', 't': '\t', 'r': '\r'}[e]
				i++
			case e == ' ' || e == '\\':
				c = e
				i++
			case strings.HasPrefix(text[i+1:], "0x") && len(text) >= i+5:
				if code, err := strconv.ParseUint(text[i+3:i+5], 16, 8); err == nil {
					c = byte(code)
					i += 4
				}
			}
		}
		if c == 0 {
			s.fail(at, "the string contains a NUL byte")
			return ""
		}
		b.WriteByte(c)
	}
	return b.String()
}

// arguments reads the program after start, stop or exec: a string in double quotes, split at white space. A part that
// begins with a single quote is one argument up to the next single quote, unless a longer word begins there, as in
// 'it's: monit's scanner prefers the longest match.
func (s *scanner) arguments() (args []string) {
	for {
		s.space()
		n := wordLength(s.rest)
		word := strings.ToLower(s.rest[:n])
		if n == 0 || !noise[strings.TrimSuffix(word, "=")] && word != "=" {
			break
		}
		s.skip(n)
	}
	open := s.here()
	if !strings.HasPrefix(s.rest, `"`) {
		s.unexpected(s.peek(), "a program between double quotes")
		return nil
	}
	s.skip(1)
	for {
		for s.rest != "" && strings.IndexByte(" \t\r\n", s.rest[0]) >= 0 {
			s.skip(1)
		}
		at := s.here()
		if s.rest == "" {
			s.fail(open, "unterminated program: expected a closing double quote")
			return nil
		}
		if s.rest[0] == '"' {
			break
		}
		if len(args) == maxArguments {
			s.fail(at, "expected at most %d arguments", maxArguments)
			return nil
		}
		args = append(args, s.argument(at))
	}
	if s.skip(1); len(args) == 0 {
		s.fail(open, "expected a program, found an empty command")
	}
	return args
}

func (s *scanner) argument(at token) string {
	command := s.rest
	if end := strings.IndexByte(command, '"'); end >= 0 {
		command = command[:end]
	}
	n := strings.IndexAny(command, " \t\r\n")
	if n < 0 {
		n = len(command)
	}
	if command[0] == '\'' {
		if end := strings.IndexByte(command[1:], '\''); end >= 0 && end+2 >= n {
			return s.unescape(at, s.skip(end + 2)[1:end+1])
		}
	}
	if word := s.skip(n); strings.IndexByte(word, 0) < 0 {
		return word
	}
	s.fail(at, "the argument contains a NUL byte")
	return ""
}
