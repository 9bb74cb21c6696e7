package monit

import (
	"errors"
	"os"

	"cambium/internal/pidfile"
)

// alive reports whether the process of a service runs; if that cannot be known, it does.
func (c *Client) alive(service string) bool {
	path := c.pidfile(service)
	if path == "" {
		return true
	}
	pid, err := pidfile.Read(path)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	return pidfile.Alive(pid)
}
