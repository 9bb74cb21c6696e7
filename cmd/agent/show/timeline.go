package show

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"cambium/cmd/agent/cli"
	"cambium/internal/status"
)

// Timeline is `agent timeline`.
func Timeline(_ context.Context, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags("timeline", cli.Help{Purpose: "Draws the steps of the boot on one time axis; waits are dotted.",
		Examples: []string{"agent timeline", "agent timeline --width 100"}}, stdout, stderr)
	path := flags.String("file", status.DefaultPath, "status `FILE` to read")
	width := flags.Int("width", 60, "width of the axis in characters")
	if code, ok := flags.Parse(args, 0, 0); !ok {
		return code
	}
	doc, err := status.Read(*path)
	if err != nil {
		fmt.Fprintln(stderr, "agent timeline:", err)
		return cli.ExitFailed
	}
	printTimeline(stdout, doc, max(*width, 10))
	return cli.ExitOK
}

func printTimeline(w io.Writer, d status.Document, width int) {
	var last int64 = 1
	for _, s := range d.Steps {
		last = max(last, s.End)
	}
	column := func(t int64) int { return min(int(t*int64(width)/last), width-1) }
	for _, s := range d.Steps {
		if s.Start == 0 && s.End == 0 {
			continue
		}
		end := s.End
		if end == 0 {
			end = last
		}
		bar := []byte(strings.Repeat(" ", width))
		for i := column(s.Start); i <= column(end); i++ {
			bar[i] = '='
		}
		for _, wait := range s.Waits {
			waited := wait.End
			if waited == 0 {
				waited = end
			}
			for i := column(wait.Start); i <= column(waited); i++ {
				bar[i] = '.'
			}
		}
		fmt.Fprintf(w, "  %-18s |%s| %s\n", s.Name, bar, roundTime(s.Took()))
	}
	fmt.Fprintf(w, "  %-18s  0%*s\n", "", width, roundTime(time.Duration(last)))
}
