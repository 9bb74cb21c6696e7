//go:build vm && nightly

package vm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"cambium/lab"
	"cambium/lab/labtest"
)

// TestNightlyVMCommandLine uses the command line as a person does: a lab with a virtual machine, a shell in it, the
// power switch.
func TestNightlyVMCommandLine(t *testing.T) {
	t.Parallel()
	virtual.Need(t)
	bin, err := labtest.Program("lab", "cambium/cmd/lab")
	if err == nil { // which it looks for beside itself
		_, err = labtest.Program("lab-guest", "cambium/lab/guest/program")
	}
	if err != nil {
		t.Fatal(err)
	}
	dir, name := t.TempDir(), fmt.Sprintf("qc%d", os.Getpid())
	t.Cleanup(func() {
		if err := lab.Clean(dir, name); err != nil {
			t.Error(err)
		}
	})
	command := func(input string, args ...string) (string, int) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), bin, args...)
		cmd.Env = append(os.Environ(), "LAB="+name, "CAMBIUM_LAB_DIR="+dir)
		cmd.Stdin = strings.NewReader(input)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return out.String(), cmd.ProcessState.ExitCode()
	}
	for _, c := range []struct {
		args   []string
		input  string
		want   string
		status int
	}{
		{[]string{"up", "--engine", "qemu", "--agent", labtest.Agent(t)}, "", "the agent answered", 0},
		{[]string{"shell", "--", "sh", "-c", "cat; uname -r; exit 5"}, "hello ", "hello 6.1.0-", 5},
		{[]string{"call", "ping"}, "", "pong", 0},
		{[]string{"power", "cycle"}, "", "cycle vm1", 0},
		{[]string{"call", "ping"}, "", "pong", 0},
		{[]string{"power", "cut"}, "", "cut vm1", 0},
		{[]string{"shell", "--", "true"}, "", "is off", 1},
		{[]string{"power", "up"}, "", `"up" is not one of`, 2},
		{[]string{"up", "--engine", "abacus"}, "", "unknown engine", 2},
		{[]string{"down"}, "", "", 0},
	} {
		out, status := command(c.input, c.args...)
		if status != c.status || !strings.Contains(out, c.want) {
			t.Fatalf("lab %s: status %d, want %d with %q:\n%s", strings.Join(c.args, " "), status, c.status, c.want, out)
		}
	}
}
