// Package nspawn makes machines that are containers with a real systemd in them. One boots in
// less than a second. Its root is a layer over a shared Debian tree, mounted in a mount
// namespace that lives and ends with the machine; its network is a namespace of its own; its
// /dev holds the nodes of its own disks and no others.
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

// Engine makes machines from one Debian tree.
type Engine struct {
	Tree string // read-only root of all machines
	// Memory in MiB and CPUs bound what a machine may use; no bound if zero.
	Memory, CPUs int
}

// Missing says what this host lacks.
func (e Engine) Missing() error {
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

// Create makes the machine's layer and installs the agent into it. A layer that is there already is the machine's:
// it is left as it is.
func (e Engine) Create(ctx context.Context, s machine.Spec) (machine.Machine, error) {
	if err := e.Missing(); err != nil {
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

// bake puts the agent, its configuration and the given files over the tree.
func (m *Machine) bake(ctx context.Context) error {
	return m.mounted(func(root string) error {
		if m.Spec.Installer != "" {
			agentJSON := filepath.Join(m.Spec.Dir, "agent.json")
			if err := os.WriteFile(agentJSON, m.Spec.AgentJSON, 0o600); err != nil {
				return err
			}
			install := exec.CommandContext(ctx, m.Spec.Installer, "--agent", m.Spec.Agent, "--agent-json", agentJSON, "--log", "journal")
			install.Env = append(os.Environ(), "DESTDIR="+root)
			if out, err := install.CombinedOutput(); err != nil {
				return fmt.Errorf("install the agent: %w: %s", err, strings.TrimSpace(string(out)))
			}
		}
		id := strings.ReplaceAll(machine.MAC(m.Spec.Name, -1).String(), ":", "")
		files := append([]machine.File{{Path: "/etc/machine-id", Data: []byte(strings.Repeat("0", 20) + id + "\n"), Mode: 0o444}}, m.Spec.Files...)
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

// mounted calls f with the machine's root mounted, in a mount namespace of its own.
func (m *Machine) mounted(f func(root string) error) error { return m.layer().Mounted(f) }

// writeBelow writes a file of the machine's root, whole or not at all. What is there is the stemcell's or the
// machine's: no link leads out of the root, and neither the file nor the temporary one is opened if it is there.
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
