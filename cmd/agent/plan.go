package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/logging"
	"cambium/cmd/agent/showsettings"
	"cambium/internal/vcap"
	"cambium/plan"
	"cambium/platform/device"
	"cambium/platform/host"
	"cambium/platform/network"
	"cambium/platform/resolver"
	"cambium/platform/tree"
	"cambium/settings"
	"cambium/settings/agentjson"
	"cambium/settings/store"
	"cambium/storage"
)

// section is one part of the plan: its changes, each a line, or why they are not known.
type section struct {
	Part    string   `json:"part"`
	Changes []string `json:"changes"`
	// Details are the same changes for programs, where a domain has such a form.
	Details  any      `json:"details,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	Error    string   `json:"error,omitempty"`
}

func runPlan(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags("plan", cli.Help{Arguments: "-C AGENT_JSON [-b BASE] [--json]",
		Purpose: `Shows what a boot would change on this machine, with the proof for each destructive step on
disks. It asks the sources as 'agent settings' does and touches nothing. Exit codes: 0 plan
made, 1 something cannot be had, 2 usage.`, Examples: []string{"agent plan -C /var/vcap/bosh/agent.json"}}, stdout, stderr)
	path := flags.String("C", "", "`AGENT_JSON` that names the sources")
	base := flags.String("b", vcap.DefaultBase, "`BASE` directory")
	asJSON := flags.Bool("json", false, "print a JSON document")
	timeout := flags.Duration("timeout", 30*time.Second, "how long to wait for sources")
	if code, ok := flags.Parse(args, 0, 0); !ok {
		return code
	}
	if *path == "" {
		return flags.Misused("-C AGENT_JSON is needed")
	}
	config, rep, err := agentjson.Load(*path)
	if err == nil {
		err = rep.Err()
	}
	if err != nil {
		fmt.Fprintln(stderr, "agent plan:", err)
		return cli.ExitFailed
	}
	ctx, cancel := context.WithTimeout(ctx, 2**timeout)
	defer cancel()
	dirs := vcap.New(*base)
	found, err := showsettings.Ask(ctx, config, dirs, *timeout)
	if err != nil {
		found.Print(stdout, stderr, false, err)
		return cli.ExitFailed
	}
	sections := planAll(ctx, dirs, config.Platform.Linux, found.Effective)
	code := cli.ExitOK
	for _, s := range sections {
		if s.Error != "" {
			code = cli.ExitFailed
		}
	}
	if *asJSON {
		if cli.WriteJSON(stdout, map[string]any{"settings": found.Loaded.From, "plan": sections}) != nil {
			return cli.ExitFailed
		}
		return code
	}
	fmt.Fprintf(stdout, "settings: %s\n", found.Loaded.From)
	for _, s := range sections {
		s.print(stdout)
	}
	return code
}

func (s section) print(w io.Writer) {
	fmt.Fprintf(w, "%s:\n", s.Part)
	for _, text := range s.Warnings {
		fmt.Fprintf(w, "  warning: %s\n", text)
	}
	if s.Error != "" {
		fmt.Fprintf(w, "  error: %s\n", s.Error)
	}
	for _, c := range s.Changes {
		fmt.Fprintf(w, "  %s\n", c)
	}
	if len(s.Changes) == 0 && s.Error == "" {
		fmt.Fprintln(w, "  nothing to change")
	}
}

func lines[C fmt.Stringer](changes []C) []string {
	texts := []string{}
	for _, c := range changes {
		texts = append(texts, c.String())
	}
	return texts
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return logging.OneLine(err.Error())
}

// planAll asks each domain what it would do. The domains are those of the boot's steps.
func planAll(ctx context.Context, dirs vcap.Dirs, linux agentjson.Linux, e settings.Effective) []section {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	log := logrus.NewEntry(quiet)
	return []section{
		planNetwork(ctx, log, e), planDNS(ctx, log, linux, e), planHost(ctx, log, dirs, e),
		planDisks(ctx, log, dirs, linux, e), planTree(ctx, log, dirs, linux, e),
	}
}

func planNetwork(ctx context.Context, log *logrus.Entry, e settings.Effective) section {
	k := &network.Kernel{Root: "/", Log: log}
	have, err := k.Observe(ctx)
	if err != nil {
		return section{Part: "network", Error: text(err)}
	}
	want, warnings, planErr := plan.Network(e.Settings.Networks, have)
	changes, diffErr := network.Diff(have, want)
	return section{Part: "network", Changes: lines(changes), Details: changes, Warnings: warnings, Error: text(errors.Join(planErr, diffErr))}
}

func planDNS(ctx context.Context, log *logrus.Entry, linux agentjson.Linux, e settings.Effective) section {
	k := &resolver.Kernel{Root: "/", PreferResolved: linux.ServiceManager == "systemd", Log: log}
	servers, warnings := plan.DNS(e.Settings.Networks)
	changes, err := k.Plan(ctx, resolver.Desired{Servers: servers})
	return section{Part: "dns", Changes: lines(changes), Details: changes, Warnings: warnings, Error: text(err)}
}

func planHost(ctx context.Context, log *logrus.Entry, dirs vcap.Dirs, e settings.Effective) section {
	h := &host.Host{Root: "/", Dirs: dirs, Log: log}
	changes, err := h.Plan(ctx, host.Desired{Hostname: e.Settings.AgentID, TimeServers: e.NTP, IPv6: e.Settings.Env.Bosh.IPv6Enable})
	return section{Part: "host", Changes: lines(changes), Error: text(err)}
}

func planDisks(ctx context.Context, log *logrus.Entry, dirs vcap.Dirs, linux agentjson.Linux, e settings.Effective) section {
	current, err := store.Open(dirs, store.Options{ReadOnly: true, Log: log})
	if err != nil {
		return section{Part: "disks", Error: text(err)}
	}
	resolve, err := device.New(deviceOptions(linux), log)
	if err != nil {
		return section{Part: "disks", Error: text(err)}
	}
	disks := storage.New(storage.Config{Dirs: dirs, Resolver: resolve, Records: current, Log: log, Options: storageOptions(linux),
		Reload:  func(context.Context) error { return nil },
		Foreign: func() string { return foreign(e, linux) }})
	changes, ephemeralErr := disks.Ephemeral.Plan(ctx, e.Settings.Disks.Ephemeral, e.Settings.Env.Bosh.SwapSizeMiB, e.Settings.AgentID)
	raw, rawErr := disks.Ephemeral.PlanRaw(ctx, e.Settings.Disks.RawEphemeral)
	last, lastErr := disks.Persistent.PlanMountLast(ctx)
	others, othersErr := disks.Persistent.PlanMount(ctx)
	changes = append(append(append(changes, raw...), last...), others...)
	return section{Part: "disks", Changes: lines(changes), Error: text(errors.Join(ephemeralErr, rawErr, lastErr, othersErr))}
}

func planTree(ctx context.Context, log *logrus.Entry, dirs vcap.Dirs, linux agentjson.Linux, e settings.Effective) section {
	bosh := e.Settings.Env.Bosh
	k := &tree.Kernel{Root: "/", Log: log}
	want := tree.Table(dirs, tree.Options{UseDefaultTmpDir: linux.UseDefaultTmpDir, JobDirTmpfs: bosh.JobDirTmpfs,
		JobDirSize: bosh.JobDirTmpfsSize, RunDirSize: bosh.RunDirTmpfsSize, SettingsTmpfs: bosh.SettingsTmpfs})
	have, err := k.Observe(ctx, want)
	if err != nil {
		return section{Part: "directories", Error: text(err)}
	}
	changes, err := tree.Diff(have, want)
	return section{Part: "directories", Changes: lines(changes), Warnings: tree.Warnings(have, want), Error: text(err)}
}
