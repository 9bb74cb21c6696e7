package lab

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Document is a settings document, or a part of one, as a CPI writes it: plain JSON, so that
// tests can send what no type of ours can express.
type Document map[string]any

// JSON is the document as it goes over the wire.
func (d Document) JSON() []byte {
	data, err := json.Marshal(d)
	if err != nil {
		// Only values that a test invented can fail here, and then the test is wrong.
		panic(fmt.Sprintf("settings document: %v", err))
	}
	return data
}

// Set puts a value at a path of keys joined by dots, making the objects on the way.
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

// merge returns a copy of d with the members of more over it, one level deep.
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
