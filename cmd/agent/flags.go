package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"cambium/cmd/agent/cli"
	"cambium/internal/vcap"
	"cambium/supervisor"
)

// runOptions holds the flags that stemcells pass.
type runOptions struct {
	platform   string
	config     string
	supervisor string
	base       string
}

// dummy reports whether the agent runs without a machine.
func (o runOptions) dummy() bool { return o.platform == "dummy" }

// receivesAlerts reports whether the agent gets monit's alerts.
func (o runOptions) receivesAlerts() bool { return o.monit() && !o.dummy() }

// monit reports whether jobs are supervised, by monit or by the agent's own supervisor.
func (o runOptions) monit() bool { return o.supervisor == "monit" || o.ownSupervisor() }

// checkMonitFiles returns the check that the monit files of a deployment must pass, or nil if monit itself reads them.
func (o runOptions) checkMonitFiles() func(map[string][]byte) error {
	if o.ownSupervisor() {
		return supervisor.CheckTexts
	}
	return nil
}

// ownSupervisor reports whether the agent's own supervisor replaces monit.
func (o runOptions) ownSupervisor() bool { return o.supervisor == "systemd" }

func parseRun(args []string, stdout, stderr io.Writer) (o runOptions, code int, ok bool) {
	flags := cli.NewFlags("run", cli.Help{Arguments: "-P PLATFORM [-C AGENT_JSON] [-M SUPERVISOR] [-b BASE]",
		Purpose: `Runs the agent in the foreground until it gets SIGTERM. 'agent -P … -C …' without the
word run does the same: it is how stemcells start it.`,
		Examples: []string{"agent -P ubuntu -C /var/vcap/bosh/agent.json",
			"agent -P dummy -M dummy-nats -b /tmp/vm -C /tmp/vm/agent.json"}}, stdout, stderr)
	flags.StringVar(&o.platform, "P", "",
		"`PLATFORM`: ubuntu or centos, which are the same, or dummy, which does not touch the machine")
	flags.StringVar(&o.config, "C", "", "path of `AGENT_JSON`; bosh/agent.json below BASE if not given")
	flags.StringVar(&o.supervisor, "M", "monit",
		"`SUPERVISOR`: monit, systemd (the agent's own, in monit.service), dummy or dummy-nats")
	flags.StringVar(&o.base, "b", vcap.DefaultBase, "`BASE` directory")
	showVersion := flags.Bool("v", false, "print the version and exit")
	flags.String("r", "/", "accepted and ignored")
	flags.Bool("no-alerts", false, "accepted and ignored")
	if code, ok := flags.ParseLeading(args); !ok {
		return o, code, false
	}
	if *showVersion {
		// The first line is all that cloudfoundry/bosh-agent prints.
		fmt.Fprintf(stdout, "%s\nsupervisor %s\n", version, o.supervisor)
		return o, cli.ExitOK, false
	}
	o.config = cmp.Or(o.config, vcap.New(o.base).AgentJSON())
	for _, c := range []struct {
		flag, value string
		allowed     []string
	}{
		{"-P", o.platform, []string{"ubuntu", "centos", "dummy"}},
		{"-M", o.supervisor, []string{"monit", "systemd", "dummy", "dummy-nats"}},
	} {
		if !slices.Contains(c.allowed, c.value) {
			fmt.Fprintf(stderr, "agent: %s is %q, want one of %q\n", c.flag, c.value, c.allowed)
			return o, cli.ExitFailed, false
		}
	}
	return o, cli.ExitOK, true
}
