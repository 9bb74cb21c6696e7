package support

import (
	"bytes"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// scrubber removes known secrets from every file of the archive. The agent's own output has none. Journals, and errors
// of other programs, may.
type scrubber struct{ secrets []string }

// minSecret is the length of the shortest secret that is removed. Shorter values are words that occur everywhere.
const minSecret = 6

// value matches a JSON string that is not a member's name, even in a truncated or damaged document.
var value = regexp.MustCompile(`"((?:[^"\\]|\\.)*)("\s*:|"|$)`)

// newScrubber returns a scrubber for all values of the raw documents that are not in their public forms.
func newScrubber(raw, public [][]byte) scrubber {
	known := map[string]bool{}
	for _, p := range public {
		for _, v := range values(p) {
			known[v] = true
		}
	}
	var s scrubber
	add := func(text string) {
		if len(text) >= minSecret && !known[text] && !slices.Contains(s.secrets, text) {
			s.secrets = append(s.secrets, text)
		}
	}
	for _, r := range raw {
		for _, v := range values(r) {
			if known[v] {
				continue
			}
			if u, err := url.Parse(v); err == nil && u.User != nil {
				// The rest of a URL is not a secret.
				password, _ := u.User.Password()
				add(password)
				continue
			}
			// Programs print keys line by line.
			for _, line := range strings.Split(v, "\n") {
				if !strings.HasPrefix(line, "-----") {
					add(line)
				}
			}
		}
	}
	// A secret that contains another goes first.
	slices.SortFunc(s.secrets, func(a, b string) int { return len(b) - len(a) })
	return s
}

func values(document []byte) (found []string) {
	for _, m := range value.FindAllSubmatch(document, -1) {
		if bytes.HasSuffix(m[2], []byte(":")) {
			continue
		}
		var text string
		if json.Unmarshal(slices.Concat([]byte{'"'}, m[1], []byte{'"'}), &text) != nil {
			text = string(m[1])
		}
		found = append(found, text)
	}
	return found
}

// clean replaces secrets with ***, in plain text and as JSON strings.
func (s scrubber) clean(data []byte) []byte {
	for _, secret := range s.secrets {
		data = bytes.ReplaceAll(data, []byte(secret), []byte("***"))
		if quoted, err := json.Marshal(secret); err == nil {
			data = bytes.ReplaceAll(data, quoted[1:len(quoted)-1], []byte("***"))
		}
	}
	return data
}
