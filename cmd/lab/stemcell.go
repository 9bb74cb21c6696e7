//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"cambium/lab/image"
	"cambium/lab/machine/qemu"
	"cambium/lab/tree"
)

// The commit of this build and its time, set by the linker.
var commit, commitTime string

// stemcellVersion returns the lab's version if a Director can parse it, or that of a development build.
func stemcellVersion() string {
	if image.CheckVersion(version) == nil {
		return version
	}
	return image.DevVersion(commitTime, commit[:min(len(commit), 12)])
}

// stemcell builds a stemcell that contains the agent.
func stemcell(ctx context.Context, c *call) error {
	p := plan{Engine: engineQEMU}
	s := image.Stemcell{Commit: commit}
	if seconds, err := strconv.ParseInt(commitTime, 10, 64); err == nil {
		s.Made = time.Unix(seconds, 0)
	}
	output := ""
	c.flags.StringVar(&p.Agent, "agent", "", "the agent's `binary` (default the one beside lab)")
	c.flags.StringVar(&s.Version, "version", stemcellVersion(), "the stemcell's `version`")
	c.flags.StringVar(&s.IaaS, "iaas", "openstack", "the `IaaS`: "+strings.Join(image.InfrastructureNames(), ", "))
	c.flags.StringVar(&output, "output", ".", "the `file` to write, or a directory")
	hardened := c.flags.Bool("hardened", true, "with the settings that audits ask for")
	if err := c.parse(0, 0); err != nil {
		return err
	}
	s.Plain = !*hardened
	if _, err := image.FindInfrastructure(s.IaaS); err != nil {
		return usagef("%v", err)
	}
	if err := image.CheckVersion(s.Version); err != nil {
		return usagef("%v", err)
	}
	if err := p.findAgent(); err != nil {
		return err
	}
	begin := time.Now()
	cache := image.Cache{Dir: tree.DefaultDir(), Progress: c.progress}
	made, err := cache.EnsureStemcell(ctx, p.Agent, s)
	if err != nil {
		return err
	}
	// The CPI's machines use KVM if it was seen to work: the kernel in a stemcell cannot be tried.
	if err := (qemu.Engine{Images: cache}).Probe(ctx); err != nil {
		c.progress("cannot determine whether KVM works; the CPI's virtual machines are emulated: %v", err)
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
	return c.result(map[string]any{"stemcell": output, "bytes": info.Size(), "seconds": time.Since(begin).Seconds()},
		func(w io.Writer) {
			_, _ = fmt.Fprintf(w, "%s: %d MB in %.1f s\n", output, info.Size()/1e6, time.Since(begin).Seconds())
		})
}

// runtimeConfig prints a runtime config with the addons of the stemcell's VMs.
func runtimeConfig(_ context.Context, c *call) error {
	if err := c.parse(0, 0); err != nil {
		return err
	}
	config := image.RuntimeConfig()
	return c.result(map[string]string{"runtime_config": config}, func(w io.Writer) { _, _ = io.WriteString(w, config) })
}
