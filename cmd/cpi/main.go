// Command cpi is the CPI of the lab. It reads one request from standard input and writes one reply to standard output,
// as a Director and `bosh create-env` expect. Its exit status is 0 even if the reply is an error, because callers
// ignore the reply otherwise. It holds no state: if a call needs any, the CPI starts a holder process.
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

	"golang.org/x/sys/unix"
)

// config is the configuration file that the CPI's job renders.
type config struct {
	Dir   string             `json:"dir"`
	Name  string             `json:"name"`
	Host  string             `json:"host"` // if empty, the local socket is used
	TLS   cpi.Identity       `json:"tls"`
	Agent iaas.AgentDefaults `json:"agent"`
}

// defaultDir returns the default directory of the lab.
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

// complete merges the properties of a cpi-config into the configuration and sets defaults. The directory is always that
// of the job, because a caller must not choose paths.
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

// answer answers the request on stdin, and passes the reply to pass.
func answer(ctx context.Context, stdin io.Reader, configPath string, pass func(cpi.Reply) error) {
	data, err := io.ReadAll(stdin)
	var r cpi.Request
	if err == nil {
		r, err = cpi.ReadRequest(data)
	}
	if err != nil {
		_ = pass(cpi.Failure(err))
		return
	}
	if reply, ok := cpi.Local(r); ok {
		_ = pass(reply)
		return
	}
	client, agent, err := clientFor(r, configPath)
	if err != nil {
		_ = pass(cpi.Failure(err))
		return
	}
	r.Context.Lab, r.Context.Agent = nil, nil
	client.Deliver(ctx, cpi.Envelope{Request: r, Agent: agent}, pass)
}

// clientFor returns a client of the holder for a request, and the defaults for its agents.
func clientFor(r cpi.Request, configPath string) (cpi.Client, iaas.AgentDefaults, error) {
	c, err := readConfig(configPath)
	if err == nil {
		c, err = c.complete(r.Context)
	}
	if err != nil {
		return cpi.Client{}, c.Agent, err
	}
	if c.Host != "" {
		client, err := cpi.NewRemoteClient(c.Host, c.TLS)
		return client, c.Agent, err
	}
	return cpi.NewClient(c.Dir, c.Name), c.Agent, nil
}

// printReply writes the reply in one piece. Callers parse all of standard output as one document.
func printReply(reply cpi.Reply) error {
	data, err := json.Marshal(reply)
	if err != nil {
		data = []byte(`{"result":null,"error":{"type":"Bosh::Clouds::CloudError",` +
			`"message":"the reply cannot be written as JSON","ok_to_retry":false},"log":""}`)
	}
	_, failed := os.Stdout.Write(append(data, '\n'))
	return errors.Join(err, failed)
}

// endWithReader calls end when nobody can read standard output any more. The bosh CLI starts the CPI in a process group
// of its own, so that an interrupt ends only the CLI.
func endWithReader(end func()) {
	// Without events poll waits for the other end of a pipe or socket to be closed. It never returns for a file.
	fds := []unix.PollFd{{Fd: int32(os.Stdout.Fd())}}
	for {
		n, err := unix.Poll(fds, -1)
		if n > 0 && err == nil {
			end()
			return
		}
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
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
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	go endWithReader(cancel)
	answer(within, os.Stdin, *path, printReply)
}
