// Package secret has types for values that must not be printed: passwords, private keys, URLs with credentials, and
// JSON documents that contain any of these.
//
// Each type keeps its value behind a pointer. fmt does not call String on unexported fields, so a plain string field
// would leak if %+v prints the enclosing struct. All ways to print or encode such a value (fmt verbs, encoding/json,
// text encoders, log formatters) give a redacted form. Only Reveal returns the value. Call it only where the value is
// used or written to a file of mode 0600.
package secret

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strings"
)

// Redacted replaces a secret value in output.
const Redacted = "***"

// text holds a secret behind a pointer: in an unexported field, where fmt calls no methods, it prints an address.
type text struct{ value *string }

// newText maps "" to the zero value, so that == holds for empty secrets.
func newText(s string) text {
	if s == "" {
		return text{}
	}
	return text{value: &s}
}

// Reveal returns the clear text.
func (t text) Reveal() string {
	if t.value == nil {
		return ""
	}
	return *t.value
}

// Empty reports whether the text is empty.
func (t text) Empty() bool { return t.Reveal() == "" }

// UnmarshalJSON decodes a clear text; null means empty.
func (t *text) UnmarshalJSON(data []byte) error {
	var decoded string
	if err := json.Unmarshal(data, &decoded); err != nil {
		return fmt.Errorf("expected a string")
	}
	*t = newText(decoded)
	return nil
}

// String is a secret text. The zero value is the empty text.
type String struct{ text }

// New returns s as a secret.
func New(s string) String { return String{newText(s)} }

// Equal compares the clear texts.
func (s String) Equal(other String) bool { return s.Reveal() == other.Reveal() }

// String returns Redacted, or "" for an empty secret: whether it is set is not secret, and operators need to know.
func (s String) String() string {
	if s.Empty() {
		return ""
	}
	return Redacted
}

// Format writes the redacted form for every verb, even %x and %#v.
func (s String) Format(f fmt.State, _ rune) { writeRedacted(f, s.String()) }

// MarshalJSON returns the redacted form. JSON log formatters call it.
func (s String) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// MarshalText returns the redacted form, for encoders other than JSON.
func (s String) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// URL is a URL whose user information and query may contain credentials. Only these are redacted, so that host and path
// stay readable in logs and errors.
type URL struct{ text }

// NewURL returns raw as a secret. It need not be a valid URL.
func NewURL(raw string) URL { return URL{newText(raw)} }

// Equal compares the URLs with their credentials.
func (u URL) Equal(other URL) bool { return u.Reveal() == other.Reveal() }

// String returns the URL without credentials.
func (u URL) String() string { return RedactURL(u.Reveal()) }

// Format writes the redacted form for every verb.
func (u URL) Format(f fmt.State, _ rune) { writeRedacted(f, u.String()) }

// MarshalJSON returns the redacted URL.
func (u URL) MarshalJSON() ([]byte, error) { return json.Marshal(u.String()) }

// MarshalText returns the redacted URL.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// scheme matches the scheme of a URL.
var scheme = regexp.MustCompile(`^[a-zA-Z0-9+.-]+://`)

// RedactURL replaces user information, query and fragment of raw. If raw is not a valid URL, everything after the
// scheme is replaced, because the password could be anywhere.
func RedactURL(raw string) string {
	if raw == "" {
		return ""
	}
	parsed, err := url.Parse(raw)
	if err != nil || parsed.Opaque != "" {
		return scheme.FindString(raw) + Redacted
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

// JSON is a document that may contain secrets, such as the options of a blobstore. It is passed on unchanged.
//
// The pointer is to a pointer: for an unexported field and a verb that does not fit, fmt follows a pointer to a slice
// and prints its bytes as numbers.
type JSON struct{ value **json.RawMessage }

// NewJSON returns a copy of raw as a secret.
func NewJSON(raw []byte) JSON {
	if len(raw) == 0 {
		return JSON{}
	}
	kept := json.RawMessage(bytes.Clone(raw))
	pointer := &kept
	return JSON{value: &pointer}
}

// Reveal returns the document, which the caller must not modify.
func (j JSON) Reveal() json.RawMessage {
	if j.value == nil {
		return nil
	}
	return **j.value
}

// Empty reports whether the document is missing or null.
func (j JSON) Empty() bool {
	trimmed := bytes.TrimSpace(j.Reveal())
	return len(trimmed) == 0 || bytes.Equal(trimmed, []byte("null"))
}

// String returns the redacted form.
func (j JSON) String() string {
	if j.Empty() {
		return ""
	}
	return "{" + Redacted + "}"
}

// Format writes the redacted form for every verb.
func (j JSON) Format(f fmt.State, _ rune) { writeRedacted(f, j.String()) }

// MarshalJSON returns the redacted form.
func (j JSON) MarshalJSON() ([]byte, error) {
	if j.Empty() {
		return []byte("null"), nil
	}
	return json.Marshal(Redacted)
}

// UnmarshalJSON stores the document unchanged.
func (j *JSON) UnmarshalJSON(data []byte) error {
	*j = NewJSON(data)
	return nil
}

// writeRedacted ignores the writer's error, as fmt does.
func writeRedacted(f fmt.State, text string) { _, _ = io.WriteString(f, text) }
