package monit

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"cambium/internal/retry"
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
	ctx, cancel := context.WithTimeoutCause(ctx, actionBudget, fmt.Errorf("not within %v", actionBudget))
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

var checkProcess = regexp.MustCompile(`(?i)check\s+process\s+"?([^\s"]+)"?\s+(?:with\s+)?pidfile\s+"?([^\s"]+)"?`)

// pidfile finds the pid file of a service in the files of the jobs.
func (c *Client) pidfile(service string) string {
	files, _ := filepath.Glob(c.JobFiles)
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for _, match := range checkProcess.FindAllStringSubmatch(string(text), -1) {
			if match[1] == service {
				return match[2]
			}
		}
	}
	return ""
}
