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

// DropIn decides which program runs inside monit's unit: monit, or the agent's own supervisor. It lives below /run,
// so that a boot without this agent finds the unit as the stemcell has it.
type DropIn struct {
	Path string
	// Content is empty where monit is to run.
	Content []byte
	// Link is the program that the unit starts: a link to Agent. Releases look for a process with the name monit.
	Link, Agent string
	// Reload has the service manager read its units again.
	Reload func(ctx context.Context) error
	// Before is given, before the program inside a running unit is replaced, the services and whether they are
	// monitored. If it is nil, the new program is told afterwards.
	Before func(monitored map[string]bool) error
}

// SupervisorUnit is the drop-in for the agent's own supervisor, which link starts.
func SupervisorUnit(link string) []byte {
	return fmt.Appendf(nil, `# The agent runs with -M systemd: its supervisor takes the place of monit until the next boot.
[Service]
ExecStart=
ExecStart=%s supervise
KillMode=process
TasksMax=infinity
OOMPolicy=continue
`, link)
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

// change returns the change that brings the drop-in into the wanted state.
func (d DropIn) change() Change {
	if len(d.Content) == 0 {
		return Change{Op: OpRemoveFile, Path: d.Path}
	}
	return Change{Op: OpWriteUnit, Path: d.Path}
}

// apply makes it as wanted.
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
		err = d.Reload(ctx)
	}
	if err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	return nil
}

// before passes on what the running program knows, and returns the services that it does not monitor, and whether their
// processes run. A program that does not answer cannot tell.
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

// after tells monit, which has a state file of the time before, what it is not to monitor. It may have started what did
// not run.
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
