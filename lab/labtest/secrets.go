package labtest

import (
	_ "embed"
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"cambium/lab"
	"cambium/lab/machine"
)

// Patterns is the file in the machine with the secrets to search for, one a line.
const Patterns = "/root/patterns"

// Secrets writes the secrets of the machine's settings, and more, to Patterns. Call remove to delete the file. The
// searches below need it.
func (k Kind) Secrets(t testing.TB, i *lab.Instance, more ...string) (remove func()) {
	t.Helper()
	var settings any
	document := k.Run(t, i, "sh", "-c", "cat $(find /var/vcap/bosh -name settings.json | head -1)")
	if err := json.Unmarshal([]byte(document), &settings); err != nil {
		t.Fatal(err)
	}
	var all []string
	collectSecrets(settings, "", &all)
	if len(all) < 2 {
		t.Fatalf("the settings contain %d secrets", len(all))
	}
	patterns := strings.Join(append(all, more...), "\n") + "\n"
	for _, file := range []machine.File{{Path: Patterns, Data: []byte(patterns), Mode: 0o600},
		{Path: devicesPath, Data: devicesProgram, Mode: 0o644}} {
		if err := i.WriteFile(file); err != nil {
			t.Fatal(err)
		}
	}
	if k.Search(t, i, "grep -rlaFf "+Patterns+" /var/vcap/bosh") == "" {
		t.Fatal("the patterns do not even match the settings")
	}
	return func() { k.Run(t, i, "rm", Patterns, devicesPath) }
}

// Search runs a command that searches for the patterns, and returns what it has found, or "".
func (k Kind) Search(t testing.TB, i *lab.Instance, command string) string {
	t.Helper()
	text := strings.TrimSpace(k.Run(t, i, "sh", "-c", "{ "+command+" ; } 2>/dev/null || true"))
	if text == "0" {
		return ""
	}
	return text
}

// FilesOfJobs is a command that searches every file that vcap can read, except in /proc and /sys.
const FilesOfJobs = "runuser -u vcap -- grep -rlaFs -D skip -f - " +
	"$(find / -mindepth 1 -maxdepth 1 -type d -not -name proc -not -name sys) <" + Patterns

//go:embed devices.pl
var devicesProgram []byte

// DevicesOfJobs is a command that searches every device that vcap can read.
const DevicesOfJobs = "runuser -u vcap -- perl " + devicesPath + " <" + Patterns

// devicesPath is the path of the program that Secrets writes.
const devicesPath = "/run/devices.pl"

// collectSecrets appends the values of keys that sound like secrets, and passwords in URLs. Of a PEM block it appends
// one line from the middle.
func collectSecrets(value any, key string, all *[]string) {
	switch v := value.(type) {
	case map[string]any:
		for k, each := range v {
			if strings.HasPrefix(key, "options") {
				k = "options." + k
			}
			collectSecrets(each, strings.ToLower(k), all)
		}
	case []any:
		for _, each := range v {
			collectSecrets(each, key, all)
		}
	case string:
		if u, err := url.Parse(v); err == nil && u.User != nil {
			if password, given := u.User.Password(); given && len(password) > 3 {
				*all = append(*all, password)
			}
		}
		for _, word := range []string{"password", "private_key", "secret", "token"} {
			if !strings.Contains(key, word) || len(v) < 4 {
				continue
			}
			if lines := strings.Split(strings.TrimSpace(v), "\n"); len(lines) > 2 {
				v = lines[len(lines)/2]
			}
			*all = append(*all, v)
			break
		}
	}
}
