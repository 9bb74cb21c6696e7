//go:build linux

package main

import (
	"os"

	"cambium/lab/image"
	"cambium/lab/machine"
	"cambium/lab/machine/nspawn"
	"cambium/lab/machine/qemu"
	"cambium/lab/tree"
)

// The kinds of machines.
const (
	engineNspawn = "nspawn"
	engineQEMU   = "qemu"
	engineHelp   = "what makes the machines: nspawn (containers, a second each) or qemu (virtual machines, half a minute each)"
)

// missing returns an error for what this host lacks for the engine.
func (p *plan) missing() error {
	switch p.Engine {
	case engineNspawn:
		return nspawn.Engine{}.CheckHost()
	case engineQEMU:
		return qemu.Engine{}.CheckHost()
	}
	return usagef("unknown engine %q; want nspawn or qemu", p.Engine)
}

// engine returns nil to let the lab choose.
func (p *plan) engine(progress func(format string, args ...any)) (machine.Engine, error) {
	if p.Engine != engineQEMU {
		return nil, nil
	}
	own, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return qemu.Engine{Images: image.Cache{Dir: tree.DefaultDir(), Progress: progress}, Attach: []string{own, "attach"}},
		nil
}
