// Package nspawn runs machines as containers with a real systemd, which boot in less than a second. The root of a
// machine is a layer over a shared Debian tree, mounted in a mount namespace that ends with the machine. Its network is
// a namespace of its own. Its /dev has the nodes of only its own disks.
package nspawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"cambium/lab/disk"
	"cambium/lab/machine"
)

// Engine creates machines from a Debian tree.
type Engine struct {
	Tree string // read-only root of all machines
	// Memory, in MiB, and CPUs limit a machine; zero means no limit.
	Memory, CPUs int
}

// CheckHost returns an error for what this host lacks.
func (e Engine) CheckHost() error {
	var lacks []string
	if runtime.GOOS != "linux" {
		return fmt.Errorf("machines need Linux; this is %s", runtime.GOOS)
	}
	if os.Geteuid() != 0 {
		lacks = append(lacks, "root (for namespaces, mounts and loop devices)")
	}
	for program, pkg := range map[string]string{"systemd-nspawn": "systemd-container", "nsenter": "util-linux"} {
		if _, err := exec.LookPath(program); err != nil {
			lacks = append(lacks, program+" (package "+pkg+")")
		}
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		lacks = append(lacks, "loop devices (/dev/loop-control)")
	}
	if len(lacks) > 0 {
		return fmt.Errorf("machines need %s", strings.Join(lacks, " and "))
	}
	return nil
}

// Create creates the machine's layer and installs the agent into it. It does not change an existing layer.
func (e Engine) Create(ctx context.Context, s machine.Spec) (machine.Machine, error) {
	if err := e.CheckHost(); err != nil {
		return nil, err
	}
	m := &Machine{engine: e, stopWatch: func() {}, disks: map[string]*attached{}}
	m.Begin(s)
	if _, err := os.Lstat(m.layer().Root()); errors.Is(err, os.ErrNotExist) {
		undo := machine.Fresh(s.Dir)
		if err := m.layer().Make(); err != nil {
			return nil, errors.Join(err, undo())
		}
		if err := m.bake(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("machine %s: %w", s.Name, err), undo())
		}
	} else if err != nil {
		return nil, err
	}
	watch, cancel := context.WithCancel(context.Background())
	if err := disk.Watch(watch, m.device); err != nil {
		cancel()
		return nil, err
	}
	m.stopWatch = cancel
	return m, nil
}

// bake writes the agent, its configuration and the given files to the layer.
func (m *Machine) bake(ctx context.Context) error {
	return m.mounted(func(root string) error {
		if m.Spec.Installer != "" {
			agentJSON := filepath.Join(m.Spec.Dir, "agent.json")
			if err := os.WriteFile(agentJSON, m.Spec.AgentJSON, 0o600); err != nil {
				return err
			}
			install := exec.CommandContext(ctx, m.Spec.Installer, "--agent", m.Spec.Agent, "--agent-json", agentJSON, "--log",
				"journal")
			install.Env = append(os.Environ(), "DESTDIR="+root)
			if out, err := install.CombinedOutput(); err != nil {
				return fmt.Errorf("install the agent: %w: %s", err, strings.TrimSpace(string(out)))
			}
		}
		id := strings.ReplaceAll(machine.MAC(m.Spec.Name, -1).String(), ":", "")
		files := append([]machine.File{{Path: "/etc/machine-id", Data: []byte(strings.Repeat("0", 20) + id + "\n"),
			Mode: 0o444}}, m.Spec.Files...)
		dir, err := os.OpenRoot(root)
		if err != nil {
			return err
		}
		defer func() { _ = dir.Close() }()
		for _, f := range files {
			if err := writeBelow(dir, f); err != nil {
				return err
			}
		}
		return nil
	})
}

// mounted calls f with the machine's root mounted in a new mount namespace.
func (m *Machine) mounted(f func(root string) error) error { return m.layer().Mounted(f) }

// writeBelow writes all of a file below the machine's root, or nothing. The tree is not trusted: no link can lead out
// of the root, and neither an existing file nor an existing temporary file is opened.
func writeBelow(root *os.Root, f machine.File) error {
	path := strings.TrimPrefix(filepath.Clean("/"+f.Path), "/")
	if err := root.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write /%s: %w", path, err)
	}
	temporary := path + ".lab-new"
	if err := root.RemoveAll(temporary); err != nil { // of a holder that was killed
		return fmt.Errorf("write /%s: %w", path, err)
	}
	file, err := root.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, f.Mode)
	if err != nil {
		return fmt.Errorf("write /%s: %w", path, err)
	}
	_, err = file.Write(f.Data)
	if err = errors.Join(err, file.Chmod(f.Mode), file.Close()); err == nil {
		err = root.Rename(temporary, path)
	}
	if err != nil {
		return fmt.Errorf("write /%s: %w", path, errors.Join(err, root.Remove(temporary)))
	}
	return nil
}
