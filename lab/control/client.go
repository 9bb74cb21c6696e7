package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"cambium/lab/director"
)

// Client is a client of the process that holds a lab.
type Client struct {
	name string
	http *http.Client
}

// agentError is an exception in an agent's reply.
type agentError struct{ Message string }

func (e *agentError) Error() string { return e.Message }

// Name returns the name of the lab.
func (c *Client) Name() string { return c.name }

func (c *Client) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://lab"+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(r)
	if err != nil {
		return nil, fmt.Errorf("lab %s does not answer: %w", c.name, errors.Unwrap(err))
	}
	return response, nil
}

func (c *Client) once(ctx context.Context, method, path string, body, result any) error {
	response, err := c.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		var l Line
		if err := json.NewDecoder(response.Body).Decode(&l); err != nil {
			return fmt.Errorf("lab %s: HTTP status %d", c.name, response.StatusCode)
		}
		return errors.New(l.Error)
	}
	if result == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(result)
}

// lines reads a stream of lines up to the last one.
func (c *Client) lines(ctx context.Context, method, path string, body any, each func(Line)) (json.RawMessage, error) {
	response, err := c.send(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	for d := json.NewDecoder(response.Body); ; {
		var l Line
		if err := d.Decode(&l); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("the lab ended")
			}
			return nil, err
		}
		if !l.Done {
			each(l)
			continue
		}
		if l.Error != "" && l.Agent {
			return nil, &agentError{l.Error}
		}
		if l.Error != "" {
			return nil, errors.New(l.Error)
		}
		return l.Value, nil
	}
}

// State returns the state of the lab.
func (c *Client) State(ctx context.Context) (s State, err error) {
	return s, c.once(ctx, http.MethodGet, "/state", nil, &s)
}

// Down ends the lab. It returns when the lab has accepted the request.
func (c *Client) Down(ctx context.Context) error {
	return c.once(ctx, http.MethodPost, "/down", nil, nil)
}

// Power starts, stops, reboots, kills or deletes a machine. If wait is set and the machine then runs, it waits until
// the agent has answered or has a verdict.
func (c *Client) Power(ctx context.Context, machine, verb string, wait bool, each func(Line)) error {
	path := "/machines/" + machine + "/" + verb
	if wait {
		path += "?wait"
	}
	_, err := c.lines(ctx, http.MethodPost, path, nil, each)
	return err
}

// Disk attaches, detaches, resizes or deletes a disk.
func (c *Client) Disk(ctx context.Context, change DiskChange) (d Disk, err error) {
	return d, c.once(ctx, http.MethodPost, "/disks", change, &d)
}

// Call sends a request to an agent of the lab.
func (c *Client) Call(ctx context.Context, call Call, each func(Line)) (json.RawMessage, error) {
	return c.lines(ctx, http.MethodPost, "/call", call, each)
}

// Deploy deploys a manifest.
func (c *Client) Deploy(ctx context.Context, d Deploy, each func(Line)) error {
	_, err := c.lines(ctx, http.MethodPost, "/deploy", d, each)
	return err
}

// Events calls each for what agents have published.
func (c *Client) Events(ctx context.Context, follow bool, each func(Line)) error {
	path := "/events"
	if follow {
		path += "?follow"
	}
	_, err := c.lines(ctx, http.MethodGet, path, nil, each)
	return err
}

// Perform makes a call and, unless NoFollow is set, waits for its task.
func Perform(ctx context.Context, agent director.Agent, c Call, progress func(string)) (json.RawMessage, error) {
	agent.Timeout, agent.Poll = c.Timeout, 200*time.Millisecond
	agent.Progress = func(method, task string, elapsed time.Duration) {
		progress(fmt.Sprintf("%s: task %s is running (%.1f s)", method, task, elapsed.Seconds()))
	}
	arguments := make([]any, len(c.Arguments))
	for n, a := range c.Arguments {
		arguments[n] = a
	}
	if c.NoFollow {
		return agent.Call(ctx, c.Method, arguments...)
	}
	return agent.Do(ctx, c.Method, arguments...)
}
