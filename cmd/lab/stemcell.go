package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"cambium/integration/lab/image"
	"cambium/integration/lab/tree"
)

// stemcell makes a stemcell with the agent in it.
func stemcell(ctx context.Context, c *call) error {
	p := plan{Engine: engineQEMU}
	s := image.Stemcell{}
	output := ""
	c.flags.StringVar(&p.Agent, "agent", "", "the agent's `binary` (default the one beside lab)")
	c.flags.StringVar(&s.Version, "version", version, "the stemcell's `version`")
	c.flags.StringVar(&s.IaaS, "iaas", "openstack", "whose agent.json is put in: openstack or qemu")
	c.flags.StringVar(&output, "output", ".", "the `file` to write, or a directory")
	if err := c.parse(0, 0); err != nil {
		return err
	}
	if s.IaaS != "openstack" && s.IaaS != "qemu" {
		return usagef("there is no stemcell for %q", s.IaaS)
	}
	if err := p.findAgent(); err != nil {
		return err
	}
	begin := time.Now()
	made, err := image.Cache{Dir: tree.DefaultDir(), Progress: c.progress}.EnsureStemcell(ctx, p.Agent, s)
	if err != nil {
		return err
	}
	if info, err := os.Stat(output); err == nil && info.IsDir() {
		output = filepath.Join(output, filepath.Base(made))
	}
	if out, err := exec.CommandContext(ctx, "cp", "--reflink=auto", made, output).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the stemcell: %w: %s", err, out)
	}
	info, err := os.Stat(output)
	if err != nil {
		return err
	}
	return c.result(map[string]any{"stemcell": output, "bytes": info.Size(), "seconds": time.Since(begin).Seconds()}, func(w io.Writer) {
		_, _ = fmt.Fprintf(w, "%s: %d MB in %.1f s\n", output, info.Size()/1e6, time.Since(begin).Seconds())
	})
}
