package monit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"cambium/internal/atomicfile"
)

// DropIn decides which program monit's unit runs: monit, or the agent's own supervisor. It is below /run, so that after
// a boot without this agent the unit is as in the stemcell.
type DropIn struct {
	Path string
	// Content is empty if monit must run.
	Content []byte
	// Link is the program of the unit, a link to Agent. Releases look for a process named monit.
	Link, Agent string
	// Reload makes the service manager use the drop-in at path as it now is, or its absence.
	Reload func(ctx context.Context, unit, path string) error
	// Before is called with the services, and whether they are monitored, before the program of a running unit is
	// replaced. If it is nil, the new program is told afterwards.
	Before func(monitored map[string]bool) error
}

// SupervisorUnit returns the drop-in that starts the agent's own supervisor through link.
func SupervisorUnit(link string) []byte {
	return fmt.Appendf(
		nil,
		`# The agent runs with -M systemd: its supervisor takes the place of monit until the next boot.
[Service]
ExecStart=
ExecStart=%s supervise
KillMode=process
TasksMax=infinity
OOMPolicy=continue
`,
		link,
	)
}

// differs reports whether the drop-in must be changed.
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

// change returns the change that apply would make.
func (d DropIn) change() Change {
	if len(d.Content) == 0 {
		return Change{Op: OpRemoveFile, Path: d.Path}
	}
	return Change{Op: OpWriteUnit, Path: d.Path}
}

// apply writes or removes the drop-in.
func (d DropIn) apply(ctx context.Context) error {
	err := os.Remove(d.Link)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	switch {
	case err != nil:
	case len(d.Content) == 0:
		err = os.Remove(d.Path)
	default:
		err = errors.Join(os.MkdirAll(filepath.Dir(d.Link), 0o755), os.MkdirAll(filepath.Dir(d.Path), 0o755))
		if err == nil {
			err = os.Symlink(d.Agent, d.Link)
		}
		if err == nil {
			err = atomicfile.Write(d.Path, d.Content, 0o644, atomicfile.Volatile())
		}
	}
	if err == nil {
		err = d.Reload(ctx, UnitName, d.Path)
	}
	if err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	return nil
}

// before passes the state of the services to Before. Without Before, it returns the services that are not monitored,
// and whether their processes run. If the running program does not answer, it returns nothing.
func (d DropIn) before(ctx context.Context, c *Client) (unmonitored map[string]bool, err error) {
	status, err := c.StatusOf(ctx, "")
	if err != nil {
		return nil, nil
	}
	monitored, unmonitored, checks := map[string]bool{}, map[string]bool{}, c.checks()
	for _, v := range status.Services {
		if monitored[v.Name] = v.Monitored; !v.Monitored {
			unmonitored[v.Name] = mayRun(checks[v.Name])
		}
	}
	if d.Before == nil {
		return unmonitored, nil
	}
	return nil, d.Before(monitored)
}

// after restores the services that must not be monitored, because monit has read an old state file, and may have
// started some of them.
func (d DropIn) after(ctx context.Context, c *Client, unmonitored map[string]bool) error {
	for _, name := range slices.Sorted(maps.Keys(unmonitored)) {
		tell := c.Stop
		if unmonitored[name] {
			tell = c.Unmonitor
		}
		var refused statusError
		if err := tell(ctx, name); err != nil && !(errors.As(err, &refused) && refused.code < 500) {
			return fmt.Errorf("supervisor: %w", err) // a service that monit does not have needs nothing
		}
	}
	return nil
}
