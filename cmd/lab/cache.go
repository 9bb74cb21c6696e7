package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"cambium/integration/lab"
	"cambium/integration/lab/image"
	"cambium/integration/lab/tree"
)

// cache removes what is not used from the cache of trees and images.
func cache(_ context.Context, c *call) error {
	all := false
	c.flags.BoolVar(&all, "all", false, "remove everything; it is made again when it is needed, in minutes")
	if err := c.parse(1, 1); err != nil {
		return err
	}
	if c.args[0] != "prune" {
		return usagef("%q is not prune", c.args[0])
	}
	names, err := lab.Leftovers(c.dir)
	if err != nil {
		return err
	}
	var up []string
	for _, name := range names {
		if lab.Held(name) {
			up = append(up, name)
		}
	}
	if len(up) > 0 {
		return fmt.Errorf("labs are up (%s), whose machines use the cache; end them first", strings.Join(up, ", "))
	}
	dir := tree.DefaultDir()
	removed, err := image.Cache{Dir: dir}.Prune(all)
	if err != nil {
		return err
	}
	return c.result(map[string]any{"dir": dir, "removed": append([]string{}, removed...)}, func(w io.Writer) {
		for _, name := range removed {
			_, _ = fmt.Fprintf(w, "removed %s\n", name)
		}
		if len(removed) == 0 {
			_, _ = fmt.Fprintf(w, "%s holds nothing that is not used\n", dir)
		}
	})
}
