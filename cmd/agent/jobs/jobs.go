// Package jobs implements `agent jobs`, which shows the processes of the jobs as the supervisor sees them: monit, or
// the agent's own.
package jobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/doctor/observe"
	"cambium/internal/oneline"
	"cambium/internal/retry"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/jobs/monit"
)

// interval is the refresh interval of --watch, since a supervisor does not report changes.
const interval = 2 * time.Second

// Job is one process in the output with --json.
type Job struct {
	Name     string `json:"name"`
	State    string `json:"state"`
	PID      int    `json:"pid,omitempty"`
	Uptime   int    `json:"uptime_seconds"`
	MemoryKB int    `json:"memory_kb"`
	// Only the agent's own supervisor has the next three.
	Restarts  *int       `json:"restarts,omitempty"`
	Ended     *time.Time `json:"last_end,omitempty"`
	EndReason string     `json:"last_end_reason,omitempty"`
	Error     string     `json:"error,omitempty"`
	Log       string     `json:"log,omitempty"`
	Lines     []string   `json:"last_lines,omitempty"`
}

// Run runs `agent jobs`.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags("jobs", cli.Help{Arguments: "[--json | --watch]",
		Purpose: `Shows the processes of the jobs as their supervisor sees them: state, pid, uptime, memory, how often
each was restarted, and when and why it last ended. For processes that are not running, with --json for
all, also shows what is wrong and the last lines of their newest log file.
Needs root. Exit codes: 0 all are running, 1 some are not or the supervisor does not answer, 2 usage.`,
		Examples: []string{"agent jobs", "agent jobs --json", "agent jobs --watch"}}, stdout, stderr)
	base := flags.String("b", vcap.DefaultBase, "`BASE` directory")
	asJSON := flags.Bool("json", false, "print JSON")
	watch := flags.Bool("watch", false, "print again every two seconds, until interrupted")
	if code, ok := flags.Parse(args, 0, 0); !ok {
		return code
	}
	dirs := vcap.New(*base)
	for {
		all, err := list(ctx, dirs)
		if err != nil {
			d, _ := status.Observe(vcap.RunDir.Status()) // without one, the error remains
			fmt.Fprintln(stderr, "agent jobs:", cli.Advise(explain(&d, supervisorAt(dirs), err)))
			if !*watch {
				return cli.ExitFailed
			}
		} else if err := show(stdout, all, *asJSON); err != nil {
			fmt.Fprintln(stderr, "agent jobs:", err)
			return cli.ExitFailed
		}
		if !*watch {
			return exitCode(all)
		}
		if retry.Sleep(ctx, interval) != nil {
			return exitCode(all)
		}
		fmt.Fprintln(stdout)
	}
}

// explain adds to err why the supervisor does not answer, if the agent's status or the owner of the port shows it.
func explain(d *status.Document, supervisor *monit.Client, err error) error {
	if reason := d.JobsWithheld(); reason != "" {
		return fmt.Errorf("%s: %s", status.JobsWithheld, reason)
	}
	if by := d.Warning(status.PortTaken); by != "" {
		return fmt.Errorf("%s: %s; end that process", status.PortTaken, by)
	}
	if errors.Is(err, fs.ErrPermission) {
		return err
	}
	if by := supervisor.DescribePortHolder(); by != "" {
		return fmt.Errorf("the supervisor does not answer: %s; 'sudo agent doctor' shows what to do", by)
	}
	return fmt.Errorf("the supervisor does not answer; 'sudo agent doctor' shows more: %w", err)
}

func exitCode(all []Job) int {
	for _, j := range all {
		if j.State != monit.StateRunning {
			return cli.ExitFailed
		}
	}
	return cli.ExitOK
}

func supervisorAt(dirs vcap.Dirs) *monit.Client {
	return &monit.Client{URL: monit.DefaultURL, UserFile: dirs.MonitUser()}
}

// list asks the supervisor for its processes.
func list(ctx context.Context, dirs vcap.Dirs) ([]Job, error) {
	status, err := supervisorAt(dirs).Status(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Job, 0, len(status.Services))
	for _, s := range status.Services {
		j := Job{Name: s.Name, State: s.State, PID: s.PID, Uptime: s.UptimeSeconds, MemoryKB: s.MemoryKB,
			Restarts: s.Restarts, Ended: s.Ended, EndReason: s.EndReason}
		if s.State != monit.StateRunning {
			j.Error = s.Fault
		}
		if logs := observe.JobLogs(dirs, s.Name); len(logs) > 0 {
			j.Log, j.Lines = logs[0], lastLines(dirs, logs[0])
		}
		all = append(all, j)
	}
	return all, nil
}

const (
	linesShown = 3
	tailSize   = 4096
)

// lastLines returns the end of a log file. Jobs own the directory, so it follows no links out of it and reads only
// regular files.
func lastLines(dirs vcap.Dirs, path string) []string {
	name, err := filepath.Rel(dirs.JobLogs(), path)
	if err != nil {
		return nil
	}
	root, err := os.OpenRoot(dirs.JobLogs())
	if err != nil {
		return nil
	}
	defer root.Close()
	file, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	tail := make([]byte, min(info.Size(), tailSize))
	n, err := file.ReadAt(tail, info.Size()-int64(len(tail)))
	if err != nil && n == 0 {
		return nil
	}
	all := bytes.Split(bytes.TrimRight(tail[:n], "\n"), []byte("\n"))
	if len(tail) == tailSize && len(all) > 1 {
		all = all[1:] // begins in the middle
	}
	var lines []string
	for _, line := range all[max(0, len(all)-linesShown):] {
		lines = append(lines, oneline.Of(strings.ToValidUTF8(string(line), "?")))
	}
	return lines
}

// show prints the jobs as a table, with details of those that do not run.
func show(w io.Writer, all []Job, asJSON bool) error {
	if asJSON {
		return cli.WriteJSON(w, map[string]any{"jobs": all})
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no processes: the deployment has none, or the instance is stopped")
		return err
	}
	width := len("NAME")
	for _, j := range all {
		width = max(width, len(j.Name))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-*s  %-8s  %7s  %9s  %10s  %8s  %s\n", width, "NAME", "STATE", "PID", "UPTIME", "MEMORY",
		"RESTARTS", "LAST END")
	for _, j := range all {
		pid, uptime, restarts, ended := "-", "-", "-", "-"
		if j.PID != 0 {
			pid, uptime = fmt.Sprint(j.PID), (time.Duration(j.Uptime) * time.Second).String()
		}
		if j.Restarts != nil {
			restarts = fmt.Sprint(*j.Restarts)
		}
		if j.Ended != nil {
			ended = j.Ended.UTC().Format(time.RFC3339) + " " + oneline.Of(j.EndReason)
		}
		fmt.Fprintf(&b, "%-*s  %-8s  %7s  %9s  %6d MiB  %8s  %s\n", width, oneline.Of(j.Name), j.State, pid, uptime,
			j.MemoryKB/1024, restarts, ended)
	}
	for _, j := range all {
		if j.Error != "" {
			fmt.Fprintf(&b, "\n%s: %s\n", oneline.Of(j.Name), oneline.Of(j.Error))
		}
		if j.Log != "" && j.State != monit.StateRunning {
			fmt.Fprintf(&b, "\n%s: last lines of %s\n", oneline.Of(j.Name), oneline.Of(j.Log))
			for _, line := range j.Lines {
				fmt.Fprintf(&b, "  %s\n", line)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
