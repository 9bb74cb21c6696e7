//go:build linux

package labtest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cambium/internal/status"
	"cambium/lab/machine"
)

// PlanFirst is a drop-in that runs `agent plan` of the same binary before each start of the agent. Both assume monit,
// because a plan before the first start does not know the agent's flag -M.
var PlanFirst = machine.File{Path: "/etc/systemd/system/bosh-agent.service.d/plan.conf", Mode: 0o644,
	Data: []byte(`[Service]
ExecStartPre=/bin/sh -c '/var/vcap/bosh/bin/bosh-agent plan --json >/run/plan.json 2>/run/plan.err || \
echo "exit $?" >>/run/plan.err'
ExecStart=
ExecStart=/var/vcap/bosh/bin/bosh-agent -P ubuntu -C /var/vcap/bosh/agent.json
`)}

// PlannedBoot is the output of `agent plan --json`.
type PlannedBoot struct {
	Plan []PlannedStep `json:"plan"`
}

// PlannedStep is a step of a PlannedBoot.
type PlannedStep struct {
	Step    string `json:"step"`
	Changes []struct {
		Text  string `json:"text"`
		After string `json:"after"`
		Runs  bool   `json:"runs"`
	} `json:"changes"`
	Warnings []string `json:"warnings"`
	Error    string   `json:"error"`
}

// Of returns the plan for some of the steps.
func (p PlannedBoot) Of(steps ...string) PlannedBoot {
	return PlannedBoot{slices.DeleteFunc(p.Plan, func(s PlannedStep) bool { return !slices.Contains(steps, s.Step) })}
}

// Texts returns the planned changes by step.
func (p PlannedBoot) Texts() map[string][]string {
	all := map[string][]string{}
	for _, s := range p.Plan {
		for _, c := range s.Changes {
			all[s.Step] = append(all[s.Step], c.Text)
		}
	}
	return all
}

// BootSays returns the changes and failures of a boot by step, in the format of a plan.
func BootSays(d status.Document) (changes map[string][]string, failures map[string]string) {
	changes, failures = map[string][]string{}, map[string]string{}
	for _, s := range d.Steps {
		if len(s.Changes) > 0 {
			changes[s.Name] = s.Changes
		}
		if s.Outcome == status.Broken {
			failures[s.Name] = s.Error
		}
	}
	return changes, failures
}

// Compare returns an error if a boot differs from its plan. A plan may have more warnings than the boot, such as a disk
// that is still missing.
func (p PlannedBoot) Compare(d status.Document) error {
	var differ []error
	done, failed := BootSays(d)
	planned, failures, warnings := p.Texts(), map[string]string{}, []string{}
	for _, s := range p.Plan {
		if s.Error != "" {
			failures[s.Step] = s.Error
		}
		for _, w := range s.Warnings {
			warnings = append(warnings, w, s.Step+": "+w)
		}
	}
	for _, step := range slices.Sorted(maps.Keys(planned)) {
		if !slices.Equal(planned[step], done[step]) {
			differ = append(differ, fmt.Errorf("step %s:\nplanned\n  %s\ndone\n  %s", step,
				strings.Join(planned[step], "\n  "), strings.Join(done[step], "\n  ")))
		}
	}
	for step := range done {
		if len(planned[step]) == 0 {
			differ = append(differ, fmt.Errorf("step %s: done, and not planned: %q", step, done[step]))
		}
	}
	if !maps.Equal(failures, failed) {
		differ = append(differ, fmt.Errorf("planned to fail: %q, failed: %q", failures, failed))
	}
	for _, w := range d.Warnings {
		if !slices.Contains(warnings, w) {
			differ = append(differ, fmt.Errorf("the boot warns, and the plan did not: %s", w))
		}
	}
	return errors.Join(differ...)
}
