package monit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"cambium/internal/atomicfile"
)

// DropIn decides which program runs inside of monit's unit: monit, or the agent's own supervisor. It lives below /run,
// so that a boot without this agent finds the unit as the stemcell has it.
type DropIn struct {
	Path string
	// Content is empty where monit is to run.
	Content []byte
	// Reload has the service manager read its units again.
	Reload func(ctx context.Context) error
	// Before is given, before the program inside of a running unit is replaced, the services and whether they are
	// monitored; nil is nothing to do.
	Before func(monitored map[string]bool) error
}

// SupervisorUnit is the drop-in for the agent's own supervisor.
func SupervisorUnit(agent string) []byte {
	return fmt.Appendf(nil, `# The agent runs with -M systemd: its supervisor takes the place of monit until the next boot.
[Service]
ExecStart=
ExecStart=%s supervise
OOMPolicy=continue
`, agent)
}

// differs reports whether the drop-in is not as wanted.
func (d DropIn) differs() (bool, error) {
	if d.Path == "" {
		return false, nil
	}
	have, err := os.ReadFile(d.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("supervisor: %w", err)
	}
	return !bytes.Equal(have, d.Content), nil
}

// change is what the wanted state takes.
func (d DropIn) change() Change {
	if len(d.Content) == 0 {
		return Change{Op: OpRemoveFile, Path: d.Path}
	}
	return Change{Op: OpWriteUnit, Path: d.Path}
}

// apply makes it as wanted.
func (d DropIn) apply(ctx context.Context) error {
	if len(d.Content) == 0 {
		if err := os.Remove(d.Path); err != nil {
			return fmt.Errorf("supervisor: %w", err)
		}
	} else {
		if err := os.MkdirAll(filepath.Dir(d.Path), 0o755); err != nil {
			return fmt.Errorf("supervisor: %w", err)
		}
		if err := atomicfile.Write(d.Path, d.Content, 0o644, atomicfile.Volatile()); err != nil {
			return fmt.Errorf("supervisor: %w", err)
		}
	}
	if err := d.Reload(ctx); err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	return nil
}

// before passes on what the running program knows. One that does not answer cannot tell.
func (d DropIn) before(ctx context.Context, c *Client) error {
	if d.Before == nil {
		return nil
	}
	status, err := c.Status(ctx)
	if err != nil {
		return nil
	}
	monitored := map[string]bool{}
	for _, v := range status.Services {
		monitored[v.Name] = v.Monitored
	}
	return d.Before(monitored)
}
