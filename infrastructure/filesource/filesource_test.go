package filesource

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/infrastructure/internal/source"
)

func write(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSettings(t *testing.T) {
	dir := t.TempDir()
	settings := write(t, dir, "settings.json", `{"agent_id":"s"}`)
	userData := write(t, dir, "user-data", `{"registry":{"endpoint":"http://r"}}`)
	broken := write(t, dir, "broken", "{\"agent_id\":\"canary\",\n")
	missing := filepath.Join(dir, "missing")
	for _, c := range []struct {
		name string
		o    Options
		want string
		kind source.Kind
	}{
		{"plain", Options{SettingsPath: settings}, `{"agent_id":"s"}`, 0},
		{"user data is not looked at", Options{SettingsPath: settings, UserDataPath: userData}, `{"agent_id":"s"}`, 0},
		{"with UseRegistry it is", Options{SettingsPath: settings, UserDataPath: userData, UseRegistry: true},
			`{"registry":{"endpoint":"http://r"}}`, 0},
		{"unless it cannot be read", Options{SettingsPath: settings, UserDataPath: missing, UseRegistry: true},
			`{"agent_id":"s"}`, 0},
		{"missing", Options{SettingsPath: missing, UserDataPath: userData, UseRegistry: true}, "", source.Definite},
		{"not named", Options{}, "", source.Definite},
		{"just being written", Options{SettingsPath: broken}, "", source.NotYetThere},
		{"empty", Options{SettingsPath: write(t, dir, "empty", "")}, "", source.NotYetThere},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer, err := New(c.o).Settings(t.Context())
			if string(answer.Raw.Reveal()) != c.want || (err == nil) != (c.want != "") ||
				err != nil && source.KindOf(err) != c.kind {
				t.Errorf("%s, error %v of kind %d; want %s, kind %d", answer.Raw.Reveal(), err, source.KindOf(err), c.want, c.kind)
			}
			if err != nil && strings.Contains(err.Error(), "canary") {
				t.Errorf("error %v shows content", err)
			}
		})
	}
}

// TestSyntaxErrorHasAPlace: the error of an invalid document contains the position, and the command that lists all
// mistakes.
func TestSyntaxErrorHasAPlace(t *testing.T) {
	path := write(t, t.TempDir(), "settings.json", "{\"agent_id\":\n  oops}")
	_, err := New(Options{SettingsPath: path}).Settings(t.Context())
	want := path + ": not valid JSON at line 2, column 3: expected a value; " +
		"'agent validate settings " + path + "' shows where"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestRewrittenFileIsSeen(t *testing.T) {
	dir := t.TempDir()
	s := New(Options{SettingsPath: write(t, dir, "s", `{"agent_id":"1"}`)})
	if _, err := s.Settings(t.Context()); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "s", `{"agent_id":"1","disks":{"persistent":{"d":"/x"}}}`)
	if answer, err := s.Settings(t.Context()); err != nil || !strings.Contains(string(answer.Raw.Reveal()), "persistent") {
		t.Errorf("%v, want the new content", err)
	}
}

func TestPublicKey(t *testing.T) {
	dir := t.TempDir()
	for content, want := range map[string]string{`{"agent_id":"s"}`: "", `{"public_key":"ssh-rsa A"}`: "ssh-rsa A",
		`{"public_key":7}`: "", "garbage": ""} {
		if key, err := New(Options{SettingsPath: write(t, dir, "s", content)}).PublicKey(t.Context()); key != want ||
			err != nil {
			t.Errorf("%s: %q, %v; want %q", content, key, err, want)
		}
	}
	if _, err := New(Options{SettingsPath: filepath.Join(dir,
		"missing")}).PublicKey(t.Context()); source.KindOf(err) != source.Definite {
		t.Errorf("missing file: error %v, want a final one, so that the next source is asked", err)
	}
}

func TestInstanceID(t *testing.T) {
	dir := t.TempDir()
	s := New(Options{SettingsPath: "x", MetaDataPath: write(t, dir, "m", `{"instance-id":"i-1"}`)})
	if id, err := s.InstanceID(t.Context()); id != "i-1" || err != nil {
		t.Errorf("%q, %v; want i-1", id, err)
	}
	if id, err := New(Options{}).InstanceID(t.Context()); id != "" || err != nil {
		t.Errorf("without a path: %q, %v; want nothing", id, err)
	}
}
