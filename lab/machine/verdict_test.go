package machine

import (
	"os"
	"strings"
	"testing"
)

// TestLastVerdict: a machine may write anything to its port.
func TestLastVerdict(t *testing.T) {
	dir := t.TempDir()
	if got, err := LastVerdict(dir); got != "" || err != nil {
		t.Errorf("without a file: %q, %v", got, err)
	}
	for text, want := range map[string]string{
		"": "", "\n\r\n": "", "half": "", "first\nsecond\n": "second", "first\r\nsecond\r\n": "second",
		"first\nhalf": "first", "\x1b[2J\xffred\n": "[2Jred",
		strings.Repeat("x", 1<<20) + "\nlast\n": "last",
		strings.Repeat("x", 1<<20) + "\n":       strings.Repeat("x", maxVerdict),
	} {
		if err := os.WriteFile(VerdictFile(dir), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := LastVerdict(dir); got != want || err != nil {
			t.Errorf("%.40q: got %.40q, %v; want %.40q", text, got, err, want)
		}
	}
}
