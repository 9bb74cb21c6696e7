package main

import (
	"strings"
	"testing"

	"cambium/internal/vcap"
	"cambium/platform/unit"
)

// TestSupervisorProgram: the agent's own supervisor needs systemd, and its absence is a reason of its own. With monit the
// drop-in is to be gone, regardless of who wrote it.
func TestSupervisorProgram(t *testing.T) {
	for name, c := range map[string]struct {
		manager services
		own     bool
		content string // of the drop-in
		path    bool
		err     string
	}{
		"monit under runit":   {manager: &unit.Runit{}},
		"monit under systemd": {manager: &unit.Systemd{}, path: true},
		"own under systemd": {manager: &unit.Systemd{}, own: true, path: true,
			content: "ExecStart=\nExecStart=/run/cambium/bin/monit supervise\n"},
		"own under runit": {manager: &unit.Runit{}, own: true, err: "runit runs monit here: use -M monit"},
	} {
		program, err := supervisorProgram(machineOptions{dirs: vcap.New("/base"), ownSupervisor: c.own}, c.manager)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if (program.Path != "") != c.path || !strings.Contains(string(program.Content), c.content) ||
			(len(program.Content) > 0) != c.own {
			t.Errorf("%s: got a drop-in %q with %q", name, program.Path, program.Content)
		}
	}
}
