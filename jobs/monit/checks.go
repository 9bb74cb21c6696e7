package monit

import (
	"errors"
	"os"
	"path/filepath"

	"cambium/internal/pidfile"
	"cambium/supervisor/monitfile"
)

// checks returns the checks in the jobs' files, by service. It skips files that it cannot parse.
func (c *Client) checks() map[string]monitfile.Check {
	byName := map[string]monitfile.Check{}
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
			byName[check.Name] = check
		}
	}
	return byName
}

// mayRun reports whether the process of a service runs. It returns true if that is unknown.
func mayRun(check monitfile.Check) bool {
	if check.Pidfile == "" {
		return true
	}
	pid, err := pidfile.Read(check.Pidfile)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	return pidfile.Alive(pid)
}
