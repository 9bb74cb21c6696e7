// Package supervise implements `agent supervise`, which runs the supervisor of the jobs in place of monit.
package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/logging"
	"cambium/internal/atomicfile"
	"cambium/internal/retry"
	"cambium/internal/tcp"
	"cambium/internal/vcap"
	"cambium/jobs/monit"
	"cambium/supervisor"

	"github.com/sirupsen/logrus"
)

// Defaults of supervisor.Options. Tests of the supervisor use shorter ones.
const (
	cycle = 10 * time.Second
	grace = 2 * time.Second
)

// portPause is the pause between two attempts to listen on the port. Jobs are supervised meanwhile.
const portPause = time.Second

// Run runs `agent supervise`.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags(
		"supervise",
		cli.Help{Purpose: `Runs the jobs of this machine in place of monit, until it gets SIGTERM: it reads the monit
files of the jobs, starts and stops what they name, restarts what has ended, and answers monit's
HTTP requests on ` + strings.TrimPrefix(monit.DefaultURL, "http://") + `. The jobs keep running when it ends. SIGHUP makes it read the files again.
With -M systemd the agent starts it in monit.service; there is no need to call it.`,
			Examples: []string{"agent supervise"}},
		stdout,
		stderr,
	)
	base := flags.String("b", vcap.DefaultBase, "`BASE` directory")
	if code, ok := flags.Parse(args, 0, 0); !ok {
		return code
	}
	log := logging.SetUp(stderr).WithField("component", "supervisor")
	if err := run(ctx, vcap.New(*base), log); err != nil {
		log.WithError(err).Error("supervisor failed")
		return cli.ExitFailed
	}
	return cli.ExitOK
}

func run(ctx context.Context, dirs vcap.Dirs, log *logrus.Entry) error {
	s, err := supervisor.New(supervisor.Options{
		Patterns: dirs.MonitPatterns(), Cycle: cycle, Grace: grace, StateFile: dirs.SupervisorState(),
		UserFile:    dirs.MonitUser(),
		MailAddress: monit.AlertsAddress, Log: log})
	if err != nil {
		return err
	}
	// monit's own program looks here before it sends a request.
	if err := atomicfile.Write(vcap.RunDir.MonitPid(), fmt.Appendf(nil, "%d\n", os.Getpid()), 0o644,
		atomicfile.Volatile()); err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGHUP, unix.SIGUSR1)
	go func() {
		for sig := range signals {
			if sig == unix.SIGHUP {
				s.Reload()
			} else {
				s.StartCycle()
			}
		}
	}()
	defer signal.Stop(signals)
	log.Info("supervisor starting")
	go serve(ctx, s, log)
	s.Run(ctx)
	return nil
}

// serve answers HTTP requests until ctx ends. If another process has the port, which any user can take while it is
// free, serve tries again.
func serve(ctx context.Context, s *supervisor.Supervisor, log *logrus.Entry) {
	server := &http.Server{Handler: s.Handler(), ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // the process ends
	defer stop()
	for said := ""; ; {
		listener, err := tcp.Listen(ctx, strings.TrimPrefix(monit.DefaultURL, "http://"))
		if err == nil {
			err = server.Serve(listener)
		}
		if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
			return
		}
		if err.Error() != said {
			said = err.Error()
			log.WithError(err).Error("cannot listen on the supervisor's port; end the process that holds it")
		}
		if retry.Sleep(ctx, portPause) != nil {
			return
		}
	}
}
