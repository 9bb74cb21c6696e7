package completion

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/cmd/agent/cli"
	"cambium/internal/looptest"
)

// sample is a table with characters that shells give a meaning.
func sample() cli.Table {
	return cli.Table{
		{Name: "status", Summary: "show [the] agent's: \"state\" for $5 `now`", Run: func(_ context.Context, args []string, stdout, stderr io.Writer) int {
			flags := cli.NewFlags("status", cli.Help{}, stdout, stderr)
			flags.Bool("json", false, "print it's JSON: [all] of $it")
			flags.String("C", "", "`FILE`")
			code, _ := flags.Parse(args, 0, 0)
			return code
		}},
		{Name: "validate", Summary: "check", Run: func(_ context.Context, args []string, stdout, stderr io.Writer) int {
			code, _ := cli.NewFlags("validate", cli.Help{Words: []string{"settings", "agent.json"}}, stdout, stderr).Parse(args,
				0, 1)
			return code
		}},
	}
}

// shell finds a shell, and writes the script for it to a file.
func shell(t *testing.T, name string) (program, script string) {
	t.Helper()
	looptest.Needs(t, name)
	program, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	script = filepath.Join(t.TempDir(), "_cambium-agent")
	if err := os.WriteFile(script, []byte(scripts[name]("cambium-agent", sample().Describe(t.Context()))),
		0o600); err != nil {
		t.Fatal(err)
	}
	return program, script
}

// TestShellsReadTheirScripts: the scripts of the stemcell have no mistake in their syntax.
func TestShellsReadTheirScripts(t *testing.T) {
	for _, name := range Shells {
		t.Run(name, func(t *testing.T) {
			program, _ := shell(t, name)
			if out, err := exec.CommandContext(t.Context(), program, "-n",
				"../../../stemcell-assets/share/agent."+name).CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// TestBashCompletes loads the script into bash and completes words as the shell would.
func TestBashCompletes(t *testing.T) {
	bash, script := shell(t, "bash")
	for words, want := range map[string]string{
		"cambium-agent st": "status", "cambium-agent status -": "-C --json --help", "cambium-agent validate s": "settings",
		"cambium-agent help v": "validate", "cambium-agent status x": "", "cambium-agent --v": "--version",
	} {
		out, err := exec.CommandContext(t.Context(), bash, "-euc",
			`source "$1"; COMP_WORDS=($2); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _cambium_agent; echo "${COMPREPLY[*]}"`,
			"bash", script, words).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%q is completed to %q, %v; want %q", words, got, err, want)
		}
	}
}

// TestFishCompletes asks fish for its completions, each with its description after a tabulator.
func TestFishCompletes(t *testing.T) {
	fish, script := shell(t, "fish")
	for words, want := range map[string]string{
		"cambium-agent st":          "status\tshow [the] agent's: \"state\" for $5 `now`",
		"cambium-agent status --j":  "--json\tprint it's JSON: [all] of $it",
		"cambium-agent validate se": "settings", "cambium-agent help v": "validate",
	} {
		cmd := exec.CommandContext(t.Context(), fish, "--no-config", "-c", "source $argv[1]; complete -C $argv[2]", script,
			words)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%q is completed to %q, %v; want %q", words, got, err, want)
		}
	}
}

// completeInZsh types words and a tabulator into an interactive zsh, whose completion works nowhere else, and prints what
// the line then is, for each of its arguments.
const completeInZsh = `zmodload zsh/zpty
zpty -b z zsh -f -i
zpty -w z "fpath=(${(q)1:h} \$fpath); autoload -U compinit; compinit -u -D; PROMPT=; show() { print -r -- \"<<\$BUFFER>>\"; BUFFER= }; zle -N show; bindkey ^I complete-word; bindkey ^X show; print re''ady"
line=; until [[ $line == *ready* ]] { zpty -r z line '*'$'\n' }
for words in "${@:2}"; do
	zpty -n -w z "$words"$'\t\x18'
	line=; until [[ $line == *'<<'*'>>'* ]] { zpty -r z line '*'$'\n' }
	line=${line#*'<<'}; print -r -- ${line%%'>>'*}
done
zpty -d z`

func TestZshCompletes(t *testing.T) {
	zsh, script := shell(t, "zsh")
	typed := []string{"cambium-agent st", "cambium-agent status --j", "cambium-agent validate se", "cambium-agent help v"}
	want := []string{"cambium-agent status", "cambium-agent status --json", "cambium-agent validate settings",
		"cambium-agent help validate"}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, zsh, append([]string{"-f", "-c", completeInZsh, "zsh", script}, typed...)...)
	cmd.Env, cmd.WaitDelay = append(os.Environ(), "HOME="+t.TempDir(), "TERM=dumb"), time.Second
	out, err := cmd.CombinedOutput()
	var got []string
	for line := range strings.Lines(string(out)) {
		got = append(got, strings.TrimSpace(line))
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q are completed to %q, %v; want %q", typed, got, err, want)
	}
}
