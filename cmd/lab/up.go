//go:build linux

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
	"slices"
	"strconv"
	"strings"
	"syscall"

	"cambium/internal/report"
	"cambium/internal/secret"
	"cambium/lab"
	"cambium/lab/control"
	"cambium/settings"
	"cambium/settings/agentjson"
)

// plan is the request that `up` sends to the process that holds the lab.
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
	Publish    int     `json:"publish"` // -1 publishes nothing
	NoMachine  bool    `json:"no_machine"`
	NoWait     bool    `json:"no_wait"`
	Bare       bool    `json:"bare"`
	BlobSecret string  `json:"blob_secret"`
}

// sizes collects repeated --disk flags.
type sizes []int64

func (s *sizes) String() string { return fmt.Sprint([]int64(*s)) }

func (s *sizes) Set(text string) error {
	n, err := parseSize(text)
	*s = append(*s, n)
	return err
}

// parseSize parses a size such as 512M or 10G, or a number of bytes.
func parseSize(text string) (int64, error) {
	number, shift := strings.TrimSuffix(strings.ToUpper(text), "IB"), 0
	for suffix, bits := range map[string]int{"K": 10, "M": 20, "G": 30, "T": 40} {
		if strings.HasSuffix(number, suffix) {
			number, shift = strings.TrimSuffix(number, suffix), bits
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || n > 1<<50>>shift {
		return 0, fmt.Errorf("invalid size %q; want a size such as 512M or 10G", text)
	}
	return n << shift, nil
}

func up(ctx context.Context, c *call) error {
	p := plan{Publish: -1}
	var agentJSON, document, ephemeral string
	var disks sizes
	foreground := false
	c.flags.StringVar(&p.Name, "lab", os.Getenv("LAB"), "the lab's `name` (default the first free of lab1, lab2, …)")
	c.flags.StringVar(&p.Agent, "agent", "", "the agent's `binary` (default the one beside lab)")
	c.flags.StringVar(&p.Engine, "engine", engineNspawn, engineHelp)
	c.flags.StringVar(&agentJSON, "agent-json", "", "an agent.json to use as it is (default what the source needs)")
	c.flags.StringVar(&document, "settings", "",
		"a settings document to deliver as it is, apart from @ephemeral@ and @disk-1@, which become device paths (default the lab's own)")
	c.flags.StringVar(&p.Source, "source", "file", fmt.Sprintf("how settings reach the machine, one of %v", lab.Sources()))
	c.flags.StringVar(&ephemeral, "ephemeral", "10G", "`size` of the ephemeral disk, 0 for none")
	c.flags.Var(&disks, "disk", "`size` of a further disk to attach; may be repeated")
	c.flags.BoolVar(&p.HTTPS, "https", false, "let the agent listen on HTTPS, as for create-env, instead of NATS")
	c.flags.IntVar(&p.Publish, "publish", -1, "publish the machine's HTTPS port on this loopback `port`, 0 for any")
	c.flags.BoolVar(&foreground, "foreground", false, "stay in the foreground until the machine ends")
	c.flags.BoolVar(&p.NoMachine, "empty", false, "start a lab without a machine, for deploy")
	c.flags.BoolVar(&p.NoWait, "no-wait", false, "do not wait for the agent's first answer or its verdict")
	c.flags.BoolVar(&p.Bare, "bare", false, "run neither NATS nor the blobstore, for settings that name others")
	c.flags.StringVar(&p.BlobSecret, "blobstore-secret", "",
		"the `secret` with which URLs of the blobstore are signed (default random)")
	c.flags.StringVar(&p.NATSServer, "nats-server", "", "a nats-server `program` to use instead of the built-in one")
	if err := c.parse(0, 0); err != nil {
		return err
	}
	if p.Publish > 65535 {
		return usagef("port %d is out of range", p.Publish)
	}
	if !slices.Contains(lab.Sources(), lab.Source(p.Source)) {
		return usagef("settings source %q is not one of %v", p.Source, lab.Sources())
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
	if err := p.read(agentJSON, document, c.progress); err != nil {
		return err
	}
	if err := p.complete(); err != nil {
		return err
	}
	if foreground {
		return hold(ctx, p, func(l control.Line) { c.printLine(l) })
	}
	return c.background(ctx, p)
}

// read reads the documents from files, and checks them with the code that reads them at boot.
func (p *plan) read(agentJSON, document string, warn func(format string, args ...any)) error {
	var all report.Report
	if agentJSON != "" {
		data, err := os.ReadFile(agentJSON)
		if err != nil {
			return err
		}
		p.AgentJSON = data
		_, found := agentjson.Parse(agentJSON, data)
		all.Append(found)
	}
	if document != "" {
		data, err := os.ReadFile(document)
		if err != nil {
			return err
		}
		p.Settings = data
		filled, err := lab.FillPaths(data, p.paths())
		if err != nil {
			return fmt.Errorf("%s: %w", document, err)
		}
		all.Append(settings.Validate(document, secret.NewJSON(filled)))
	}
	if all.Failed() {
		return fmt.Errorf("the machine would not boot with these documents:\n%s", strings.TrimSpace(all.String()))
	}
	for _, e := range all.Entries {
		warn("%s", e)
	}
	return nil
}

// paths returns placeholders for the paths of the machine's disks.
func (p *plan) paths() map[string]string {
	paths := map[string]string{}
	if p.Ephemeral > 0 {
		paths["ephemeral"] = "/dev/ephemeral"
	}
	for n := range p.Disks {
		id := fmt.Sprintf("disk-%d", n+1)
		paths[id] = "/dev/" + id
	}
	return paths
}

// complete checks what the host lacks, and sets defaults.
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

// findAgent finds the agent's binary.
func (p *plan) findAgent() error {
	if p.Agent == "" {
		own, err := os.Executable()
		if err != nil {
			return err
		}
		p.Agent = filepath.Join(filepath.Dir(own), "agent")
	}
	if _, err := os.Stat(p.Agent); err != nil {
		return fmt.Errorf("the agent's binary: %w; build it with 'make build', or name one with --agent", err)
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

// printLine prints a line of progress, or the final state.
func (c *call) printLine(l control.Line) {
	if l.Progress != "" {
		c.progress("%s", l.Progress)
	}
	var s control.State
	if l.Value != nil && json.Unmarshal(l.Value, &s) == nil {
		_ = c.result(s, func(w io.Writer) { writeLab(w, s) })
	}
	if l.Verdict != "" {
		c.printVerdict(l.Verdict)
	}
}

func (c *call) printVerdict(verdict string) {
	c.progress("the agent's verdict: %s\n"+
		"The machine stays: look into it with lab shell or lab logs, remove it with lab down.", verdict)
}

// background starts a process that holds the lab, and follows it until the lab is up.
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
			_ = holder.Wait()
			return errors.New("the lab's process ended before the lab was up")
		}
		c.printLine(l)
		if l.Error != "" {
			_ = holder.Wait()
			return errors.New(l.Error)
		}
		if l.Done {
			if err := holder.Process.Release(); err != nil || l.Verdict == "" {
				return err
			}
			return exitStatus(1) // the verdict has been printed
		}
	}
}

// supervise runs the process that holds a lab.
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

// silence discards further output, because the caller has exited and may have closed its end of the pipe.
func silence() {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		_ = syscall.Dup3(int(null.Fd()), int(f.Fd()), 0)
	}
	_ = null.Close()
}

// hold runs a lab until `lab down`, the end of its machine, or the end of ctx. Then it removes the lab.
func hold(ctx context.Context, p plan, report func(control.Line)) error {
	if err := start(ctx, p, report); err != nil {
		report(control.Line{Error: err.Error(), Done: true})
		return err
	}
	return nil
}

func start(ctx context.Context, p plan, report func(control.Line)) (failed error) {
	progress := func(format string, args ...any) { report(control.Line{Progress: fmt.Sprintf(format, args...)}) }
	engine, err := p.engine(progress)
	if err != nil {
		return err
	}
	l, err := lab.New(ctx, lab.Options{Name: p.Name, Dir: p.Dir, Agent: p.Agent, NATSServer: p.NATSServer, Engine: engine,
		Progress: progress,
		Bare:     p.Bare, BlobSecret: p.BlobSecret, VM: func(vm *lab.VM) { vm.SSHD = true }})
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
	verdict := ""
	if !p.NoMachine {
		i, err := l.Create(ctx, lab.VM{Source: lab.Source(p.Source), AgentJSON: p.AgentJSON, Settings: p.Settings,
			Ephemeral: p.Ephemeral, Disks: p.Disks, HTTPS: p.HTTPS})
		if err != nil {
			return err
		}
		report(control.Line{Progress: "starting machine " + i.Short})
		if err := i.Start(ctx); err != nil {
			return err
		}
		ended = endOf(i)
		if err := publish(ctx, l, server, i, p.Publish); err != nil {
			return err
		}
		if !p.NoWait {
			if verdict, err = ready(ctx, i, progress); err != nil {
				return err
			}
		}
	}
	value, err := json.Marshal(server.State())
	if err != nil {
		return err
	}
	report(control.Line{Value: value, Verdict: verdict, Done: true})
	select {
	case <-ctx.Done():
	case <-ended:
	case <-server.Down():
	}
	return nil
}

// ready waits for the agent, and then sends it the disks with which the machine was created, as a Director does.
func ready(ctx context.Context, i *lab.Instance, progress func(format string, args ...any)) (verdict string,
	err error) {
	if verdict, err = i.Await(ctx, progress); err != nil || verdict != "" {
		return verdict, err
	}
	return "", i.AnnounceDisks(ctx)
}

// endOf returns a channel that is closed when the machine ends by itself. If the machine is deleted, its lab continues.
func endOf(i *lab.Instance) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		if <-i.Done(); !i.Removed() {
			close(ended)
		}
	}()
	return ended
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
