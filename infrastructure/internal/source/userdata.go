package source

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"cambium/internal/jsondoc"
)

// ErrEmpty is returned for an answer without content.
var ErrEmpty = errors.New("empty answer")

// Decode extracts the JSON object from what a CPI wrote: the object itself, a JSON string that contains it, or its
// base64 encoding (standard or URL-safe alphabet, with or without padding, line breaks and quotes). Errors name a
// position and never quote content.
func Decode(body []byte) ([]byte, error) {
	body = bytes.TrimSpace(bytes.TrimPrefix(body, []byte("\xef\xbb\xbf")))
	if len(body) == 0 {
		return nil, ErrEmpty
	}
	if body[0] == '{' {
		return object(body)
	}
	text := string(body)
	if body[0] == '"' {
		if err := json.Unmarshal(body, &text); err != nil {
			// Without its misplaced quotes, the text may still be base64.
			text = strings.ReplaceAll(string(body), `"`, "")
		}
		if text = strings.TrimSpace(text); text == "" {
			return nil, ErrEmpty
		}
		if text[0] == '{' {
			return object([]byte(text))
		}
	}
	decoded, err := DecodeBase64(text)
	if err != nil {
		if json.Valid(body) {
			return nil, errors.New("not a JSON object")
		}
		return nil, errors.New("neither a JSON object nor base64")
	}
	if decoded = bytes.TrimSpace(decoded); len(decoded) == 0 {
		return nil, ErrEmpty
	}
	if decoded[0] != '{' {
		return nil, errors.New("base64 of something other than a JSON object")
	}
	return object(decoded)
}

// DecodeBase64 decodes text in the standard or URL-safe alphabet, with or without padding, quotes and white space.
func DecodeBase64(text string) ([]byte, error) {
	clean := make([]byte, 0, len(text))
	for i := range len(text) {
		switch c := text[i]; c {
		case '-':
			clean = append(clean, '+')
		case '_':
			clean = append(clean, '/')
		case ' ', '\t', '\r', '\n', '"':
		default:
			clean = append(clean, c)
		}
	}
	clean = bytes.TrimRight(clean, "=")
	decoded := make([]byte, base64.RawStdEncoding.DecodedLen(len(clean)))
	n, err := base64.RawStdEncoding.Decode(decoded, clean)
	if err != nil {
		return nil, errors.New("not base64")
	}
	return decoded[:n], nil
}

func object(body []byte) ([]byte, error) {
	if json.Valid(body) {
		return body, nil
	}
	// The text of the standard error quotes a character of the document.
	first := jsondoc.Read("", body).Findings().Entries[0]
	return nil, fmt.Errorf("not valid JSON at line %d, column %d: %s", first.Line, first.Column, first.Message)
}
