package monit

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"cambium/internal/retry"
	"cambium/supervisor/monitfile"
)

// resume makes monit supervise a service again that is about to be stopped. The monit of stemcells
// (5.2) stops what it does not monitor if the process runs; a current one does nothing then. A
// service whose process has ended by itself, as a drain may do, is skipped: monit would start it
// only to stop it.
func (s Supervisor) resume(ctx context.Context, status Status, service string) error {
	if strings.HasPrefix(status.Version, "5.2.") || !s.alive(service) {
		return nil
	}
	if err := s.act(ctx, "monitor", service); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, actionBudget, fmt.Errorf("timed out after %v", actionBudget))
	defer cancel()
	return retry.Do(ctx, retry.Backoff{Min: 50 * time.Millisecond, Max: 500 * time.Millisecond}, func(ctx context.Context) error {
		status, err := s.Status(ctx)
		if err != nil {
			return err
		}
		for _, v := range status.Services {
			if v.Name == service && (!v.Monitored || v.Pending) {
				return fmt.Errorf("monit does not supervise %s after its reload", service)
			}
		}
		return nil
	})
}

// pidfile finds the pid file of a service in the files of the jobs; "" if none that is understood names it.
func (c *Client) pidfile(service string) string {
	files, _ := filepath.Glob(c.JobFiles)
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		checks, err := monitfile.Parse(path, text)
		if err != nil {
			continue
		}
		for _, check := range checks {
			if check.Name == service {
				return check.Pidfile
			}
		}
	}
	return ""
}
