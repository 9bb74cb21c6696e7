// Package retry implements `agent retry`, which makes the running agent start its next attempt at once to boot, or to
// mount the store. SIGHUP does the same.
package retry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"cambium/cmd/agent/cli"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/internal/watch"
)

// answerTime bounds the wait until the agent begins another attempt. The background steps of the failed one must end
// before.
const answerTime = 30 * time.Second

// Run runs `agent retry`.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags("retry", cli.Help{
		Purpose: `Has the agent try at once what it would try again after a pause: a boot that has failed, or to mount a
persistent disk without which no job is started. Sends SIGHUP to the agent. Needs root. Exit codes: 0 it tries, or
there is nothing to retry, 1 the agent does not run or does not answer, 2 usage.`,
		Examples: []string{"agent retry", "agent retry && agent status --wait 5m"}}, stdout, stderr)
	path := flags.String("file", vcap.RunDir.Status(), "status `FILE` of the agent")
	if code, ok := flags.Parse(args, 0, 0); !ok {
		return code
	}
	text, err := retry(ctx, *path, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "agent retry:", cli.Advise(err))
		return cli.ExitFailed
	}
	fmt.Fprintln(stdout, text)
	return cli.ExitOK
}

// retry signals the agent, and returns what it does.
func retry(ctx context.Context, path string, stderr io.Writer) (string, error) {
	before, err := status.Observe(path)
	if err != nil {
		return "", err
	}
	if before.State == status.NotRunning {
		return "", errors.New("the agent is not running; 'agent status' shows more")
	}
	withheld := before.JobsWithheld() != ""
	if before.Serving() && !withheld {
		return "there is nothing to retry: the agent is " + string(before.State), nil
	}
	if process, err := os.FindProcess(before.PID); err != nil {
		return "", err
	} else if err := process.Signal(syscall.SIGHUP); err != nil {
		return "", fmt.Errorf("signal process %d: %w", before.PID, err)
	}
	switch {
	case withheld:
		return "the agent tries to mount the store; 'agent status' shows the outcome", nil
	case before.NextTry == nil:
		return fmt.Sprintf("try %d goes on; if it fails, the next one follows at once", before.Try), nil
	}
	defer cli.SayWaiting(stderr, func() string { return "the failed try to end" })()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	now := before
	err = watch.Until(ctx, path, func() (bool, error) {
		now, err = status.Observe(path)
		return now.Try != before.Try || now.PID != before.PID, err
	})
	if err != nil {
		return "", fmt.Errorf("process %d did not begin another try: %w", before.PID, err)
	}
	return fmt.Sprintf("try %d has begun; 'agent status --wait 5m' waits for its end", now.Try), nil
}
