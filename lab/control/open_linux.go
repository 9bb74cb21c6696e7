package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"cambium/lab"
)

// Open connects to a lab. If name is empty, it connects to the only one.
func Open(dir, name string) (*Client, error) {
	if name == "" {
		running := Running(dir)
		switch len(running) {
		case 0:
			return nil, errors.New("no lab is up; start one with: lab up")
		case 1:
			name = running[0]
		default:
			return nil, fmt.Errorf("several labs are up (%s): choose one with --lab NAME", strings.Join(running, ", "))
		}
	}
	if err := lab.ValidName(name); err != nil {
		return nil, err
	}
	path := socket(dir, name)
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("lab %s is not up", name)
	}
	if !lab.Held(name) {
		return nil, fmt.Errorf("lab %s is left over from a crash; remove it with: lab clean %s", name, name)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	return &Client{name: name, http: &http.Client{Transport: &http.Transport{DialContext: dial}}}, nil
}

// Running returns the names of the labs below dir that answer.
func Running(dir string) []string {
	names, err := lab.Leftovers(dir)
	if err != nil {
		return nil
	}
	var up []string
	for _, name := range names {
		conn, err := net.DialTimeout("unix", socket(dir, name), time.Second)
		if err == nil {
			_ = conn.Close()
			up = append(up, name)
		}
	}
	return up
}
