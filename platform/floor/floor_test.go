package floor

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/skiptest"
)

// TestNothingIsMissingByMistake: a probe must tell a refusal of its arguments from the absence of the call.
func TestNothingIsMissingByMistake(t *testing.T) {
	skiptest.WithoutRoot(t, "for the calls that mount")
	for _, f := range Missing("/") {
		switch f.Name {
		case "nftables", "control groups of version 2": // depend on the machine
			t.Logf("%s is missing here", f.Name)
		default:
			t.Errorf("%s is missing, says its probe: %v", f.Name, f.probe("/"))
		}
	}
}

func TestAbsence(t *testing.T) {
	for err, want := range map[error]bool{unix.ENOSYS: true, unix.EPERM: true, errMissing: true, unix.EBADF: false, unix.EINVAL: false, unix.ENOENT: false, nil: false} {
		if got := absent(err); got != want {
			t.Errorf("%v: got %v", err, got)
		}
	}
	root := t.TempDir()
	var names []string
	for _, f := range Missing(root) {
		names = append(names, f.Name)
	}
	if got := strings.Join(names, " and "); !strings.HasSuffix(got, "control groups of version 2 and /proc/net/tcp") {
		t.Errorf("in an empty root %q are missing", got)
	}
}

func TestDescribe(t *testing.T) {
	got := Describe([]Feature{{Name: "a", Without: "x fails"}, {Name: "b", Without: "y is slow"}, {Name: "c", Without: "x fails"}})
	if want := "without a, c: x fails; without b: y is slow"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := Describe(nil); got != "" {
		t.Errorf("got %q", got)
	}
}

// TestPageHasEveryFeature keeps docs/stemcells.md complete.
func TestPageHasEveryFeature(t *testing.T) {
	page, err := os.ReadFile("../../docs/stemcells.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range features() {
		found := false
		for line := range strings.Lines(string(page)) {
			first, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
			found = found || strings.HasPrefix(line, "|") && strings.Contains(first, f.Name)
		}
		if !found {
			t.Errorf("docs/stemcells.md has no row for %s", f.Name)
		}
	}
}
