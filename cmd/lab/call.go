package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"cambium/lab/control"
	"cambium/lab/director"
)

func callAgent(ctx context.Context, c *call) error {
	var t target
	request := control.Call{}
	c.flags.StringVar(&request.Machine, "machine", "", "the machine's `name`, if there are several")
	c.flags.DurationVar(&request.Timeout, "timeout", director.DefaultTimeout, "how long to wait for one reply")
	c.flags.BoolVar(&request.NoFollow, "no-follow", false, "print the task's handle instead of waiting for its end")
	c.flags.StringVar(&t.url, "url", "", "an agent outside of labs: https://user:password@host:port, or its NATS server nats://host:port")
	c.flags.StringVar(&t.agentID, "agent-id", "", "with a NATS --url, the agent's `id`")
	c.flags.BoolVar(&t.insecure, "insecure", false,
		"with an HTTPS --url, accept any certificate, as of an agent that made its own")
	t.flags(c)
	c.flags.StringVar(&t.host, "host", "", "with --settings, where the agent is reached if it listens on 0.0.0.0")
	if err := c.parse(1, -1); err != nil {
		return err
	}
	if request.Timeout <= 0 {
		return usagef("--timeout must be positive")
	}
	request.Method = c.args[0]
	for _, a := range append(c.args[1:], c.extra...) {
		value, err := argument(a)
		if err != nil {
			return err
		}
		request.Arguments = append(request.Arguments, value)
	}
	show := newProgress(c)
	defer show.end()
	var value json.RawMessage
	var err error
	if t.given() {
		value, err = t.call(ctx, request, show.say)
	} else {
		var client *control.Client
		if client, err = c.client(); err != nil {
			return err
		}
		value, err = client.Call(ctx, request, func(l control.Line) { show.say(l.Progress) })
	}
	show.end()
	if err != nil {
		return err
	}
	if value == nil {
		value = json.RawMessage("null")
	}
	return c.result(value, func(w io.Writer) {
		var b bytes.Buffer
		if json.Indent(&b, value, "", "  ") != nil {
			b.Write(value)
		}
		_, _ = fmt.Fprintln(w, b.String())
	})
}

// argument parses JSON. It takes any other text as a string, unless the text begins like JSON.
func argument(text string) (json.RawMessage, error) {
	if json.Valid([]byte(text)) {
		return json.RawMessage(text), nil
	}
	if strings.HasPrefix(text, "{") || strings.HasPrefix(text, "[") {
		return nil, usagef("an argument begins like JSON but is not valid JSON")
	}
	data, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string always encodes
	}
	return data, nil
}
