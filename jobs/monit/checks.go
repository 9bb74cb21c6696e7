package monit

import (
	"errors"
	"os"
	"path/filepath"

	"cambium/internal/pidfile"
	"cambium/supervisor/monitfile"
)

// checks reads the files of the jobs, and returns what they say of each service. A file that is not understood is left
// out.
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

// mayRun reports whether the process of a service runs; if that cannot be known, it does.
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
