//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"cambium/lab/image"
	"cambium/lab/tree"
)

// cache removes unused trees and images from the cache.
func cache(_ context.Context, c *call) error {
	var o image.PruneOptions
	c.flags.DurationVar(&o.Older, "older", image.DefaultOlder, "remove what was not used for this `duration`")
	c.flags.BoolVar(&o.All, "all", false, "remove everything that is not in use; it is made again when it is needed, in minutes")
	c.flags.BoolVar(&o.DryRun, "dry-run", false, "only say what would be removed")
	if err := c.parse(1, 1); err != nil {
		return err
	}
	if c.args[0] != "prune" {
		return usagef("%q is not prune", c.args[0])
	}
	if o.Older < 0 {
		return usagef("--older %s is in the future", o.Older)
	}
	value, text, err := prune(o)
	if err != nil {
		return err
	}
	return c.result(value, text)
}

// prune removes them, and returns what was removed as JSON and as text.
func prune(o image.PruneOptions) (value map[string]any, text func(io.Writer), err error) {
	dir := tree.DefaultDir()
	p, err := image.Cache{Dir: dir}.Prune(o)
	if err != nil {
		return nil, nil, err
	}
	freed := int64(0)
	for _, e := range p.Removed {
		freed += e.Bytes
	}
	value = map[string]any{"dir": dir, "dry_run": o.DryRun, "freed_bytes": freed,
		"removed": append([]image.Entry{}, p.Removed...), "in_use": append([]image.Entry{}, p.InUse...)}
	return value, func(w io.Writer) { writePruned(w, dir, p, o.DryRun, freed) }, nil
}

// cacheSize returns the size of the cache in bytes.
func cacheSize(dir string) (bytes int64, err error) {
	p, err := image.Cache{Dir: dir}.Prune(image.PruneOptions{All: true, DryRun: true})
	for _, e := range append(p.Removed, p.InUse...) {
		bytes += e.Bytes
	}
	return bytes, err
}

func writePruned(w io.Writer, dir string, p image.Pruned, dry bool, freed int64) {
	did, total := "removed", "freed"
	if dry {
		did, total = "would remove", "would free"
	}
	line := func(did string, e image.Entry) {
		_, _ = fmt.Fprintf(w, "%s %s: %s, used %s ago\n", did, e.Name, mebibytes(e.Bytes),
			time.Since(e.Used).Round(time.Minute))
	}
	for _, e := range p.Removed {
		line(did, e)
	}
	for _, e := range p.InUse {
		line("in use:", e)
	}
	if len(p.Removed) == 0 {
		_, _ = fmt.Fprintf(w, "%s holds nothing to remove\n", dir)
		return
	}
	_, _ = fmt.Fprintf(w, "%s %s in %s\n", total, mebibytes(freed), dir)
}

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", (n+1<<20-1)>>20) }
