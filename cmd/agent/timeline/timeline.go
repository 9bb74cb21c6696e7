package timeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/cmd/agent/cli"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/platform/unit"
)

// Run is `agent timeline`.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags("timeline", cli.Help{Arguments: "[--blame] [--boot N] [--json]",
		Purpose: `Draws the boot as a waterfall: kernel, init, each source, step and wait, the connection to the bus
and the first heartbeat. A boot that is stuck, failed or was retried is drawn as far as it is.
The time before the agent's start is not to scale. Exit codes: 0 drawn, 1 no such boot, 2 usage.`,
		Examples: []string{"agent timeline", "agent timeline --blame", "agent timeline --boot -1",
			"agent timeline --json | lab timeline >boot.svg"}}, stdout, stderr)
	path := flags.String("file", vcap.RunDir.Status(), "status `FILE` to read")
	base := flags.String("b", vcap.DefaultBase, "`BASE` directory with the record of earlier boots")
	width := flags.Int("width", 0, "width in characters; the terminal's if not given")
	blame := flags.Bool("blame", false, "list what took longest")
	boot := flags.Int("boot", 0, "compare with an earlier boot: -1 is the last one")
	asJSON := flags.Bool("json", false, "print a JSON document")
	if code, ok := flags.Parse(args, 0, 0); !ok {
		return code
	}
	if *boot > 0 {
		return flags.UsageError("--boot %d: earlier boots have negative numbers, the last one is -1", *boot)
	}
	fail := func(err error) int {
		fmt.Fprintln(stderr, "agent timeline:", err)
		return cli.ExitFailed
	}
	current, earlier, err := load(ctx, *path, vcap.New(*base).Boots(), *boot)
	if err != nil {
		return fail(err)
	}
	if *width <= 0 {
		*width = cli.Width(stdout)
	}
	shown := current
	if earlier != nil {
		shown = *earlier
	}
	switch {
	case *asJSON:
		err = cli.WriteJSON(stdout, shown)
	case *blame:
		Blame(stdout, shown, *width)
	default:
		Text(stdout, shown, *width)
		if earlier != nil {
			fmt.Fprintln(stdout)
			compare(stdout, *earlier, current, *width)
		}
	}
	if err != nil {
		return fail(err)
	}
	return cli.ExitOK
}

// load returns the chart of this boot and, if one is asked for, of an earlier one.
func load(ctx context.Context, path, history string, boot int) (current Chart, earlier *Chart, err error) {
	d, err := status.Observe(path)
	if err != nil && !(errors.Is(err, status.ErrNone) && boot < 0) {
		return current, nil, err
	}
	addUnit(ctx, d)
	current = NewChart(d, d.Age())
	if boot == 0 {
		return current, nil, nil
	}
	all, err := status.Boots(history)
	if err != nil {
		return current, nil, err
	}
	var others []status.Document
	for _, b := range all {
		if b.BootID != d.BootID {
			others = append(others, b)
		}
	}
	if -boot > len(others) {
		return current, nil, fmt.Errorf("boot %d is not recorded: %s has %d earlier boots", boot, history, len(others))
	}
	old := others[len(others)+boot]
	chart := NewChart(old, old.Age())
	chart.Title += ", boot of " + old.Started.Format("2006-01-02 15:04:05 MST")
	return current, &chart, nil
}

// systemdTimeout bounds the D-Bus call to systemd.
const systemdTimeout = time.Second

// addUnit completes the origin by when systemd began to start the unit: what ExecStartPre= takes is not init's.
func addUnit(ctx context.Context, d status.Document) {
	if d.Origin == nil || !unit.Booted("/") {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, systemdTimeout)
	defer cancel()
	log := logrus.New()
	log.SetOutput(io.Discard)
	systemd := &unit.Systemd{Root: "/", Log: logrus.NewEntry(log)}
	defer systemd.Close()
	if s, err := systemd.State(ctx, "bosh-agent"); err == nil && s.MainPID == d.PID {
		d.Origin.SetUnit(s.Began)
	}
}
