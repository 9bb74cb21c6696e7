//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"cambium/cmd/agent/timeline"
	"cambium/cmd/lab/picture"
)

// maxChart bounds the size of the document. That of a boot has some kilobytes.
const maxChart = 16 << 20

// drawTimeline draws a boot from the output of `agent timeline --json`.
func drawTimeline(_ context.Context, c *call) error {
	if err := c.parse(0, 1); err != nil {
		return err
	}
	from, name := io.Reader(os.Stdin), "standard input"
	if len(c.args) > 0 {
		file, err := os.Open(c.args[0])
		if err != nil {
			return err
		}
		defer file.Close()
		from, name = file, c.args[0]
	}
	var chart timeline.Chart
	err := json.NewDecoder(io.LimitReader(from, maxChart)).Decode(&chart)
	if err == nil && (len(chart.Rows) == 0 || chart.End <= chart.Agent) {
		err = errors.New("it has no rows, or no time")
	}
	if err != nil {
		return fmt.Errorf("%s is not what agent timeline --json prints: %w", name, err)
	}
	return picture.Draw(c.stdout, chart)
}
