package features

import (
	"flag"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/skiptest"
	"cambium/internal/testdoc"
)

// TestNothingIsMissingByMistake: a probe must distinguish invalid arguments from a missing system call.
func TestNothingIsMissingByMistake(t *testing.T) {
	skiptest.WithoutRoot(t, "for the calls that mount")
	for _, f := range Missing("/") {
		switch f.Name {
		case "nftables", "cgroup v2": // depend on the machine
			t.Logf("%s is missing here", f.Name)
		default:
			t.Errorf("%s is missing, says its probe: %v", f.Name, f.probe("/"))
		}
	}
}

func TestAbsence(t *testing.T) {
	for err, want := range map[error]bool{unix.ENOSYS: true, unix.EPERM: true, errMissing: true, unix.EBADF: false,
		unix.EINVAL: false, unix.ENOENT: false, nil: false} {
		if got := absent(err); got != want {
			t.Errorf("%v: got %v", err, got)
		}
	}
	root := t.TempDir()
	var names []string
	for _, f := range Missing(root) {
		names = append(names, f.Name)
	}
	if got := strings.Join(names, " and "); !strings.HasSuffix(got, "cgroup v2 and /proc/net/tcp") {
		t.Errorf("in an empty root %q are missing", got)
	}
}

func TestDescribe(t *testing.T) {
	got := Describe([]Feature{{Name: "a", Without: "x fails"}, {Name: "b", Without: "y is slow"}, {Name: "c",
		Without: "x fails"}})
	if want := "without a, c: x fails; without b: y is slow"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := Describe(nil); got != "" {
		t.Errorf("got %q", got)
	}
}

var update = flag.Bool("update", false, "write the table into docs/stemcells.md")

// TestFeaturesAreOnThePage: docs/stemcells.md lists each feature and the effect of its absence.
func TestFeaturesAreOnThePage(t *testing.T) {
	page := "\n| feature | without it |\n|---|---|\n"
	for _, f := range features() {
		page += "| " + f.Name + " | " + f.Without + " |\n"
	}
	if err := testdoc.CheckPart("../../docs/stemcells.md", "features", page+"\n", *update); err != nil {
		t.Error(err)
	}
}
