// Package monitcli implements the program monit, for people and for scripts of jobs, on machines where the agent's
// supervisor replaces monit. Arguments, output and exit codes are the same. On such a machine, the program is a link to
// the agent.
package monitcli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"cambium/cmd/agent/cli"
	"cambium/internal/pidfile"
	"cambium/internal/vcap"
	"cambium/jobs/monit"
	"cambium/supervisor"

	"golang.org/x/sys/unix"
)

// Name is the name under which the agent's binary is this program.
const Name = "monit"

const usage = `usage: monit [options] command
  start|stop|restart NAME|all        start, stop or restart a service, or all services
  monitor|unmonitor NAME|all         enable or disable monitoring of a service, or of all services
  summary, status                    show the state of all services
  validate                           check all services now
  reload                             read the files of all jobs again
  quit                               end the daemon; the services keep running
options:
  -g GROUP   with all: the services of the group
  -t         check the files of all jobs, or FILE, and do nothing else
  -c FILE    the file for -t
  -I         execute the stemcell's monit with the same arguments
  -V         show the version
  -h         show this help
`

// program is one run of the command and its environment.
type program struct {
	client *monit.Client
	dirs   vcap.Dirs
	// pidFile holds the pid of the daemon.
	pidFile string
	// stemcell lists the paths of the stemcell's monit. Some may be links to this program.
	stemcell []string
	// execute replaces this process with another program, and kill sends a signal.
	execute        func(path string, args, environment []string) error
	kill           func(pid int, signal unix.Signal) error
	stdout, stderr io.Writer
}

// Run runs the program monit.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	dirs := vcap.New("")
	p := program{client: &monit.Client{URL: monit.DefaultURL, UserFile: dirs.MonitUser()}, dirs: dirs,
		pidFile: vcap.RunDir.MonitPid(), stemcell: []string{dirs.Program(Name), "/usr/bin/monit", "/usr/sbin/monit"},
		execute: unix.Exec, kill: unix.Kill, stdout: stdout, stderr: stderr}
	return p.run(ctx, args)
}

// run runs the command and returns the exit code, which is 0 or 1, as with monit.
func (p program) run(ctx context.Context, args []string) int {
	if slices.Contains(args, "-I") {
		return p.report(p.executeStemcells(args))
	}
	flags := flag.NewFlagSet(Name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	file, group := flags.String("c", "", ""), flags.String("g", "", "")
	test, version := flags.Bool("t", false, ""), flags.Bool("V", false, "")
	flags.Bool("v", false, "")
	var words []string
	for rest := args; ; rest = flags.Args()[1:] {
		if err := flags.Parse(rest); errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(p.stdout, usage)
			return cli.ExitOK
		} else if err != nil {
			return p.report(fmt.Errorf("%w; -h shows the usage", err))
		}
		if flags.NArg() == 0 {
			break
		}
		words = append(words, flags.Arg(0))
	}
	switch {
	case *version:
		fmt.Fprintf(p.stdout, "This is Monit version %s\nprovided by the agent's supervisor\n", supervisor.Version)
		return cli.ExitOK
	case *test:
		return p.report(p.test(*file))
	case len(words) == 0: // as monit does with a running daemon
		words = []string{"validate"}
	}
	return p.report(p.command(ctx, words[0], words[1:], *group))
}

func (p program) report(err error) int {
	if err == nil {
		return cli.ExitOK
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(p.stderr, "monit: %s\n", strings.TrimSpace(line))
	}
	return cli.ExitFailed
}

func (p program) command(ctx context.Context, command string, names []string, group string) error {
	switch command {
	case "start", "stop", "restart", "monitor", "unmonitor":
		if len(names) != 1 {
			return fmt.Errorf("give the name of one service, or all, after %s", command)
		}
		return p.act(ctx, command, names[0], group)
	case "summary", "status":
		text, err := p.client.Text(ctx, command == "summary")
		fmt.Fprint(p.stdout, text)
		return err
	case "reload": // scripts give it a name, which monit ignores, too
		return p.signal(unix.SIGHUP, "Reinitializing monit daemon\n")
	case "quit":
		return p.signal(unix.SIGTERM, "monit daemon with pid [%d] killed\n")
	case "validate":
		return p.signal(unix.SIGUSR1, "monit daemon at %d awakened\n")
	default:
		return fmt.Errorf("unknown command %q; -h shows the usage", command)
	}
}

// act requests an action on a service, on all services of a group, or on all. It continues if some of them fail.
func (p program) act(ctx context.Context, action, name, group string) error {
	if name != "all" {
		return p.client.Act(ctx, action, name)
	}
	status, err := p.client.StatusOf(ctx, group)
	if err == nil && group != "" && len(status.Services) == 0 {
		err = fmt.Errorf("there is no service in group %q", group)
	}
	for _, s := range status.Services {
		if failed := p.client.Act(ctx, action, s.Name); failed != nil {
			err = errors.Join(err, fmt.Errorf("%s %s: %w", action, s.Name, failed))
		}
	}
	return err
}

// signal sends a signal to the daemon and prints text, in which %d is replaced by the daemon's pid.
func (p program) signal(signal unix.Signal, text string) error {
	pid, err := pidfile.Read(p.pidFile)
	if err == nil && pid <= 1 {
		err = fmt.Errorf("%s does not hold the pid of a daemon", p.pidFile)
	}
	if err == nil {
		err = p.kill(pid, signal)
	}
	if err != nil {
		return fmt.Errorf("the daemon is not running: %w", err)
	}
	fmt.Fprint(p.stdout, strings.Replace(text, "%d", strconv.Itoa(pid), 1))
	return nil
}

// test parses a control file. The stemcell's own file contains nothing for jobs but includes all of theirs, so test
// parses those.
func (p program) test(file string) error {
	patterns := p.dirs.MonitPatterns()
	if file != "" && file != p.dirs.StemcellFile("monitrc") {
		if _, err := os.Stat(file); err != nil {
			return err
		}
		patterns = []string{file}
	}
	if err := supervisor.CheckFiles(patterns...); err != nil {
		return err
	}
	fmt.Fprintln(p.stdout, "Control file syntax OK")
	return nil
}

// executeStemcells replaces this process with the stemcell's monit.
func (p program) executeStemcells(args []string) error {
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find this program's executable: %w", err)
	}
	for _, path := range p.stemcell {
		if info, err := os.Stat(path); err == nil && !os.SameFile(own, info) {
			return fmt.Errorf("execute %s: %w", path, p.execute(path, append([]string{Name}, args...), os.Environ()))
		}
	}
	return fmt.Errorf("the stemcell has no monit of its own: looked for %s", strings.Join(p.stemcell, ", "))
}
