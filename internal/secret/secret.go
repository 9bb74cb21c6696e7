// Package secret holds values that must not be printed: passwords, private keys, URLs that
// carry credentials, and JSON documents that contain any of these.
//
// Each type keeps its value behind a pointer, because fmt does not call String on unexported
// fields: a plain string field would leak under %+v of an enclosing struct. Every way of
// printing or encoding such a value (fmt verbs, encoding/json, text encoders, log formatters)
// yields a redaction. Reveal is the one way to the clear value; call it only where the value
// is used or written to a file of mode 0600.
package secret

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"
)

// Redacted stands in for a hidden value wherever it would have been printed.
const Redacted = "***"

// String is a text that prints as a redaction. The zero value is the empty text.
type String struct{ value *string }

// New wraps s. An empty s gives the zero value, so that two empty secrets are alike.
func New(s string) String {
	if s == "" {
		return String{}
	}
	return String{value: &s}
}

// Reveal returns the clear text.
func (s String) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// Empty reports whether there is no text.
func (s String) Empty() bool { return s.value == nil || *s.value == "" }

// Equal compares the clear texts.
func (s String) Equal(other String) bool { return s.Reveal() == other.Reveal() }

// String returns the redaction, or nothing for an empty secret: "is it set at all" is not a
// secret and is what an operator wants to see.
func (s String) String() string {
	if s.Empty() {
		return ""
	}
	return Redacted
}

// Format covers every verb, %x and %#v included.
func (s String) Format(f fmt.State, _ rune) { writeRedacted(f, s.String()) }

// MarshalJSON writes the redaction; it is what a JSON log formatter calls.
func (s String) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// MarshalText serves encoders other than JSON.
func (s String) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalJSON reads a clear text; null means empty.
func (s *String) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("expected a string")
	}
	*s = New(text)
	return nil
}

// URL is an address whose user information and query may carry credentials. It prints with
// both replaced, so that host and path stay readable in logs and errors.
type URL struct{ value *string }

// NewURL wraps raw, which need not be a valid URL.
func NewURL(raw string) URL {
	if raw == "" {
		return URL{}
	}
	return URL{value: &raw}
}

// Reveal returns the address as it was given.
func (u URL) Reveal() string {
	if u.value == nil {
		return ""
	}
	return *u.value
}

// Empty reports whether there is no address.
func (u URL) Empty() bool { return u.Reveal() == "" }

// Equal compares the clear addresses.
func (u URL) Equal(other URL) bool { return u.Reveal() == other.Reveal() }

// String returns the address without credentials.
func (u URL) String() string { return RedactURL(u.Reveal()) }

// Format covers every verb.
func (u URL) Format(f fmt.State, _ rune) { writeRedacted(f, u.String()) }

// MarshalJSON writes the redacted address.
func (u URL) MarshalJSON() ([]byte, error) { return json.Marshal(u.String()) }

// MarshalText writes the redacted address.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalJSON reads a clear address; null means empty.
func (u *URL) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("expected a string")
	}
	*u = NewURL(text)
	return nil
}

// RedactURL replaces user information, query and fragment of raw. What does not parse as a
// URL is hidden whole beyond its scheme: a broken URL may hold its password anywhere.
func RedactURL(raw string) string {
	if raw == "" {
		return ""
	}
	parsed, err := url.Parse(raw)
	if err != nil || parsed.Opaque != "" {
		if scheme, _, found := strings.Cut(raw, "://"); found && isScheme(scheme) {
			return scheme + "://" + Redacted
		}
		return Redacted
	}
	var b strings.Builder
	if parsed.Scheme != "" {
		b.WriteString(parsed.Scheme + ":")
	}
	if parsed.Host != "" || parsed.User != nil {
		b.WriteString("//")
	}
	if parsed.User != nil {
		b.WriteString(Redacted + "@")
	}
	b.WriteString(parsed.Host)
	b.WriteString(parsed.EscapedPath())
	if parsed.RawQuery != "" || parsed.ForceQuery {
		b.WriteString("?" + Redacted)
	}
	if parsed.Fragment != "" {
		b.WriteString("#" + Redacted)
	}
	return b.String()
}

func isScheme(s string) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '+' && r != '-' && r != '.' {
			return false
		}
	}
	return s != ""
}

// JSON is a document that may contain secrets anywhere, such as blobstore options. It prints
// as a redaction and is handed on as it came.
//
// The pointer is to a pointer because fmt, given an unexported field and a verb that does not
// fit, follows a pointer to a slice and prints the bytes as numbers.
type JSON struct{ value **json.RawMessage }

// NewJSON wraps a copy of raw.
func NewJSON(raw []byte) JSON {
	if len(raw) == 0 {
		return JSON{}
	}
	kept := json.RawMessage(bytes.Clone(raw))
	pointer := &kept
	return JSON{value: &pointer}
}

// Reveal returns the document; the caller must not change it.
func (j JSON) Reveal() json.RawMessage {
	if j.value == nil {
		return nil
	}
	return **j.value
}

// Empty reports whether there is no document, or only null.
func (j JSON) Empty() bool {
	trimmed := bytes.TrimSpace(j.Reveal())
	return len(trimmed) == 0 || bytes.Equal(trimmed, []byte("null"))
}

// String returns the redaction.
func (j JSON) String() string {
	if j.Empty() {
		return ""
	}
	return "{" + Redacted + "}"
}

// Format covers every verb.
func (j JSON) Format(f fmt.State, _ rune) { writeRedacted(f, j.String()) }

// MarshalJSON writes the redaction.
func (j JSON) MarshalJSON() ([]byte, error) {
	if j.Empty() {
		return []byte("null"), nil
	}
	return json.Marshal(Redacted)
}

// UnmarshalJSON keeps the document as it is.
func (j *JSON) UnmarshalJSON(data []byte) error {
	*j = NewJSON(data)
	return nil
}

// writeRedacted ignores the writer's error as fmt itself does.
func writeRedacted(f fmt.State, text string) { _, _ = io.WriteString(f, text) }
