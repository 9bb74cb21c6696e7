// Command cpi is the CPI of the lab: it reads one request from standard input and writes one
// reply to standard output, as a Director and `bosh create-env` expect it. Its exit status is 0 also
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

	"golang.org/x/sys/unix"
)

// config is the configuration file that the CPI's job renders.
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

// answer is the CPI without the process around it. It passes one reply on.
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

// clientFor reaches the holder that a request is for, and has the defaults of its agents.
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

// printReply writes a reply in one go, and nothing else: callers read all of standard output as one document.
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
// of its own: an interrupt ends the CLI alone.
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
