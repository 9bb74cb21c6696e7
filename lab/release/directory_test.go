package release

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestReadSource: the release of the agent, packed without the bosh CLI, has all its parts.
func TestReadSource(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "release")
	if err := os.CopyFS(dir, os.DirFS("../../release")); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"agent-linux-amd64": "amd64", "agent-linux-arm64": "arm64",
		"swap": "#!/bin/sh\n"} {
		if err := os.WriteFile(filepath.Join(dir, "src/cambium-agent", name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s, err := ReadSource(dir, "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "r.tgz")
	if err := s.Write(path); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := members(t, data)
	for job, want := range map[string]string{"cambium-agent": "bin/pre-start", "try": "bin/run", "keep": "bin/run",
		"status": "bin/run", "back": "bin/run"} {
		parts := members(t, files["jobs/"+job+".tgz"])
		var spec struct {
			Templates  map[string]string
			Properties map[string]any
		}
		if err := json.Unmarshal(parts["job.MF"], &spec); err != nil ||
			!slices.Equal(slices.Collect(maps.Values(spec.Templates)), []string{want}) {
			t.Errorf("job %s: %v, %s", job, err, parts["job.MF"])
		}
		if job == "try" && spec.Properties["time"] == nil {
			t.Errorf("job try has no property time: %s", parts["job.MF"])
		}
	}
	parts := slices.Sorted(maps.Keys(members(t, files["packages/cambium-agent.tgz"])))
	if want := []string{"cambium-agent", "cambium-agent/agent-linux-amd64", "cambium-agent/agent-linux-arm64",
		"cambium-agent/errand", "cambium-agent/swap", "packaging"}; !slices.Equal(
		slices.DeleteFunc(parts, func(p string) bool { return p == "." }), want) {
		t.Errorf("the package has %q, want %q", parts, want)
	}
}

func TestReadSourceOfABadDirectory(t *testing.T) {
	if _, err := ReadSource(t.TempDir(), "1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty directory: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "release")
	if err := errors.Join(os.CopyFS(dir, os.DirFS("../../release")),
		os.Remove(filepath.Join(dir, "src/cambium-agent/errand"))); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSource(dir, "1"); err == nil {
		t.Error("a package without files was accepted")
	}
}
