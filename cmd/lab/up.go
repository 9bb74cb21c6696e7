package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cambium/integration/lab"
	"cambium/integration/lab/control"
)

// plan is what `up` asks of the process that holds the lab.
type plan struct {
	Name       string  `json:"name"`
	Dir        string  `json:"dir"`
	Agent      string  `json:"agent"`
	Engine     string  `json:"engine"`
	NATSServer string  `json:"nats_server"`
	AgentJSON  []byte  `json:"agent_json"`
	Settings   []byte  `json:"settings"`
	Source     string  `json:"source"`
	Ephemeral  int64   `json:"ephemeral"`
	Disks      []int64 `json:"disks"`
	HTTPS      bool    `json:"https"`
	Publish    int     `json:"publish"` // -1: nothing
	NoMachine  bool    `json:"no_machine"`
	NoWait     bool    `json:"no_wait"`
}

// sizes are repeated --disk flags.
type sizes []int64

func (s *sizes) String() string { return fmt.Sprint([]int64(*s)) }

func (s *sizes) Set(text string) error {
	n, err := parseSize(text)
	*s = append(*s, n)
	return err
}

// parseSize reads 512M, 10G or plain bytes.
func parseSize(text string) (int64, error) {
	number, shift := strings.TrimSuffix(strings.ToUpper(text), "IB"), 0
	for suffix, bits := range map[string]int{"K": 10, "M": 20, "G": 30, "T": 40} {
		if strings.HasSuffix(number, suffix) {
			number, shift = strings.TrimSuffix(number, suffix), bits
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || n > 1<<50>>shift {
		return 0, fmt.Errorf("size %q is not like 512M or 10G", text)
	}
	return n << shift, nil
}

func up(ctx context.Context, c *call) error {
	p := plan{Publish: -1}
	var agentJSON, settings, ephemeral string
	var disks sizes
	foreground := false
	c.flags.StringVar(&p.Name, "name", "", "the lab's `name` (default the first free of lab1, lab2, …)")
	c.flags.StringVar(&p.Agent, "agent", "", "the agent's `binary` (default the one beside lab)")
	c.flags.StringVar(&p.Engine, "engine", engineNspawn, engineHelp)
	c.flags.StringVar(&agentJSON, "agent-json", "", "an agent.json to use as it is (default what the source needs)")
	c.flags.StringVar(&settings, "settings", "", "a settings document to deliver as it is (default the lab's own)")
	c.flags.StringVar(&p.Source, "source", "file", fmt.Sprintf("how settings reach the machine, one of %v", lab.Sources()))
	c.flags.StringVar(&ephemeral, "ephemeral", "10G", "`size` of the ephemeral disk, 0 for none")
	c.flags.Var(&disks, "disk", "`size` of a further disk to attach; may be repeated")
	c.flags.BoolVar(&p.HTTPS, "https", false, "let the agent listen on HTTPS, as for create-env, instead of NATS")
	c.flags.IntVar(&p.Publish, "publish", -1, "make the machine's HTTPS port reachable on this loopback `port`, 0 for any")
	c.flags.BoolVar(&foreground, "foreground", false, "stay, and end with the machine")
	c.flags.BoolVar(&p.NoMachine, "empty", false, "start a lab without a machine, for deploy")
	c.flags.BoolVar(&p.NoWait, "no-wait", false, "do not wait for the agent's first answer")
	c.flags.StringVar(&p.NATSServer, "nats-server", "", "a nats-server `program` to use instead of the built-in one")
	if err := c.parse(0, 0); err != nil {
		return err
	}
	if p.Publish > 65535 {
		return usagef("port %d does not exist", p.Publish)
	}
	if ephemeral != "0" {
		size, err := parseSize(ephemeral)
		if err != nil {
			return usageError{err}
		}
		p.Ephemeral = size
	}
	if p.Name == "" {
		p.Name = c.lab
	}
	p.Dir, p.Disks = c.dir, disks
	for path, target := range map[string]*[]byte{agentJSON: &p.AgentJSON, settings: &p.Settings} {
		if path == "" {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		*target = data
	}
	if err := p.complete(); err != nil {
		return err
	}
	if foreground {
		return hold(ctx, p, func(l control.Line) { c.tell(l) })
	}
	return c.background(ctx, p)
}

// complete fills in what was not given.
func (p *plan) complete() error {
	if err := p.missing(); err != nil {
		return err
	}
	if p.Name == "" {
		taken, err := lab.Leftovers(p.Dir)
		if err != nil {
			return err
		}
		p.Name = firstFree(taken)
	}
	return p.findAgent()
}

// findAgent completes the path of the agent's binary.
func (p *plan) findAgent() error {
	if p.Agent == "" {
		own, err := os.Executable()
		if err != nil {
			return err
		}
		p.Agent = filepath.Join(filepath.Dir(own), "agent")
	}
	if _, err := os.Stat(p.Agent); err != nil {
		return fmt.Errorf("the agent's binary: %w; make build makes it, or name one with --agent", err)
	}
	agent, err := filepath.Abs(p.Agent)
	p.Agent = agent
	return err
}

func firstFree(taken []string) string {
next:
	for n := 1; ; n++ {
		name := fmt.Sprintf("lab%d", n)
		for _, t := range taken {
			if t == name {
				continue next
			}
		}
		return name
	}
}

// tell prints a line of progress, or the state in the end.
func (c *call) tell(l control.Line) {
	if l.Progress != "" {
		c.progress("%s", l.Progress)
	}
	var s control.State
	if l.Value != nil && json.Unmarshal(l.Value, &s) == nil {
		_ = c.result(s, func(w io.Writer) { writeLab(w, s) })
	}
}

// background starts a process that holds the lab and follows it until the lab is up.
func (c *call) background(ctx context.Context, p plan) error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	input, err := json.Marshal(p)
	if err != nil {
		return err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }()
	holder := exec.Command(own, "supervise", "lab-of-"+p.Name)
	holder.Stdin = strings.NewReader(string(input))
	holder.Stdout = writer
	holder.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives this terminal
	err = holder.Start()
	_ = writer.Close()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = holder.Process.Signal(syscall.SIGTERM) })
	defer stop()
	for lines := json.NewDecoder(bufio.NewReader(reader)); ; {
		var l control.Line
		if err := lines.Decode(&l); err != nil {
			return errors.Join(errors.New("the lab's process ended"), holder.Wait())
		}
		c.tell(l)
		if l.Error != "" {
			_ = holder.Wait()
			return errors.New(l.Error)
		}
		if l.Done {
			return holder.Process.Release()
		}
	}
}

// supervise is the process that holds a lab.
func supervise(ctx context.Context, c *call) error {
	c.args = nil // the name, which only serves to find the process
	if err := c.parse(0, 0); err != nil {
		return err
	}
	var p plan
	if err := json.NewDecoder(os.Stdin).Decode(&p); err != nil {
		return err
	}
	failed := false
	err := hold(ctx, p, func(l control.Line) {
		failed = failed || l.Error != ""
		_ = json.NewEncoder(c.stdout).Encode(l)
		if l.Done {
			silence()
		}
	})
	if failed {
		return exitStatus(1)
	}
	return err
}

// silence sends what is said from now on to nobody: the caller of `up` has gone.
func silence() {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	_ = syscall.Dup3(int(null.Fd()), int(os.Stdout.Fd()), 0)
	_ = null.Close()
}

// hold runs a lab until it is asked to end, its machine ended, or ctx did; and removes it.
func hold(ctx context.Context, p plan, tell func(control.Line)) error {
	if err := start(ctx, p, tell); err != nil {
		tell(control.Line{Error: err.Error(), Done: true})
		return err
	}
	return nil
}

// readyTimeout is how long `up` waits for the agent; an interpreted machine takes its time.
const readyTimeout = 5 * time.Minute

func start(ctx context.Context, p plan, tell func(control.Line)) (failed error) {
	progress := func(format string, args ...any) { tell(control.Line{Progress: fmt.Sprintf(format, args...)}) }
	engine, err := p.engine(progress)
	if err != nil {
		return err
	}
	l, err := lab.New(ctx, lab.Options{Name: p.Name, Dir: p.Dir, Agent: p.Agent, NATSServer: p.NATSServer, Engine: engine, Progress: progress})
	if err != nil {
		return err
	}
	defer func() { failed = errors.Join(failed, l.Close(context.WithoutCancel(ctx))) }()
	server, err := control.Serve(l, p.Dir)
	if err != nil {
		return err
	}
	defer server.Close()
	var ended <-chan struct{}
	if !p.NoMachine {
		i, err := l.Create(ctx, lab.VM{Source: lab.Source(p.Source), AgentJSON: p.AgentJSON, Settings: p.Settings, Ephemeral: p.Ephemeral, HTTPS: p.HTTPS})
		if err != nil {
			return err
		}
		for n, size := range p.Disks {
			if _, err := i.AttachNew(ctx, fmt.Sprintf("disk-%d", n+1), size); err != nil {
				return err
			}
		}
		tell(control.Line{Progress: "machine " + i.Short + " starts"})
		begin := time.Now()
		if err := i.Start(ctx); err != nil {
			return err
		}
		ended = i.Done()
		if err := publish(ctx, l, server, i, p.Publish); err != nil {
			return err
		}
		if i.Agent != nil && !p.NoWait {
			if err := waitReady(ctx, i); err != nil {
				return err
			}
			tell(control.Line{Progress: fmt.Sprintf("the agent answered %.1f s after power-on", time.Since(begin).Seconds())})
		}
	}
	value, err := json.Marshal(server.State())
	if err != nil {
		return err
	}
	tell(control.Line{Value: value, Done: true})
	select {
	case <-ctx.Done():
	case <-ended:
	case <-server.Down():
	}
	return nil
}

func publish(ctx context.Context, l *lab.Lab, server *control.Server, i *lab.Instance, port int) error {
	if port < 0 {
		return nil
	}
	address, err := l.Publish(ctx, port, fmt.Sprintf("%s:%d", i.IP, lab.HTTPSPort))
	if err == nil {
		server.Published(i.Short, address)
	}
	return err
}

func waitReady(ctx context.Context, i *lab.Instance) error {
	within, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	err := i.Ready(within)
	if err == nil {
		return nil
	}
	journal, _ := i.Journal(context.WithoutCancel(ctx))
	lines := strings.Split(strings.TrimSpace(journal), "\n")
	return fmt.Errorf("%w; the end of the agent's log:\n%s", err, strings.Join(lines[max(0, len(lines)-15):], "\n"))
}
