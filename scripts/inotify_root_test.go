//go:build root

package scripts

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestRootInotifyLimit: the command has the limit it needs, its exit status is the script's, and the host's limit is
// restored.
func TestRootInotifyLimit(t *testing.T) {
	const path = "/proc/sys/fs/inotify/max_user_instances"
	read := func() int {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := read()
	want := strconv.Itoa(before + 1)
	out, err := exec.Command("./inotify-limit", want, "sh", "-c", "cat "+path+"; exit 3").CombinedOutput()
	failed, ok := err.(*exec.ExitError)
	if strings.TrimSpace(string(out)) != want || !ok || failed.ExitCode() != 3 {
		t.Errorf("with a limit of %s the command prints %q and ends with %v, want that limit and exit status 3",
			want, out, err)
	}
	if after := read(); after != before {
		t.Errorf("the limit is %d afterwards, want %d", after, before)
	}
}
