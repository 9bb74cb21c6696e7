//go:build linux

package main

import (
	"context"
	"fmt"
	"path/filepath"

	"cambium/lab/control"
	"cambium/lab/release"
)

func deploy(ctx context.Context, c *call) error {
	if err := c.parse(1, 1); err != nil {
		return err
	}
	m, err := release.ReadManifest(c.args[0])
	if err != nil {
		return err
	}
	base, err := filepath.Abs(m.Base)
	if err != nil {
		return err
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	steps := []control.Line{}
	err = client.Deploy(ctx, control.Deploy{Manifest: m, Base: base}, func(l control.Line) {
		steps = append(steps, l)
		if !c.json {
			mark := "ok"
			if l.Error != "" {
				mark = "FAILED"
			}
			_, _ = fmt.Fprintf(c.stdout, "%-12s %-26s %6.2f s  %s\n", l.Instance, l.Step, l.Seconds, mark)
		}
	})
	if c.json {
		if printed := c.result(map[string]any{"steps": steps}, nil); printed != nil {
			return printed
		}
	}
	return err
}
