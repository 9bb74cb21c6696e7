// Command cpi is the CPI of the lab: it reads one request from standard input and writes one
// reply to standard output, as a Director and `bosh create-env` want it. Its exit status is 0 also
// when the reply is an error, since callers do not read the reply otherwise. It holds no state: the
// holder does, a process that it starts when a call needs one.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"cambium/lab/cpi"
	"cambium/lab/iaas"
)

// config is what the CPI's job renders.
type config struct {
	Dir   string             `json:"dir"`
	Name  string             `json:"name"`
	Host  string             `json:"host"` // the local socket if empty
	TLS   cpi.Identity       `json:"tls"`
	Agent iaas.AgentDefaults `json:"agent"`
}

// defaultDir is the lab's.
func defaultDir() string {
	if dir := os.Getenv("CAMBIUM_LAB_DIR"); dir != "" {
		return dir
	}
	return "/var/lib/cambium-lab"
}

func readConfig(path string) (config, error) {
	c := config{}
	if path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return c, fmt.Errorf("configuration: %w", err)
		}
		if err := json.Unmarshal(data, &c); err != nil {
			return c, fmt.Errorf("configuration %s: %w", path, err)
		}
	}
	return c, nil
}

// complete lays the properties of a cpi-config over the configuration and fills in what neither has. The directory is
// the job's alone: a caller does not choose paths.
func (c config) complete(context cpi.Context) (config, error) {
	dir := c.Dir
	for name, property := range map[string]struct {
		given json.RawMessage
		into  any
	}{"lab": {context.Lab, &c}, "agent": {context.Agent, &c.Agent}} {
		if len(property.given) == 0 {
			continue
		}
		if err := json.Unmarshal(property.given, property.into); err != nil {
			return c, fmt.Errorf("property %s of the cpi-config: %w", name, err)
		}
	}
	if c.Dir != dir {
		return c, errors.New("property lab.dir of the cpi-config: only the job's configuration sets the directory")
	}
	if c.Dir == "" {
		c.Dir = defaultDir()
	}
	if c.Name == "" {
		c.Name = iaas.DefaultName
	}
	return c, iaas.ValidName(c.Name)
}

// answer is the CPI without the process around it.
func answer(ctx context.Context, stdin io.Reader, configPath string) cpi.Reply {
	data, err := io.ReadAll(stdin)
	if err != nil {
		return cpi.Failure(err)
	}
	r, err := cpi.ReadRequest(data)
	if err != nil {
		return cpi.Failure(err)
	}
	if reply, ok := cpi.Local(r); ok {
		return reply
	}
	c, err := readConfig(configPath)
	if err == nil {
		c, err = c.complete(r.Context)
	}
	if err != nil {
		return cpi.Failure(err)
	}
	r.Context.Lab, r.Context.Agent = nil, nil
	client := cpi.NewClient(c.Dir, c.Name)
	if c.Host != "" {
		if client, err = cpi.NewRemoteClient(c.Host, c.TLS); err != nil {
			return cpi.Failure(err)
		}
	}
	return client.Do(ctx, cpi.Envelope{Request: r, Agent: c.Agent})
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) == 4 && os.Args[1] == "hold" {
		code := cpi.HoldMain(ctx, os.Args[2], os.Args[3])
		stop()
		os.Exit(code)
	}
	path := flag.String("config", "", "a JSON `file` with dir, name and agent, as the job of the CPI release renders it")
	flag.Parse()
	// In one go, and nothing else: callers read all of standard output as one document.
	reply, err := json.Marshal(answer(ctx, os.Stdin, *path))
	if err != nil {
		reply = []byte(`{"result":null,"error":{"type":"Bosh::Clouds::CloudError","message":"the reply cannot be written as JSON","ok_to_retry":false},"log":""}`)
	}
	_, _ = os.Stdout.Write(append(reply, '\n'))
}
