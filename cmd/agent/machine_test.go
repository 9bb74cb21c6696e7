package main

import (
	"os"
	"path/filepath"
	"testing"

	"cambium/settings/agentjson"
)

// TestMonitUnderRunit: a service of runit is used where the stemcell ships one and does not say that it has systemd's.
func TestMonitUnderRunit(t *testing.T) {
	jammy, noble := t.TempDir(), t.TempDir()
	run := filepath.Join(jammy, "etc/sv/monit/run")
	if err := os.MkdirAll(filepath.Dir(run), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(run, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		root, manager string
		want          bool
	}{
		"jammy":                         {jammy, "", true},
		"noble":                         {noble, "systemd", false},
		"early noble":                   {noble, "", false},
		"a service of another stemcell": {jammy, "systemd", false},
	} {
		if got := monitUnderRunit(row.root, agentjson.Linux{ServiceManager: row.manager}); got != row.want {
			t.Errorf("%s: got %v, want %v", name, got, row.want)
		}
	}
}
