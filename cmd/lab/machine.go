//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"cambium/lab"
	"cambium/lab/control"
	"cambium/lab/image"
	"cambium/lab/tree"
)

func size(n int64) string {
	for _, unit := range []struct {
		shift int
		name  string
	}{{40, "T"}, {30, "G"}, {20, "M"}, {10, "K"}} {
		if n >= 1<<unit.shift && n%(1<<unit.shift) == 0 {
			return fmt.Sprintf("%d%s", n>>unit.shift, unit.name)
		}
	}
	return fmt.Sprint(n)
}

func writeLab(w io.Writer, s control.State) {
	bus := s.Bus
	if bus == "" {
		bus = "none"
	}
	_, _ = fmt.Fprintf(w, "lab %s, bus %s, network namespace %s\n", s.Name, bus, s.Network)
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, m := range s.Machines {
		running := "off"
		if m.Running {
			running = "up " + time.Since(m.Since).Round(time.Second).String()
		}
		_, _ = fmt.Fprintf(table, "  %s\t%s\t%s\tagent %s\tsettings by %s", m.Name, running, m.IP, m.AgentID, m.Source)
		if m.Published != "" {
			_, _ = fmt.Fprintf(table, "\tpublished on %s", m.Published)
		}
		_, _ = fmt.Fprintln(table)
		for _, d := range m.Disks {
			_, _ = fmt.Fprintf(table, "    disk %s\t%s\t%s\n", d.ID, d.Path, size(d.Size))
		}
	}
	for _, d := range s.Disks {
		_, _ = fmt.Fprintf(table, "  disk %s\tdetached\t%s\n", d.ID, size(d.Size))
	}
	_ = table.Flush()
}

func list(ctx context.Context, c *call) error {
	deleted := false
	c.flags.BoolVar(&deleted, "deleted", false,
		"show the VMs that the CPI has deleted, with the last verdict of their agents")
	if err := c.parse(0, 0); err != nil {
		return err
	}
	if deleted {
		return listDeleted(c)
	}
	names, err := lab.Leftovers(c.dir)
	if err != nil {
		return err
	}
	running := map[string]bool{}
	states := []control.State{}
	for _, name := range control.Running(c.dir) {
		client, err := control.Open(c.dir, name)
		if err != nil {
			continue
		}
		if s, err := client.State(ctx); err == nil {
			running[name] = true
			states = append(states, s)
		}
	}
	left, held := []string{}, []string{}
	for _, name := range names {
		switch {
		case running[name]:
		case lab.Held(name):
			held = append(held, name)
		default:
			left = append(left, name)
		}
	}
	clouds, err := listIaaS(ctx, c.dir)
	if err != nil {
		return err
	}
	cached, err := cacheSize(tree.DefaultDir())
	if err != nil {
		return err
	}
	return c.result(map[string]any{"labs": states, "left_over": left, "held": held, "iaas": clouds,
		"cache_bytes": cached}, func(w io.Writer) {
		for _, s := range states {
			writeLab(w, s)
		}
		for _, l := range clouds {
			writeIaaS(w, l)
		}
		if len(left) > 0 {
			_, _ = fmt.Fprintf(w, "left over from crashes: %s (lab clean removes them)\n", strings.Join(left, ", "))
		}
		if len(held) > 0 {
			_, _ = fmt.Fprintf(w, "used by running tests: %s\n", strings.Join(held, ", "))
		}
		if len(states)+len(left)+len(held)+len(clouds) == 0 {
			_, _ = fmt.Fprintln(w, "no lab is up")
		}
		if cached > 0 {
			_, _ = fmt.Fprintf(w, "cache: %s in %s (lab clean --cache frees what is not in use)\n",
				mebibytes(cached), tree.DefaultDir())
		}
	})
}

// container finds a machine of a lab by its name, or a VM of the CPI by its CID.
func (c *call) container(ctx context.Context, name string) (control.Machine, error) {
	m, err := c.machine(ctx, name)
	if err == nil || name == "" {
		return m, err
	}
	clouds, listErr := listIaaS(ctx, c.dir)
	if vm, found := vmNamed(clouds, name); found {
		return vm, nil
	}
	return m, errors.Join(err, listErr)
}

// vmNamed returns the CPI's VM with the CID.
func vmNamed(clouds []iaasListing, cid string) (control.Machine, bool) {
	for _, l := range clouds {
		for _, vm := range l.VMs {
			if vm.CID == cid {
				return control.Machine{Name: cid, Running: vm.Running, AgentID: vm.AgentID, Console: vm.Console,
					Shell: vm.Shell}, true
			}
		}
	}
	return control.Machine{}, false
}

// machine finds a machine of a lab.
func (c *call) machine(ctx context.Context, name string) (control.Machine, error) {
	client, err := c.client()
	if err != nil {
		return control.Machine{}, err
	}
	s, err := client.State(ctx)
	if err != nil {
		return control.Machine{}, err
	}
	var names []string
	for _, m := range s.Machines {
		if m.Name == name || name == "" && len(s.Machines) == 1 {
			return m, nil
		}
		names = append(names, m.Name)
	}
	if name == "" {
		return control.Machine{}, fmt.Errorf("lab %s has %d machines (%s): name one", s.Name, len(names),
			strings.Join(names, ", "))
	}
	return control.Machine{}, fmt.Errorf("lab %s has no machine %s (%s)", s.Name, name, strings.Join(names, ", "))
}

func (c *call) first() string {
	if len(c.args) == 0 {
		return ""
	}
	return c.args[0]
}

func shell(ctx context.Context, c *call) error {
	if err := c.parse(0, 1); err != nil {
		return err
	}
	m, err := c.container(ctx, c.first())
	if err != nil {
		return err
	}
	return c.inside(ctx, m, c.extra...)
}

// inside runs a program in the machine, on this terminal. The last words of the lab's command for a shell are the
// shell; args replace them.
func (c *call) inside(ctx context.Context, m control.Machine, args ...string) error {
	if !m.Running {
		return fmt.Errorf("machine %s is off", m.Name)
	}
	if len(m.Shell) == 0 {
		return fmt.Errorf("%s is a VM with a stemcell, which the lab cannot look into: use bosh ssh, or 'lab logs --console %s'", m.Name, m.Name)
	}
	argv := m.Shell
	if len(args) > 0 {
		argv = append(append([]string(nil), argv[:len(argv)-2]...), args...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, c.stdout, c.stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exitStatus(exit.ExitCode())
	}
	return err
}

// watchVM shows the jobs of a VM of the CPI, and reports whether there is a VM with the CID. It cannot show heartbeats:
// they go to the NATS server of the VM's Director, for which the lab has no certificate.
func (c *call) watchVM(ctx context.Context, cid string, once bool) (bool, error) {
	clouds, err := listIaaS(ctx, c.dir)
	m, found := vmNamed(clouds, cid)
	if !found {
		return false, err
	}
	args := []string{"/var/vcap/bosh/bin/bosh-agent", "jobs"}
	switch {
	case c.json:
		args = append(args, "--json")
	case !once:
		args = append(args, "--watch")
	}
	return true, c.inside(ctx, m, args...)
}

func logs(ctx context.Context, c *call) error {
	var console, follow, all bool
	c.flags.BoolVar(&console, "console", false, "show the console instead of the agent's log")
	c.flags.BoolVar(&all, "all", false, "show the whole journal instead of the agent's log")
	c.flags.BoolVar(&follow, "follow", false, "keep printing as the log grows")
	if err := c.parse(0, 1); err != nil {
		return err
	}
	m, err := c.container(ctx, c.first())
	if err != nil {
		return err
	}
	if console {
		args := []string{"-n", "+1", m.Console}
		if follow {
			args = append([]string{"-f"}, args...)
		}
		cmd := exec.CommandContext(ctx, "tail", args...)
		cmd.Stdout, cmd.Stderr = c.stdout, c.stderr
		return cmd.Run()
	}
	args := []string{"journalctl", "--no-pager"}
	if !all {
		args = append(args, "--identifier=bosh-agent")
	}
	if follow {
		args = append(args, "--follow", "--lines=all")
	}
	if c.json {
		args = append(args, "--output=json")
	} else {
		args = append(args, "--output=short-monotonic")
	}
	return c.inside(ctx, m, args...)
}

func machineCommand(ctx context.Context, c *call) error {
	return c.switchMachine(ctx, map[string]string{"start": "start", "stop": "stop", "reboot": "reboot", "kill": "kill",
		"delete": "delete"})
}

func power(ctx context.Context, c *call) error {
	return c.switchMachine(ctx, map[string]string{"on": "start", "off": "stop", "cut": "kill", "cycle": "cycle"})
}

// switchMachine runs the verb that the first argument names.
func (c *call) switchMachine(ctx context.Context, verbs map[string]string) error {
	var noWait bool
	c.flags.BoolVar(&noWait, "no-wait", false, "do not wait for the agent's first answer after a start")
	if err := c.parse(1, 2); err != nil {
		return err
	}
	word := c.args[0]
	verb, ok := verbs[word]
	if !ok {
		return usagef("%q is not one of %s", word, strings.Join(slices.Sorted(maps.Keys(verbs)), ", "))
	}
	c.args = c.args[1:]
	m, err := c.machine(ctx, c.first())
	if err != nil {
		return err
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	begin := time.Now()
	end := c.busy("%s %s …", word, m.Name)
	verdict := ""
	err = client.Power(ctx, m.Name, verb, !noWait, func(l control.Line) {
		if verdict += l.Verdict; l.Progress != "" {
			c.progress("%s", l.Progress)
		}
	})
	end()
	if err != nil {
		return err
	}
	if verdict != "" {
		c.printVerdict(verdict)
		return exitStatus(1)
	}
	return c.result(map[string]any{"machine": m.Name, "verb": word, "seconds": time.Since(begin).Seconds()},
		func(w io.Writer) {
			_, _ = fmt.Fprintf(w, "%s %s: %.1f s\n", word, m.Name, time.Since(begin).Seconds())
		})
}

func diskCommand(ctx context.Context, c *call) error {
	change := control.DiskChange{}
	text := "1G"
	c.flags.StringVar(&text, "size", text, "`size` of a new disk, or the new one of a disk to resize")
	c.flags.StringVar(&change.Machine, "machine", "", "the machine's `name`, if there are several")
	if err := c.parse(2, 2); err != nil {
		return err
	}
	change.Verb, change.ID = c.args[0], c.args[1]
	switch change.Verb {
	case "attach", "detach", "resize", "delete":
	default:
		return usagef("%q is not one of attach, detach, resize, delete", change.Verb)
	}
	if err := lab.ValidDiskID(change.ID); err != nil {
		return usageError{err}
	}
	var err error
	if change.Size, err = parseSize(text); err != nil {
		return usageError{err}
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	d, err := client.Disk(ctx, change)
	if err != nil {
		return err
	}
	return c.result(d, func(w io.Writer) {
		if change.Verb == "attach" {
			_, _ = fmt.Fprintln(w, d.Path) // the hint, and nothing else
		}
	})
}

func down(ctx context.Context, c *call) error {
	if err := c.parse(0, 1); err != nil {
		return err
	}
	if len(c.args) == 1 {
		c.lab = c.args[0]
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	s, err := client.State(ctx)
	if err != nil {
		return err
	}
	if err := client.Down(ctx); err != nil {
		return err
	}
	end := c.busy("removing lab %s …", s.Name)
	err = lab.WaitProcess(ctx, s.PID)
	end()
	if err != nil {
		return err
	}
	return c.result(map[string]string{"down": client.Name()}, func(io.Writer) {})
}

func clean(ctx context.Context, c *call) error {
	cached := false
	c.flags.BoolVar(&cached, "cache", false,
		"also remove the trees and images that no lab uses, as 'lab cache prune --all' does")
	if err := c.parse(0, -1); err != nil {
		return err
	}
	names := c.args
	all, err := lab.Leftovers(c.dir)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		names = slices.DeleteFunc(slices.Clone(all), lab.Held)
	}
	var failed error
	cleaned := []string{}
	for _, name := range names {
		if lab.Held(name) {
			failed = errors.Join(failed, fmt.Errorf("lab %s is up; end it with: lab down %s", name, name))
			continue
		}
		end := c.busy("removing lab %s …", name)
		err := lab.Clean(c.dir, name) // also of one without files: something of it may be in the kernel
		end()
		switch {
		case err != nil:
			failed = errors.Join(failed, err)
		case slices.Contains(all, name):
			cleaned = append(cleaned, name)
		default:
			c.progress("lab %s had left no files behind", name)
		}
	}
	if failed != nil {
		return failed
	}
	value, pruned := map[string]any{"cleaned": cleaned}, func(io.Writer) {}
	if cached {
		freed, text, err := prune(image.PruneOptions{All: true})
		if err != nil {
			return err
		}
		value["cache"], pruned = freed, text
	}
	return c.result(value, func(w io.Writer) {
		for _, name := range cleaned {
			_, _ = fmt.Fprintf(w, "removed %s\n", name)
		}
		pruned(w)
	})
}
