package lab

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Document is a settings document, or a part of one, as a CPI writes it. It is plain JSON, so that tests can send
// documents that no Go type could express.
type Document map[string]any

// JSON encodes the document.
func (d Document) JSON() []byte {
	data, err := json.Marshal(d)
	if err != nil {
		// Only values that a test invented can fail here, and then the test is wrong.
		panic(fmt.Sprintf("settings document: %v", err))
	}
	return data
}

// Set sets the value at a path of keys joined by dots, and creates missing objects.
func (d Document) Set(path string, value any) Document {
	keys := strings.Split(path, ".")
	at := map[string]any(d)
	for _, key := range keys[:len(keys)-1] {
		switch next := at[key].(type) {
		case map[string]any:
			at = next
		case Document:
			at = next
		default:
			made := map[string]any{}
			at[key] = made
			at = made
		}
	}
	at[keys[len(keys)-1]] = value
	return d
}

// merge returns a copy of d in which the members of more replace those of d.
func (d Document) merge(more Document) Document {
	merged := Document{}
	for key, value := range d {
		merged[key] = value
	}
	for key, value := range more {
		merged[key] = value
	}
	return merged
}
