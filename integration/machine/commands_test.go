//go:build machine

package machine

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cambium/lab"
)

// runEach runs commands of a shell in a machine and returns exit code and output of each.
func runEach(t *testing.T, i *lab.Instance, commands []string) (codes []int, outputs []string) {
	t.Helper()
	var script strings.Builder
	for _, c := range commands {
		fmt.Fprintf(&script, "( %s ) </dev/null >/tmp/run-each 2>&1; echo \"exit $?\"; cat /tmp/run-each; printf '\\1'\n", c)
	}
	all := strings.Split(run(t, i, "su", "-", "root", "-c", script.String()), "\x01")
	if len(all) != len(commands)+1 {
		t.Fatalf("%d outputs of %d commands", len(all)-1, len(commands))
	}
	for _, one := range all[:len(commands)] {
		first, output, _ := strings.Cut(one, "\n")
		code, err := strconv.Atoi(strings.TrimPrefix(first, "exit "))
		if err != nil {
			t.Fatal(err)
		}
		codes, outputs = append(codes, code), append(outputs, output)
	}
	return codes, outputs
}

// documentedCommands runs the list of docs/operating.md, with each flag that it names.
func documentedCommands(t *testing.T, i *lab.Instance) {
	t.Helper()
	text, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := listed(string(text))
	if len(commands) < 30 {
		t.Fatalf("only %d commands are listed: %q", len(commands), commands)
	}
	codes, outputs := runEach(t, i, append([]string{"rm -rf /tmp/docs; mkdir /tmp/docs"}, commands...))
	for n, c := range commands {
		// What cannot succeed here says why.
		want := map[string]string{"agent run": "-P is", "agent timeline --boot -1": "boot -1 is not recorded",
			"agent compile": "identify the stemcell", "agent disk accept": "is not known", "agent disk format": "is not known",
			"agent disk release": "is not on record", "agent trial try": "runs here already",
			"agent trial keep": "no trial has confirmed", "agent trial back": "nothing to go back from"}
		code, output := codes[n+1], outputs[n+1]
		for prefix, why := range want {
			if strings.HasPrefix(c, prefix) && code == 1 && strings.Contains(output, why) {
				code = 0
			}
		}
		if code != 0 {
			t.Errorf("%s: exit code %d: %s", c, code, output)
		}
	}
}

var (
	listedCommand = regexp.MustCompile("(?m)^\\| `(agent [^|]+)` \\| (.*) \\| [^|]+ \\|$")
	listedFlag    = regexp.MustCompile("`(-[^`]+)`")
)

// listed expands the command table of docs/operating.md: each command with and without its optional words, and with each
// of its flags. A leading ellipsis repeats the command of the row.
func listed(text string) (all []string) {
	for _, row := range listedCommand.FindAllStringSubmatch(text, -1) {
		var forms []string
		for _, form := range strings.Split(row[1], "`, `") {
			if rest, found := strings.CutPrefix(form, "… "); found {
				command := strings.Fields(row[1])[1]
				form = "agent " + strings.Trim(command, "`,") + " " + rest
			}
			forms = append(forms, expand(form)...)
		}
		for _, flag := range listedFlag.FindAllStringSubmatch(row[2], -1) {
			if flag[1] == "--watch" { // which ends with a signal
				continue
			}
			for _, f := range expand(flag[1]) {
				forms = append(forms, forms[0]+" "+f)
			}
		}
		all = append(all, forms...)
	}
	for n, c := range all {
		all[n] = strings.NewReplacer("CID", "disk-1", "PATH", "agent_id", "DURATION", "10s", "DIRECTORY", "/tmp/docs",
			"RELEASE.tgz…", "/tmp/release.tgz",
			"FILE…", "/var/vcap/bosh/agent.json", "FILE", fmt.Sprintf("/tmp/docs/%d", n)).Replace(c)
	}
	return all
}

func expand(form string) []string {
	forms := []string{""}
	for _, word := range strings.Fields(form) {
		optional := strings.HasPrefix(word, "[")
		var next []string
		for _, f := range forms {
			if optional {
				next = append(next, f)
			}
			next = append(next, strings.TrimSpace(f+" "+strings.Trim(word, "[]")))
		}
		forms = next
	}
	return forms
}

// runHints pastes every command that a message of the agent advises to run.
func runHints(t *testing.T, i *lab.Instance) {
	t.Helper()
	hints := collectHints(t, "../..")
	if len(hints) < 25 {
		t.Fatalf("only %d hints: %q", len(hints), hints)
	}
	misused := regexp.MustCompile(`(?i)usage:|unrecognized|unknown (option|command|verb|operation)|invalid option|syntax error`)
	codes, outputs := runEach(t, i, append(hints, "ip link set eth0 mtu 1500"))
	for n, h := range hints {
		if code := codes[n]; code == 2 || code == 126 || code == 127 || code != 0 && misused.MatchString(outputs[n]) {
			t.Errorf("the hint %q fails: exit code %d: %s", h, code, outputs[n])
		}
	}
}

// hinted is a command in single quotes, not an apostrophe; %v stands for a value.
var hinted = regexp.MustCompile(`(?:^|[^\pL])'((?:agent|du|ip|journalctl|monit|networkctl|nft|resolvectl|sudo|systemctl|timedatectl)(?: [^']+)?)'`)

// values complete hints.
var values = []struct{ prefix, value string }{{"agent disk %v %v", "format"}, {"agent disk ", "disk-1"},
	{"agent validate ", "/var/vcap/bosh/agent.json"}, {"agent %v --help", "status"}, {"du ", "/tmp"},
	{"systemctl status ", "monit.service"}, {"resolvectl query ", "localhost"}, {"ip link set ", "eth0"}}

// collectHints finds the hints in the strings of the agent's source.
func collectHints(t *testing.T, root string) (hints []string) {
	t.Helper()
	found := map[string]bool{}
	for _, dir := range []string{"agent", "blobstore", "bootstrap", "cmd/agent", "desired", "infrastructure", "internal",
		"jobs",
		"mbus", "platform", "settings", "storage"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				e, ok := n.(ast.Expr)
				if !ok {
					return true
				}
				text, isText := constant(e)
				for _, m := range hinted.FindAllStringSubmatch(text, -1) {
					// Words of usages, which stand for others.
					if !strings.Contains(m[1], "…") && !strings.Contains(m[1], "COMMAND") {
						found[m[1]] = true
					}
				}
				return !isText
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for h := range found {
		for _, v := range values {
			if strings.HasPrefix(h, v.prefix) {
				h = strings.ReplaceAll(h, "%v", v.value)
			}
		}
		if strings.Contains(h, "%v") {
			t.Errorf("no value is known for the hint %q", h)
			continue
		}
		hints = append(hints, h)
	}
	slices.Sort(hints)
	return slices.Compact(hints)
}

var verb = regexp.MustCompile(`%[sdvqw]`)

// constant is the text of a string, or of a sum of strings and other values.
func constant(e ast.Expr) (text string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return verb.ReplaceAllString(text, "%v"), err == nil
		}
	case *ast.BinaryExpr:
		left, okLeft := constant(e.X)
		right, okRight := constant(e.Y)
		if e.Op == token.ADD && (okLeft || okRight) {
			if !okLeft {
				left = "%v"
			}
			if !okRight {
				right = "%v"
			}
			return left + right, true
		}
	}
	return "", false
}
