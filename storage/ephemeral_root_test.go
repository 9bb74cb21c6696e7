//go:build root

package storage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cambium/platform/filesystem"
)

func TestRootEphemeralBlankDisk(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(512<<20, "")
	b.ok(b.setupEphemeral(dev.Path, nil))

	if got, want := mountedSource(t, b.Dirs.Data()), dev.Path+"p2"; got != want {
		t.Errorf("data is %q, want %q", got, want)
	}
	if active, err := filesystem.SwapActive(dev.Path + "p1"); err != nil || !active {
		t.Errorf("swap active = %v, %v; want true", active, err)
	}
	dump := tool(t, dev.Path, "sfdisk", "--dump", dev.Path)
	for _, want := range []string{"label: gpt", `name="bosh-partition-agent-1-0"`, `name="bosh-partition-agent-1-1"`,
		"start=        2048, size=      131072", "start=      133120, size=      913408"} {
		if !strings.Contains(dump, want) {
			t.Errorf("sfdisk --dump lacks %q:\n%s", want, dump)
		}
	}
	if got := tool(t, dev.Path, "sgdisk", "--verify", dev.Path); !strings.Contains(got, "No problems found") {
		t.Errorf("sgdisk --verify: %s", got)
	}

	write(t, filepath.Join(b.Dirs.Data(), "kept"), "x")
	before := tool(t, dev.Path, "sfdisk", "--dump", dev.Path)
	b.ok(b.setupEphemeral(dev.Path, nil))
	if after := tool(t, dev.Path, "sfdisk", "--dump", dev.Path); after != before {
		t.Errorf("a second run changed the table:\n%s\n%s", before, after)
	}
	if read(t, filepath.Join(b.Dirs.Data(), "kept")) != "x" {
		t.Error("a second run lost data")
	}
	if _, err := os.Stat(b.intentFile()); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(read(t, b.intentFile())); got != "{}" {
		t.Errorf("intents after success: %s, want none", got)
	}
}
