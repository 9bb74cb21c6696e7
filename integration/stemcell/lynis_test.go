//go:build nightly

package stemcell

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cambium/internal/skiptest"
	"cambium/lab"
	"cambium/lab/image"
	"cambium/lab/labtest"
	"cambium/lab/machine/nspawn"
	"cambium/lab/tree"
)

// lynisPage is the committed report.
const lynisPage = "../../docs/results/lynis.md"

// TestNightlyLynis has Debian's lynis judge booted machines of the stemcell without the hardening profile and with it, and
// writes the report. They are containers: of lynis' kernel tests those of the host's kernel are left out.
func TestNightlyLynis(t *testing.T) {
	if _, err := exec.LookPath("lynis"); err != nil {
		skiptest.Skip(t, "lynis is not installed (package lynis)")
	}
	before, after := judge(t, true), judge(t, false)
	if after.index <= before.index {
		t.Errorf("lynis' index is %d with the profile, and %d without it", after.index, before.index)
	}
	if len(after.warnings) > 0 {
		t.Errorf("lynis warns of the hardened stemcell: %q", after.warnings)
	}
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, `# What lynis says of the stemcell

`+"`TestNightlyLynis`"+` (nightly) writes this page: Debian's lynis on a booted machine of the stemcell, as a container, without the hardening profile and with it.
Tests of the kernel and of its command line are left out, since the kernel is the host's.

| | without | with |
|---|---|---|
| hardening index | %d | %d |
| warnings | %d | %d |
| suggestions | %d | %d |

## What the profile ends

`, before.index, after.index, len(before.warnings), len(after.warnings), len(before.suggestions), len(after.suggestions))
	list := func(findings map[string]string, other map[string]string) {
		n := 0
		for _, id := range slices.Sorted(maps.Keys(findings)) {
			if _, found := other[id]; !found {
				_, _ = fmt.Fprintf(&b, "- %s: %s\n", strings.Split(id, " ")[0], findings[id])
				n++
			}
		}
		if n == 0 {
			b.WriteString("Nothing.\n")
		}
	}
	list(before.suggestions, after.suggestions)
	b.WriteString("\n## What is left\n\n")
	list(after.suggestions, nil)
	if err := os.WriteFile(lynisPage, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// unpackTree returns the root file system of a container's stemcell.
func unpackTree(t testing.TB, file string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const script = `tar -xzf "$1" -O image | tar -xzp --numeric-owner --xattrs --xattrs-include='*' -C "$2"`
	if out, err := exec.CommandContext(t.Context(), "sh", "-euc", script, "sh", file, dir).CombinedOutput(); err != nil {
		t.Fatalf("unpack %s: %v: %s", file, err, out)
	}
	return dir
}

type verdict struct {
	index       int
	warnings    []string
	suggestions map[string]string // by test and text
}

// judge boots a stemcell and has lynis look at it.
func judge(t *testing.T, plain bool) (v verdict) {
	t.Helper()
	cache := image.Cache{Dir: tree.DefaultDir(), Progress: t.Logf}
	file, err := cache.EnsureStemcell(t.Context(), labtest.Agent(t),
		image.Stemcell{Version: version, IaaS: "warden", Plain: plain})
	if err != nil {
		t.Fatal(err)
	}
	root := unpackTree(t, file)
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", "--parents", "/usr/sbin/lynis", "/usr/share/lynis",
		"/etc/lynis", root).CombinedOutput(); err != nil {
		t.Fatalf("lynis: %v: %s", err, out)
	}
	kind := labtest.Kind{Engine: nspawn.Engine{Tree: root}, Letter: "n", Timeout: 5 * time.Minute}
	l := kind.Lab(t)
	i := labtest.Start(t, l, lab.VM{Ephemeral: lab.GiB})
	kind.Ready(t, i)
	kind.Run(t, i, "sh", "-c", "systemctl is-system-running --wait; systemctl start ssh rsyslog; cat >/etc/lynis/custom.prf <<E\nskip-test=KRNL-5677\nskip-test=KRNL-5788\nskip-test=KRNL-6000\nskip-test=BOOT-5122\nskip-test=FIRE-4512\nE\n"+
		"lynis audit system --quick --no-colors --quiet >/dev/null 2>&1; true")
	v.suggestions = map[string]string{}
	for line := range strings.Lines(kind.Run(t, i, "cat", "/var/log/lynis-report.dat")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		id, text, _ := strings.Cut(value, "|")
		text, _, _ = strings.Cut(text, "|")
		switch name {
		case "hardening_index":
			v.index, err = strconv.Atoi(value)
		case "warning[]":
			v.warnings = append(v.warnings, id+": "+text)
		case "suggestion[]":
			v.suggestions[id+" "+text] = text
		}
	}
	if err != nil || v.index == 0 {
		t.Fatalf("lynis gave no index: %v", err)
	}
	return v
}
