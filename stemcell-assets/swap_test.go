//go:build root

package assets

import (
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
	},
	"noble": {
		"var/vcap/bosh/bin/bosh-agent":                                  "upstream",
		"var/vcap/bosh/bin/monit":                                       "monit",
		"var/vcap/bosh/etc/bosh-enable-monit-access":                    "=var/vcap/bosh/bin/bosh-agent",
		"var/vcap/bosh/etc/operating_system":                            "ubuntu",
		"var/vcap/bosh/agent.json":                                      `{"Platform": {"Linux": {"ServiceManager": "systemd"}}}`,
		"var/vcap/bosh/log/current":                                     ">/var/log/bosh-agent.log",
		"lib/systemd/system/bosh-agent.service":                         "[Service]\nExecStart=/var/vcap/bosh/bin/bosh-agent-rc\n",
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
			if err := os.WriteFile(ours, []byte("ours"), 0o600); err != nil {
				t.Fatal(err)
			}
			swap(ours)
			swap(ours) // an upgrade keeps the first one
			want := strings.ReplaceAll(before, `"upstream"`, `"ours"`)
			after := contents(t, root)
			if lines := strings.SplitAfter(after, "\n"); strings.Join(without(lines, ".before-swap"), "") != want {
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

func without(lines []string, word string) (kept []string) {
	for _, line := range lines {
		if !strings.Contains(line, word) {
			kept = append(kept, line)
		}
	}
	return kept
}
