//go:build root

package assets

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// lookAlikes are the files of upstream's stemcells that have to do with the agent; a value that begins with "=" is the
// file that the name is a hard link to, one with ">" what it is a symbolic link to.
var lookAlikes = map[string]map[string]string{
	"jammy": {
		"var/vcap/bosh/bin/bosh-agent":             "upstream",
		"var/vcap/bosh/bin/monit":                  "#!/bin/bash\nexec monit-actual\n",
		"var/vcap/bosh/bin/monit-actual":           "monit",
		"var/vcap/bosh/etc/monit-access-helper.sh": "",
		"var/vcap/bosh/etc/operating_system":       "ubuntu",
		"var/vcap/bosh/agent.json":                 `{"Platform": {"Linux": {"UseMonitIptablesFirewall": true}}}`,
		"etc/sv/agent/run":                         "#!/bin/bash\nexec nice -n -15 /var/vcap/bosh/bin/bosh-agent -P $(cat /var/vcap/bosh/etc/operating_system) -C /var/vcap/bosh/agent.json\n",
		"etc/sv/agent/log/run":                     "#!/bin/bash\nsvlogd -tt /var/vcap/bosh/log\n",
		"etc/sv/monit/run":                         "",
		"etc/sv/monit/down":                        "",
		"etc/service/agent":                        ">/etc/sv/agent",
		"usr/local/bin/other":                      "",
	},
	"noble": {
		"var/vcap/bosh/bin/bosh-agent":                                  "upstream",
		"var/vcap/bosh/bin/monit":                                       "monit",
		"var/vcap/bosh/etc/bosh-enable-monit-access":                    "=var/vcap/bosh/bin/bosh-agent",
		"var/vcap/bosh/etc/operating_system":                            "ubuntu",
		"var/vcap/bosh/agent.json":                                      `{"Platform": {"Linux": {"ServiceManager": "systemd"}}}`,
		"var/vcap/bosh/log/current":                                     ">/var/log/bosh-agent.log",
		"lib/systemd/system/bosh-agent.service":                         "[Service]\nExecStart=/var/vcap/bosh/bin/bosh-agent-rc\n",
		"usr/local/bin/agent":                                           "of another tool",
		"etc/systemd/system/multi-user.target.wants/bosh-agent.service": ">/lib/systemd/system/bosh-agent.service",
	},
}

// TestRootSwap: there and back, and nothing but the agent and its link changes.
func TestRootSwap(t *testing.T) {
	for name, files := range lookAlikes {
		t.Run(name, func(t *testing.T) {
			root := emptyRoot(t)
			for _, later := range []bool{false, true} { // links after what they lead to
				for path, content := range files {
					if link := strings.HasPrefix(content, "="); link != later {
						continue
					}
					target := filepath.Join(root, path)
					err := os.MkdirAll(filepath.Dir(target), 0o755)
					if err == nil && strings.HasPrefix(content, "=") {
						err = os.Link(filepath.Join(root, content[1:]), target)
					} else if err == nil && strings.HasPrefix(content, ">") {
						err = os.Symlink(content[1:], target)
					} else if err == nil {
						err = os.WriteFile(target, []byte(content), 0o755)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
			}
			swap := func(what string) {
				t.Helper()
				if out, err := exec.Command("./swap", root, what).CombinedOutput(); err != nil {
					t.Fatalf("swap %s: %v: %s", what, err, out)
				}
			}
			before := contents(t, root)
			ours := filepath.Join(t.TempDir(), "agent")
			program := thisProgram(t)
			for _, version := range []string{"one", "two"} { // an upgrade keeps the first one
				if err := os.WriteFile(ours, append(program, version...), 0o600); err != nil {
					t.Fatal(err)
				}
				swap(ours)
			}
			want := strings.ReplaceAll(before, `"upstream"`, shown(append(program, "two"...)))
			after := contents(t, root)
			lines := without(strings.SplitAfter(after, "\n"), ".before-swap")
			if command := filepath.Join(root, "usr/local/bin/agent"); name == "jammy" { // where no other program has the name
				if to, err := os.Readlink(command); err != nil || to != "/var/vcap/bosh/bin/bosh-agent" {
					t.Errorf("the command agent leads to %q: %v", to, err)
				}
				lines = without(lines, command)
			}
			if strings.Join(lines, "") != want {
				t.Errorf("after the swap:\n%s\nwant:\n%s", after, want)
			}
			if name == "noble" {
				sameFile(t, root)
			}
			swap("--back")
			if after := contents(t, root); after != before {
				t.Errorf("after the way back:\n%s\nwant:\n%s", after, before)
			}
			if name == "noble" {
				sameFile(t, root)
			}
			if out, err := exec.Command("./swap", root, "--back").CombinedOutput(); err == nil {
				t.Errorf("a second way back was accepted: %s", out)
			}
		})
	}
}

// thisProgram is this test, which prints a version as an agent does.
func thisProgram(t *testing.T) []byte {
	t.Helper()
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	return data[:len(data):len(data)]
}

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "version" {
		fmt.Println("1.2.3")
		return
	}
	os.Exit(m.Run())
}

// TestRootSwapTriesTheAgent: what does not run does not replace what did.
func TestRootSwapTriesTheAgent(t *testing.T) {
	sideEffect := filepath.Join(t.TempDir(), "made")
	arm := []byte(elf)
	arm[18] = 0xb7
	for name, c := range map[string]struct {
		old, agent []byte
		want       string // "" if it is swapped
		warning    string
	}{
		"a text": {[]byte(elf), []byte("touch " + sideEffect + "\n"), "not a program", ""},
		"a script": {[]byte(elf), []byte("#!/bin/sh\ntouch " + sideEffect + "\necho 1.2.3\n"),
			"not a program", ""},
		"nothing": {[]byte(elf), nil, "not a program", ""},
		"damaged": {[]byte(elf), []byte(elf + "\ntouch " + sideEffect + "\necho 1.2.3\n"),
			"does not run", ""},
		"fails":                           {[]byte(elf), file(t, "/bin/false"), "does not run", ""},
		"says nothing":                    {[]byte(elf), file(t, "/bin/true"), "prints no version", ""},
		"another architecture":            {[]byte(elf), arm, "different architectures", ""},
		"of a tree for another machine":   {arm, append(arm, "new"...), "", "not tried"},
		"runs":                            {[]byte(elf), thisProgram(t), "", ""},
		"runs, in place of a text":        {[]byte("upstream"), thisProgram(t), "", ""},
		"not for this machine's stemcell": {arm, thisProgram(t), "different architectures", ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := emptyRoot(t)
			installed := filepath.Join(root, "var/vcap/bosh/bin/bosh-agent")
			agent := filepath.Join(t.TempDir(), "agent")
			if err := errors.Join(os.MkdirAll(filepath.Dir(installed), 0o755), os.WriteFile(installed, c.old, 0o755),
				os.WriteFile(agent, c.agent, 0o644)); err != nil {
				t.Fatal(err)
			}
			before := contents(t, root)
			out, err := exec.Command("./swap", root, agent).CombinedOutput()
			if c.want != "" {
				if err == nil || !strings.Contains(string(out), c.want) {
					t.Errorf("got %v: %q, want an error with %q", err, out, c.want)
				}
				if after := contents(t, root); after != before {
					t.Errorf("afterwards there is\n%s\nwant:\n%s", after, before)
				}
			} else if now, readErr := os.ReadFile(installed); errors.Join(err, readErr) != nil || !bytes.Equal(now, c.agent) {
				t.Errorf("not swapped: %v, %v: %s", err, readErr, out)
			}
			if c.warning == "" && c.want == "" && len(out) > 0 || !strings.Contains(string(out), c.warning) {
				t.Errorf("it says %q, want %q", out, c.warning)
			}
			if _, err := os.Lstat(sideEffect); err == nil {
				t.Error("a shell has run it")
			}
		})
	}
}

func file(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func without(lines []string, word string) (kept []string) {
	for _, line := range lines {
		if !strings.Contains(line, word) {
			kept = append(kept, line)
		}
	}
	return kept
}
