package loglevel

import (
	"bytes"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"

	"cambium/cmd/agent/cli"
	"cambium/internal/status"
)

// TestLogLevel changes the level of an agent that is this process.
func TestLogLevel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status.json")
	rec, err := status.Open(path, "v")
	if err != nil {
		t.Fatal(err)
	}
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	t.Cleanup(func() { signal.Stop(signals) })
	go Toggle(t.Context(), signals, logrus.NewEntry(logger), rec)
	for _, c := range []struct {
		args  string
		want  string
		level logrus.Level
	}{{"debug", "debug", logrus.DebugLevel}, {"debug", "debug", logrus.DebugLevel}, {"", "debug", logrus.DebugLevel},
		{"info", "info", logrus.InfoLevel}} {
		var out bytes.Buffer
		code := Run(t.Context(), append([]string{"--file", path}, strings.Fields(c.args)...), &out, &out)
		if code != cli.ExitOK || out.String() != c.want+"\n" || logger.GetLevel() != c.level {
			t.Errorf("log-level %s: code %d, %q, level %s; want %s", c.args, code, out.String(), logger.GetLevel(), c.want)
		}
	}
	if err := rec.Stop(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if code := Run(t.Context(), []string{"--file", path, "debug"}, &out, &out); code != cli.ExitFailed ||
		!strings.Contains(out.String(), "the agent is not running") {
		t.Errorf("without an agent: code %d, %q", code, out.String())
	}
}
