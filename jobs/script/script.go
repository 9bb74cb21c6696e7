// Package script runs the scripts of releases: life-cycle scripts, drain scripts and errands. Each runs in its own
// process group, five nice levels below the agent but never with a raised priority, with the agent's environment and a
// fixed PATH. Output is written directly to files, so that it needs no memory and survives a restart of the agent.
package script

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"cambium/internal/command"
	"cambium/internal/speclog"
	"cambium/internal/vcap"

	"github.com/sirupsen/logrus"
)

// path is the PATH of every script.
const path = "/usr/sbin:/usr/bin:/sbin:/bin"

// nice is added to the agent's nice level; the agent runs with a raised priority.
const nice = 5

// Runner runs the scripts of installed jobs.
type Runner struct {
	Dirs vcap.Dirs
	Log  *logrus.Entry
}

// path returns the path of a job's script.
func (r Runner) path(job, name string) string { return r.Dirs.JobScript(job, name) }

func installed(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// environ returns the agent's environment with additions, and without systemd's variables such as NOTIFY_SOCKET: if a
// script wrote to that socket, systemd would take it for the agent. TMPDIR permits executing programs, unlike /tmp.
func (r Runner) environ(extra map[string]string) []string {
	env := []string{"PATH=" + path, "TMPDIR=" + r.Dirs.Tmp()}
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if !slices.Contains(ownVariables, name) {
			env = append(env, entry)
		}
	}
	for name, value := range extra {
		env = append(env, name+"="+value) // of two entries the last one counts
	}
	return env
}

// ownVariables lists variables that are not passed to scripts.
var ownVariables = []string{"PATH", "TMPDIR", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS",
	"LISTEN_PID", "LISTEN_FDNAMES"}

// checkName fails for names that are not file names. Names come from outside and become parts of paths.
func checkName(name string) error {
	if name == "" || strings.HasPrefix(name, ".") || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("script %q: not a valid name", name)
	}
	return nil
}

// checkEnv fails for variables that cannot be passed on.
func checkEnv(env map[string]string) error {
	for name, value := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
			return errors.New("environment: invalid name or value of a variable")
		}
	}
	return nil
}

// Failed is the error of RunAll if scripts have failed.
type Failed struct {
	// Logs lists the files with the error output of the failed scripts.
	Logs []string
	text string
}

func (f *Failed) Error() string { return f.text }

// RunAll runs the scripts with that name of all jobs at the same time, and waits for all of them. The error lists those
// that failed.
func (r Runner) RunAll(ctx context.Context, jobs []string, name string, env map[string]string) error {
	if err := errors.Join(checkName(name), checkEnv(env)); err != nil {
		return err
	}
	var with []string
	for _, job := range jobs {
		found, err := installed(r.path(job, name))
		if err != nil {
			return fmt.Errorf("job %s: %w", job, err)
		}
		if found {
			with = append(with, job)
		}
	}
	faults := make([]error, len(with))
	var running sync.WaitGroup
	for n, job := range with {
		running.Go(func() { faults[n] = r.run(ctx, job, name, env) })
	}
	running.Wait()
	var failed, successful []string
	for n, job := range with {
		if faults[n] != nil {
			r.Log.WithFields(logrus.Fields{"job": job, "script": name}).
				Error(speclog.Script(r.path(job, name), faults[n]))
			failed = append(failed, job)
		} else {
			r.Log.WithFields(logrus.Fields{"job": job, "script": name}).Info(speclog.Script(r.path(job, name), nil))
			successful = append(successful, job)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	summary := fmt.Sprintf("%d of %d %s scripts failed. Failed Jobs: %s.", len(failed), len(with), name,
		strings.Join(failed, ", "))
	if len(successful) > 0 {
		summary += fmt.Sprintf(" Successful Jobs: %s.", strings.Join(successful, ", "))
	}
	failure := &Failed{text: summary}
	for _, job := range failed {
		failure.Logs = append(failure.Logs, r.logPath(job, name+".stderr.log"))
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("%w %w", failure, err)
	}
	return failure
}

func (r Runner) run(ctx context.Context, job, name string, env map[string]string) error {
	stdout, err := r.log(job, name+".stdout.log")
	if err != nil {
		return err
	}
	defer stdout.Close()
	stderr, err := r.log(job, name+".stderr.log")
	if err != nil {
		return err
	}
	defer stderr.Close()
	_, err = command.Run(ctx, command.Cmd{Name: r.path(job, name), Env: r.environ(env), Stdout: stdout,
		Stderr: stderr, Nice: nice})
	return err
}

func (r Runner) logPath(job, name string) string { return filepath.Join(r.Dirs.JobLogs(), job, name) }

// log opens a log of a job's script. The job owns the directory and may have put anything there. If a log cannot be
// opened, the script runs without it.
func (r Runner) log(job, name string) (*os.File, error) {
	file, err := openLog(r.Dirs.Base(), r.logPath(job, name))
	if err == nil {
		return file, nil
	}
	r.Log.WithFields(logrus.Fields{"job": job, "path": name, "error": err}).
		Warn("script runs without its log; remove the file in its place")
	return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
}
