package completion

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cambium/cmd/agent/cli"
)

// TestBashCompletes loads the script into bash and completes words as the shell would.
func TestBashCompletes(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	table := cli.Table{
		{Name: "status", Summary: "show", Run: func(_ context.Context, args []string, stdout, stderr io.Writer) int {
			flags := cli.NewFlags("status", cli.Help{}, stdout, stderr)
			flags.Bool("json", false, "print JSON")
			flags.String("C", "", "`FILE`")
			code, _ := flags.Parse(args, 0, 0)
			return code
		}},
		{Name: "validate", Summary: "check", Run: func(_ context.Context, args []string, stdout, stderr io.Writer) int {
			code, _ := cli.NewFlags("validate", cli.Help{Words: []string{"settings", "agent.json"}}, stdout, stderr).Parse(args, 0, 1)
			return code
		}},
	}
	script := filepath.Join(t.TempDir(), "completion")
	if err := os.WriteFile(script, []byte(scripts["bash"]("cambium-agent", table.Describe(t.Context()))), 0o600); err != nil {
		t.Fatal(err)
	}
	for words, want := range map[string]string{
		"cambium-agent st": "status", "cambium-agent status -": "-C --json --help", "cambium-agent validate s": "settings",
		"cambium-agent help v": "validate", "cambium-agent status x": "", "cambium-agent --v": "--version",
	} {
		out, err := exec.CommandContext(t.Context(), bash, "-euc", `source "$1"; COMP_WORDS=($2); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _cambium_agent; echo "${COMPREPLY[*]}"`, "bash", script, words).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%q is completed to %q, %v; want %q", words, got, err, want)
		}
	}
}
