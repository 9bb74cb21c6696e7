// Package loglevel implements `agent log-level`, which shows and changes the log level of the running agent. SIGUSR1
// toggles between info and debug. The status has the current level.
package loglevel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/cmd/agent/cli"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/internal/watch"
)

// levels lists the levels that can be set.
var levels = []string{logrus.InfoLevel.String(), logrus.DebugLevel.String()}

// Toggle switches between the levels at each signal, until ctx ends, and records the current level in the status.
func Toggle(ctx context.Context, signals <-chan os.Signal, log *logrus.Entry, rec *status.Recorder) {
	for {
		level := log.Logger.GetLevel()
		if err := rec.Update(func(d *status.Document) { d.LogLevel = level.String() }); err != nil {
			log.WithError(err).Debug("cannot write the status")
		}
		select {
		case <-signals:
			next := logrus.DebugLevel
			if level == logrus.DebugLevel {
				next = logrus.InfoLevel
			}
			log.Logger.SetLevel(next)
			log.WithField("level", next.String()).Info("log level changed")
		case <-ctx.Done():
			return
		}
	}
}

// answerTime bounds the wait for a running agent to handle the signal.
const answerTime = 5 * time.Second

// Run runs `agent log-level`.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags("log-level", cli.Help{Arguments: "[" + strings.Join(levels, "|") + "]", Words: levels,
		Purpose:  "Shows the log level of the running agent, or changes it until the agent ends: it sends SIGUSR1, which\ntoggles between info and debug. Neither level logs secrets.",
		Examples: []string{"agent log-level", "agent log-level debug", "agent log-level info"}}, stdout, stderr)
	path := flags.String("file", vcap.RunDir.Status(), "status `FILE` of the agent")
	if code, ok := flags.Parse(args, 0, 1); !ok {
		return code
	}
	want := flags.Arg(0)
	if want != "" && !slices.Contains(levels, want) {
		return flags.UsageError("unknown level %q; want one of %q", want, levels)
	}
	level, err := change(ctx, *path, want)
	if err != nil {
		fmt.Fprintln(stderr, "agent log-level:", cli.Advise(err))
		return cli.ExitFailed
	}
	fmt.Fprintln(stdout, level)
	return cli.ExitOK
}

// change sets the agent's log level, if want is not empty, and returns the level in force.
func change(ctx context.Context, path, want string) (string, error) {
	d, err := status.Observe(path)
	if err != nil {
		return "", err
	}
	if d.State == status.NotRunning {
		return "", errors.New("the agent is not running")
	}
	if want == "" || d.LogLevel == want {
		return d.LogLevel, nil
	}
	process, err := os.FindProcess(d.PID)
	if err == nil {
		err = process.Signal(syscall.SIGUSR1)
	}
	if err != nil {
		return "", fmt.Errorf("signal process %d: %w", d.PID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	err = watch.Until(ctx, path, func() (bool, error) {
		d, err = status.Observe(path)
		return d.LogLevel == want, err
	})
	if err != nil {
		return "", fmt.Errorf("process %d did not change its log level: %w", d.PID, err)
	}
	return d.LogLevel, nil
}
