// Command lab makes machines with the agent in them on one Linux host, for tests, for the demo
// and for people who develop CPIs, stemcells or the agent.
//
// What it says follows a few rules. Results go to standard output, progress and errors to
// standard error. --json makes the result JSON. An error is one line with the cause, and where
// there is one, what to do. The exit status is 0 when all went well, 1 when something failed
// and 2 when the command line was wrong.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"cambium/integration/lab"
	"cambium/integration/lab/control"
)

var version = "unknown"

// command is one word of the command line.
type command struct {
	name     string
	args     string
	summary  string
	examples []string
	run      func(ctx context.Context, c *call) error
	hidden   bool
}

func commands() []command {
	return []command{
		{"up", "[flags]", "start a lab with one machine",
			[]string{"lab up", "lab up --engine qemu", "lab up --name two --source configdrive --disk 10G",
				"lab up --agent-json agent.json --settings settings.json --source cdrom --publish 6868 --foreground"}, up, false},
		{"ls", "[flags]", "list labs and their machines", []string{"lab ls", "lab ls --json"}, list, false},
		{"shell", "[flags] [MACHINE] [-- COMMAND…]", "open a root shell in a machine, or run a command there",
			[]string{"lab shell", "lab shell vm1", "lab shell -- systemctl status agent"}, shell, false},
		{"ssh", "[flags] [MACHINE] [-- COMMAND…]", "the same as shell", nil, shell, false},
		{"logs", "[flags] [MACHINE]", "show the agent's log, or the console", []string{"lab logs", "lab logs --follow", "lab logs --console"}, logs, false},
		{"machine", "start|stop|reboot|kill|delete [MACHINE]", "switch a machine on or off, or cut its power",
			[]string{"lab machine reboot", "lab machine kill vm1"}, machineCommand, false},
		{"power", "on|off|cut|cycle [MACHINE]", "the machine's power switch: cut loses what is not on its disks, cycle is cut and on",
			[]string{"lab power cut", "lab power cycle vm1"}, power, false},
		{"disk", "attach|detach|resize|delete ID", "give a machine a disk, take it away, grow it, or remove one of a deleted machine; attach prints the hint a CPI would return",
			[]string{"lab disk attach disk-1 --size 10G", "lab disk resize disk-1 --size 20G", "lab disk detach disk-1", "lab disk delete disk-1"}, diskCommand, false},
		{"call", "[flags] METHOD [ARGUMENT…]", "send a request to an agent and follow its task; arguments are JSON, or else strings",
			[]string{"lab call ping", "lab call get_state full", `lab call add_persistent_disk disk-1 /dev/loop3`,
				"lab call --url https://mbus:secret@127.0.0.1:6868 --ca ca.pem ping",
				"lab call --url nats://10.0.0.6:4222 --agent-id 0b7e --ca ca.pem --cert director.crt --key director.key get_state"}, callAgent, false},
		{"deploy", "[flags] MANIFEST", "make the lab look like a manifest, as a Director does", []string{"lab deploy manifest.yml"}, deploy, false},
		{"watch", "[flags]", "show heartbeats and alerts as they come", []string{"lab watch", "lab watch --json", "lab watch --url nats://10.0.0.6:4222 --ca ca.pem --cert monitor.crt --key monitor.key"}, watch, false},
		{"down", "[flags] [LAB]", "end a lab and remove all of it", []string{"lab down", "lab down two"}, down, false},
		{"clean", "[flags] [LAB…]", "remove what crashed labs left behind", []string{"lab clean", "lab clean two"}, clean, false},
		{"cache", "prune [--all]", "remove Debian trees, disk images and kernels that are not used any more", []string{"lab cache prune", "lab cache prune --all"}, cache, false},
		{"demo", "[flags]", "boot a machine and drive it as a Director does, step by step", []string{"lab demo", "lab demo --engine qemu", "KEEP=1 lab demo"}, demo, false},
		{"stemcell", "[flags]", "make a stemcell with the agent in it", []string{"lab stemcell --version 1.2.3 --output bin/"}, stemcell, false},
		{"enter", "[flags] -- COMMAND…", "run a command in the network of the CPI's IaaS", []string{"lab enter -- bosh create-env manifest.yml", "lab enter -- curl 10.245.0.6:8080"}, enter, false},
		{"cpi-release", "[flags]", "make the release of the CPI, and one with a small web server", []string{"lab cpi-release --output bin"}, cpiRelease, false},
		{"host-route", "on [--outside]|off", "let the host reach the VMs of the CPI directly, by a link and routes that end with their holder", []string{"lab host-route on", "lab host-route on --outside", "lab host-route off"}, hostRoute, false},
		{"cpi-tls", "[flags]", "print what a CPI inside a VM needs to reach the IaaS: lab.tls of its release", []string{"lab cpi-tls >tls.json"}, cpiTLS, false},
		{"cpi-clean", "[flags] [CID…]", "list what the CPI has made, or remove what is named",
			[]string{"lab cpi-clean", "lab cpi-clean vm-0123", "lab cpi-clean --director 0f6c3f0e --disks"}, cpiClean, false},
		{"version", "", "print the version", nil, func(_ context.Context, c *call) error {
			if err := c.parse(0, 0); err != nil {
				return err
			}
			return c.result(map[string]string{"version": version}, func(w io.Writer) { _, _ = fmt.Fprintln(w, version) })
		}, false},
		{"demo-keep", "[flags]", "run the demo and hold its lab; started by demo", nil, demoKeep, true},
		{"supervise", "", "hold a lab; started by up", nil, supervise, true},
		{"hold", "DIR NAME", "hold the CPI's IaaS; started by the CPI and by enter", nil, holdIaaS, true},
		{"attach", "SOCKET -- COMMAND…", "run a program in a virtual machine; used by shell", nil, attach, true},
	}
}

// call is one run of a command.
type call struct {
	command
	flags  *flag.FlagSet
	args   []string // before parse: the command's command line; after it: what is no flag
	json   bool
	dir    string
	lab    string
	stdout io.Writer
	stderr io.Writer
	extra  []string // behind "--"
}

// usageError is a mistake on the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// parse reads the flags, which may stand before and behind other arguments, and checks the
// number of these.
func (c *call) parse(least, most int) error {
	c.flags.BoolVar(&c.json, "json", false, "print the result as JSON")
	c.flags.StringVar(&c.lab, "lab", os.Getenv("LAB"), "the `name` of the lab, if there are several")
	c.flags.StringVar(&c.dir, "dir", lab.DefaultDir(), "where labs keep their state")
	rest := c.args
	for n, a := range rest {
		if a == "--" {
			rest, c.extra = rest[:n], rest[n+1:]
			break
		}
	}
	c.args = nil
	for {
		if err := c.flags.Parse(rest); err != nil {
			return usageError{err}
		}
		if rest = c.flags.Args(); len(rest) == 0 {
			break
		}
		c.args, rest = append(c.args, rest[0]), rest[1:]
	}
	if len(c.args) < least || most >= 0 && len(c.args) > most {
		return usagef("wrong number of arguments")
	}
	return nil
}

// result prints the value as JSON, or else what text writes.
func (c *call) result(value any, text func(io.Writer)) error {
	if !c.json {
		text(c.stdout)
		return nil
	}
	encode := json.NewEncoder(c.stdout)
	encode.SetIndent("", "  ")
	encode.SetEscapeHTML(false)
	return encode.Encode(value)
}

func (c *call) progress(format string, args ...any) {
	_, _ = fmt.Fprintf(c.stderr, format+"\n", args...)
}

// client connects to the lab's process.
func (c *call) client() (*control.Client, error) { return control.Open(c.dir, c.lab) }

func usage(w io.Writer, all []command) {
	_, _ = fmt.Fprint(w, "usage: lab COMMAND [flags] [arguments]\n\nA small IaaS on this machine, with the agent in its machines.\n\ncommands:\n")
	for _, c := range all {
		if !c.hidden {
			_, _ = fmt.Fprintf(w, "  %-11s %s\n", c.name, c.summary)
		}
	}
	_, _ = fmt.Fprint(w, "\nlab COMMAND --help tells more. LAB names the lab to use when there are several.\n")
}

func (c *call) help(w io.Writer) {
	_, _ = fmt.Fprintf(w, "usage: lab %s %s\n\n%s\n", c.name, c.command.args, strings.ToUpper(c.summary[:1])+c.summary[1:]+".")
	if len(c.examples) > 0 {
		_, _ = fmt.Fprintf(w, "\nexamples:\n  %s\n", strings.Join(c.examples, "\n  "))
	}
	_, _ = fmt.Fprint(w, "\nflags:\n")
	c.flags.SetOutput(w)
	c.flags.PrintDefaults()
	c.flags.SetOutput(io.Discard)
}

// run is main without the process around it.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	all := commands()
	if len(args) == 0 {
		usage(stderr, all)
		return 2
	}
	if args[0] == "help" || args[0] == "--help" || args[0] == "-h" {
		usage(stdout, all)
		return 0
	}
	for _, command := range all {
		if command.name != args[0] {
			continue
		}
		c := &call{command: command, flags: flag.NewFlagSet(command.name, flag.ContinueOnError), args: args[1:], stdout: stdout, stderr: stderr}
		c.flags.SetOutput(io.Discard)
		err := command.run(ctx, c)
		var wrong usageError
		var status exitStatus
		switch {
		case err == nil:
			return 0
		case errors.Is(err, flag.ErrHelp):
			c.help(stdout)
			return 0
		case errors.As(err, &wrong):
			_, _ = fmt.Fprintf(stderr, "lab %s: %v\nusage: lab %s %s; lab %s --help tells more\n", c.name, err, c.name, command.args, c.name)
			return 2
		case errors.As(err, &status):
			return int(status)
		}
		_, _ = fmt.Fprintf(stderr, "lab %s: %v\n", c.name, err)
		return 1
	}
	_, _ = fmt.Fprintf(stderr, "lab: no command %q\n\n", args[0])
	usage(stderr, all)
	return 2
}

// exitStatus passes on the status of a program that ran in a machine.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func main() {
	if runtime.GOOS != "linux" {
		fmt.Fprintln(os.Stderr, "lab: machines need Linux; lab call works anywhere")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
