package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/bootstrap"
	"cambium/bootstrap/engine"
	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/disk"
	"cambium/internal/oneline"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/storage/decide"
	diskrecord "cambium/storage/record"
)

func runPlan(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags("plan", cli.Help{Arguments: "[-C AGENT_JSON] [-b BASE] [--json] [--timeout DURATION]",
		Purpose: `Shows what a boot would change on this machine, step by step, with the proof for each
destructive step on disks. It asks the sources as 'agent settings' does and changes nothing.
Changes marked "after STEP" presume what that step will have done by then. Exit codes: 0 plan
made, 1 the boot would fail or a step cannot be planned, 2 usage.`, Examples: []string{"agent plan", "agent plan --json --timeout 5s"}}, stdout, stderr)
	path := flags.String("C", "", "`AGENT_JSON` that names the sources; bosh/agent.json below BASE if not given")
	base := flags.String("b", vcap.DefaultBase, "`BASE` directory")
	asJSON := flags.Bool("json", false, "print a JSON document")
	timeout := flags.Duration("timeout", 30*time.Second, "how long the whole plan may take")
	if code, ok := flags.Parse(args, 0, 0); !ok {
		return code
	}
	if *path == "" {
		*path = vcap.New(*base).AgentJSON()
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	var waiting cli.Waiting
	defer waiting.Say(stderr)()
	planned, err := makePlan(ctx, *path, vcap.New(*base), *timeout, waiting.Set)
	if err != nil {
		fmt.Fprintln(stderr, "agent plan:", oneline.Of(err.Error()))
		return cli.ExitFailed
	}
	if *asJSON {
		if cli.WriteJSON(stdout, planned) != nil {
			return cli.ExitFailed
		}
	} else {
		planned.print(stdout)
	}
	return planned.exitCode()
}

// bootPlan lists the changes that a boot would make.
type bootPlan struct {
	Settings string               `json:"settings"` // where the settings came from
	Steps    []engine.PlannedStep `json:"plan"`
}

// makePlan walks the boot table for the machine that the boot would change. If a cached copy of the settings exists,
// sources get at most half of the timeout.
func makePlan(ctx context.Context, path string, dirs vcap.Dirs, timeout time.Duration,
	waiting func(string)) (bootPlan, error) {
	o, err := lookOnly(path, dirs, timeout/2)
	if err != nil {
		return bootPlan{}, err
	}
	o.announceWait = waiting
	m, err := newMachine(o)
	if err != nil {
		return bootPlan{}, err
	}
	steps, err := engine.Plan(ctx, bootstrap.Steps(m.Machine))
	return bootPlan{Settings: m.current.Last().From, Steps: steps}, err
}

// driftSteps lists the steps that can be planned without a source or a disk.
var driftSteps = []string{"passwords", "env-keys", "ipv6", "hostname", "firewall", "network",
	"directories", "dns", "time"}

// drift returns the changes that a boot with the cached settings would make to a serving machine, each as "step:
// change".
func drift(ctx context.Context, path string, dirs vcap.Dirs) (changes []string, err error) {
	o, err := lookOnly(path, dirs, 0)
	if err != nil {
		return nil, err
	}
	m, err := newMachine(o)
	if err != nil || !m.current.Present() {
		return nil, err
	}
	steps := slices.DeleteFunc(bootstrap.Steps(m.Machine), func(s engine.Step) bool {
		return !slices.Contains(driftSteps, s.Name)
	})
	for i := range steps {
		steps[i].Needs, steps[i].Yields = nil, nil // they have ended
	}
	planned, err := engine.Plan(ctx, steps)
	for _, s := range planned {
		for _, c := range s.Changes {
			if !c.Runs {
				changes = append(changes, s.Step+": "+c.Text)
			}
		}
		if s.Error != "" {
			changes = append(changes, s.Step+" would fail: "+s.Error)
		}
	}
	return changes, errors.Join(err, ctx.Err())
}

// lookOnly returns the options for commands that only examine a machine. path is agent.json. If there is a cached copy
// of the settings, sources are asked for at most cacheBudget.
func lookOnly(path string, dirs vcap.Dirs, cacheBudget time.Duration) (machineOptions, error) {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	log := logrus.NewEntry(quiet)
	config, err := loadConfig(path, log)
	// The agent's command line says which supervisor runs the jobs; the agent that it started last has noted that.
	last, _ := status.Read(vcap.RunDir.Status()) // none before the first start
	return machineOptions{dirs: dirs, config: config, log: log, monit: true, readOnly: true,
		ownSupervisor: runOptions{supervisor: last.Supervisor}.ownSupervisor(),
		announceWait:  func(string) {}, cacheBudget: cacheBudget}, err
}

// describeDisk describes the content of a disk for `agent disk`, and returns the key for a request. A disk is named by
// its CID. To format it, the name may also be the word ephemeral, or the path of an ephemeral or raw disk. Since the
// agent knows the disk, no source is asked.
func describeDisk(ctx context.Context, dirs vcap.Dirs, name string, a diskrecord.Action) (shown disk.Shown, err error) {
	o, err := lookOnly(dirs.AgentJSON(), dirs, 0)
	if err != nil {
		return shown, err
	}
	b := newBoot(o)
	current, err := openSettings(b, o)
	if err != nil {
		return shown, err
	}
	disks, err := openDisks(b, current, o)
	if err != nil {
		return shown, err
	}
	_, persistent := current.Disks()[name]
	switch word := name == decide.FormatEphemeral && a == diskrecord.Format; {
	case word && persistent:
		return shown, fmt.Errorf("%q is the CID of a persistent disk: name the ephemeral disk by its path", name)
	case word || !persistent && a == diskrecord.Format && filepath.IsAbs(name):
		named := current.Effective().Settings.Disks
		found, err := disks.Ephemeral.Describe(ctx, name, named.Ephemeral, named.RawHints())
		return disk.Shown(found), err
	}
	shown.Key = name
	shown.Text, shown.Disk, err = disks.Persistent.Describe(ctx, name, a)
	return shown, err
}

func (p bootPlan) exitCode() int {
	for _, s := range p.Steps {
		if s.Error != "" {
			return cli.ExitFailed
		}
	}
	return cli.ExitOK
}

func (p bootPlan) print(w io.Writer) {
	if p.Settings != "" {
		fmt.Fprintf(w, "settings: %s\n", p.Settings)
	}
	changes := 0
	for _, s := range p.Steps {
		if len(s.Changes)+len(s.Warnings)+len(s.Notes) == 0 && s.Error == "" {
			continue
		}
		fmt.Fprintf(w, "%s:\n", s.Step)
		for _, c := range s.Changes {
			fmt.Fprintf(w, "  %s\n", c)
		}
		for _, text := range s.Warnings {
			fmt.Fprintf(w, "  warning: %s\n", text)
		}
		for _, text := range s.Notes {
			fmt.Fprintf(w, "  note: %s\n", text)
		}
		if s.Error != "" {
			fmt.Fprintf(w, "  error: %s\n", s.Error)
		}
		changes += len(s.Changes)
	}
	if changes == 0 && p.exitCode() == cli.ExitOK {
		fmt.Fprintln(w, "nothing to change")
	}
}
