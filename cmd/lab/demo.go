//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"cambium/internal/status"
	"cambium/lab"
	"cambium/lab/blobstore"
	"cambium/lab/control"
	"cambium/lab/director"
	"cambium/lab/release"
)

// show is one run of the demo.
type show struct {
	c   *call
	lab *lab.Lab
	i   *lab.Instance
	d   director.Deployment
	// boot is the status after the first boot, before restart and reboot replace it.
	boot status.Document
	pid  string // pid of the web server
}

// demoStep is one line of the demo.
type demoStep struct {
	text string
	do   func(s *show, ctx context.Context) (string, error)
}

func demo(ctx context.Context, c *call) error {
	given := c.args
	p, err := demoPlan(c)
	if err != nil {
		return err
	}
	if keep := os.Getenv("KEEP"); keep != "" && keep != "0" {
		return c.demoInBackground(ctx, given)
	}
	s := &show{c: c}
	if err := s.run(ctx, p); err != nil {
		return err
	}
	_, _ = fmt.Fprint(c.stdout, "\nEverything is being removed; KEEP=1 make demo keeps it, to look around with "+
		"lab shell, lab logs and lab watch.\n")
	return s.lab.Close(context.WithoutCancel(ctx))
}

// demoPlan parses the command line.
func demoPlan(c *call) (p plan, err error) {
	c.flags.StringVar(&p.Agent, "agent", "", "the agent's `binary` (default the one beside lab)")
	c.flags.StringVar(&p.Name, "lab", os.Getenv("LAB"), "the lab's `name` (default the first free of lab1, lab2, …)")
	c.flags.StringVar(&p.Engine, "engine", engineNspawn, engineHelp)
	if err := c.parse(0, 0); err != nil {
		return p, err
	}
	p.Dir = c.dir
	if err := p.complete(); err != nil {
		return p, fmt.Errorf("%w; without these, make unit and lab call work", err)
	}
	return p, nil
}

// run starts a lab and performs the steps. If one fails, it removes the lab.
func (s *show) run(ctx context.Context, p plan) error {
	begin := time.Now()
	engine, err := p.engine(s.c.progress)
	if err != nil {
		return err
	}
	if s.lab, err = lab.New(ctx, lab.Options{Name: p.Name, Dir: p.Dir, Agent: p.Agent, Engine: engine,
		Progress: s.c.progress}); err != nil {
		return err
	}
	if err := s.perform(ctx, begin); err != nil {
		s.explain(context.WithoutCancel(ctx))
		return errors.Join(err, s.lab.Close(context.WithoutCancel(ctx)))
	}
	return nil
}

// upFile is the file descriptor on which the process that holds a demo's lab reports that the demo is over.
const upFile = 3

// demoInBackground starts another process that runs the demo and then holds its lab. It returns when the demo is over.
func (c *call) demoInBackground(ctx context.Context, args []string) error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }()
	holder := exec.Command(own, append([]string{"demo-keep"}, args...)...)
	holder.Stdout, holder.Stderr, holder.ExtraFiles = c.stdout, c.stderr, []*os.File{writer}
	holder.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives this terminal
	err = holder.Start()
	_ = writer.Close()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = holder.Process.Signal(syscall.SIGTERM) })()
	if n, _ := reader.Read(make([]byte, 1)); n == 1 {
		return holder.Process.Release()
	}
	var exit *exec.ExitError
	if err := holder.Wait(); errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exitStatus(exit.ExitCode()) // it has said why
	} else if err != nil {
		return err
	}
	return nil
}

// demoKeep runs the process that holds the lab of a demo.
func demoKeep(ctx context.Context, c *call) error {
	c.name = "demo" // in its errors
	p, err := demoPlan(c)
	if err != nil {
		return err
	}
	s := &show{c: c}
	if err := s.run(ctx, p); err != nil {
		return err
	}
	return s.holdLab(ctx, p)
}

// stepTimeout bounds each wait of a step. An emulated machine is slow.
const stepTimeout = 5 * time.Minute

// perform performs the steps.
func (s *show) perform(ctx context.Context, begin time.Time) error {
	steps := []demoStep{
		{"make a machine with a blank ephemeral and a persistent disk", (*show).create},
		{"power on; network, disk, bus: the agent answers ping", (*show).power},
		{"attach the persistent disk, mount_disk", (*show).mount},
		{"update_settings: the agent takes a new identity on the bus", (*show).settings},
		{"apply a release with a web job", (*show).apply},
		{"pre-start, start, until running", (*show).start},
		{"get_state, and the web server answers", (*show).state},
		{"kill the job: the alert arrives, the job is back", (*show).kill},
		{"fetch_logs", (*show).logs},
		{"stop and start, twice: how late the Director knows", (*show).answers},
		{"stop; a bigger disk: migrate_disk moves the data", (*show).migrate},
		{"the IaaS grows it: mount_disk grows the file system; start", (*show).grow},
		{"restart the agent: the job keeps running", (*show).restart},
		{"reboot: the disk is mounted and the job started again", (*show).reboot},
	}
	lines := []map[string]any{}
	for _, step := range steps {
		if !s.c.json {
			_, _ = fmt.Fprintf(s.c.stdout, "%-64s", step.text)
		}
		start := time.Now()
		detail, err := step.do(s, ctx)
		took := time.Since(start)
		if err != nil {
			if !s.c.json {
				_, _ = fmt.Fprintf(s.c.stdout, "%7.2f s  FAILED\n", took.Seconds())
			}
			return fmt.Errorf("%s: %w", step.text, err)
		}
		if !s.c.json {
			_, _ = fmt.Fprintf(s.c.stdout, "%7.2f s  %s\n", took.Seconds(), detail)
		}
		lines = append(lines, map[string]any{"step": step.text, "seconds": took.Seconds(), "detail": detail})
	}
	return s.c.result(map[string]any{"steps": lines, "seconds": time.Since(begin).Seconds(), "boot": s.boot},
		func(w io.Writer) {
			_, _ = fmt.Fprintf(w, "%-64s%7.2f s\n", "total", time.Since(begin).Seconds())
			printFirstBoot(w, s.boot)
		})
}

func (s *show) create(ctx context.Context) (string, error) {
	i, err := s.lab.Create(ctx, lab.VM{Ephemeral: 10 * lab.GiB})
	if err != nil {
		return "", err
	}
	s.i, s.d.Disk = i, "disk-1"
	i.Agent.Poll = 50 * time.Millisecond
	return i.IP, i.NewDisk(s.d.Disk, lab.GiB)
}

func (s *show) power(ctx context.Context) (string, error) {
	if err := s.i.Start(ctx); err != nil {
		return "", err
	}
	within, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if err := s.i.Ready(within); err != nil {
		return "", err
	}
	data, err := s.i.Status()
	if err == nil {
		err = json.Unmarshal(data, &s.boot)
	}
	return "pong", err
}

func (s *show) mount(ctx context.Context) (string, error) {
	hint, err := s.i.AttachDisk(ctx, s.d.Disk)
	if err != nil {
		return "", err
	}
	if _, err := s.i.Agent.Do(ctx, "add_persistent_disk", s.d.Disk, hint); err != nil {
		return "", err
	}
	if _, err := s.i.Agent.Do(ctx, "mount_disk", s.d.Disk); err != nil {
		return "", err
	}
	return s.output(ctx, "findmnt", "-n", "-o", "SOURCE,FSTYPE", "/var/vcap/store")
}

func (s *show) settings(ctx context.Context) (string, error) {
	settings, err := s.i.Permanent()
	if err != nil {
		return "", err
	}
	value, err := s.i.Agent.Do(ctx, "update_settings", settings)
	if err != nil {
		return "", err
	}
	return string(value), s.i.ExpelFirstIdentity()
}

func (s *show) apply(ctx context.Context) (string, error) {
	m := release.WebManifest()
	spec, upload, err := s.lab.Spec(s.i, m, m.Groups[0], 0)
	if err != nil {
		return "", err
	}
	s.d.Spec = spec
	if err := upload(ctx); err != nil {
		return "", err
	}
	value, err := s.i.Agent.Do(ctx, "apply", spec)
	return string(value), err
}

func (s *show) start(ctx context.Context) (string, error) {
	for _, step := range []func() error{
		func() error { _, err := s.i.Agent.Do(ctx, "run_script", "pre-start", map[string]any{}); return err },
		func() error { _, err := s.i.Agent.Do(ctx, "start"); return err },
		func() error { return s.i.Agent.WaitRunning(ctx, stepTimeout) },
		func() error { return s.web(ctx) },
	} {
		if err := step(); err != nil {
			return "", err
		}
	}
	pid, err := s.output(ctx, "cat", "/var/vcap/sys/run/web/web.pid")
	s.pid = pid
	return "process " + pid, err
}

func (s *show) state(ctx context.Context) (string, error) {
	state, err := s.i.Agent.State(ctx)
	if err != nil {
		return "", err
	}
	if len(state.Processes) != 1 || state.Processes[0].Name != "web" || state.Processes[0].State != "running" {
		return "", fmt.Errorf("get_state shows %+v, want the process web running", state.Processes)
	}
	return "web is " + state.Processes[0].State, s.web(ctx)
}

// web polls the web server until it answers.
func (s *show) web(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DialContext: s.lab.Net.DialContext, DisableKeepAlives: true}}
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.i.IP+":8080/", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(r)
		if err == nil {
			body, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if err != nil || string(body) != "hello from the lab\n" {
				return fmt.Errorf("the web server answered %q (%w)", body, err)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the web server does not answer: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// output runs a program in the machine, and returns its output as one line.
func (s *show) output(ctx context.Context, args ...string) (string, error) {
	out, err := s.i.Output(ctx, args...)
	return strings.Join(strings.Fields(out), " "), err
}

func (s *show) kill(ctx context.Context) (string, error) {
	since := time.Now()
	if _, err := s.i.Output(ctx, "kill", "-9", s.pid); err != nil {
		return "", err
	}
	within, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	e, err := s.lab.Monitor.Wait(within, since,
		func(e director.Event) bool { return e.Kind == "alert" && e.Agent == s.i.AgentID })
	if err != nil {
		return "", fmt.Errorf("no alert: %w", err)
	}
	var alert director.Alert
	if err := json.Unmarshal(e.Body, &alert); err != nil {
		return "", err
	}
	if err := alert.Valid(); err != nil {
		return "", err
	}
	if err := s.web(ctx); err != nil {
		return "", err
	}
	s.pid, err = s.output(ctx, "cat", "/var/vcap/sys/run/web/web.pid")
	return alert.Title, err
}

func (s *show) logs(ctx context.Context) (string, error) {
	id := uuid.NewString()
	var result struct {
		SHA1 string `json:"sha1"`
	}
	err := s.i.Agent.Into(ctx, &result, "fetch_logs_with_signed_url", map[string]any{
		"signed_url": s.lab.Blobs.SignedURL("PUT", id), "log_type": "job", "filters": []string{}})
	if err != nil {
		return "", err
	}
	data, ok := s.lab.Blobs.Get(id)
	if !ok || !blobstore.Matches(data, result.SHA1) {
		return "", fmt.Errorf("blob %s with digest %s is not in the blobstore", id, result.SHA1)
	}
	names, err := contents(data)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "web/web.stdout.log") {
			return fmt.Sprintf("%d files, %d bytes", len(names), len(data)), nil
		}
	}
	return "", fmt.Errorf("the archive has %v, want web/web.stdout.log in it", names)
}

func contents(archive []byte) (names []string, err error) {
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg {
			names = append(names, h.Name)
		}
	}
}

// sequence calls methods one after the other.
func (s *show) sequence(ctx context.Context, calls ...[]any) error {
	for _, c := range calls {
		if _, err := s.i.Agent.Do(ctx, c[0].(string), c[1:]...); err != nil {
			return err
		}
	}
	return nil
}

func (s *show) restart(ctx context.Context) (string, error) {
	within, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	// It returns when the new agent is ready.
	if _, err := s.i.Output(within, "systemctl", "restart", "agent"); err != nil {
		return "", err
	}
	if err := s.waitReady(ctx); err != nil {
		return "", err
	}
	pid, err := s.output(ctx, "cat", "/var/vcap/sys/run/web/web.pid")
	if err == nil && pid != s.pid {
		err = fmt.Errorf("the web server is process %s now, was %s", pid, s.pid)
	}
	return "process " + pid + " still", err
}

// waitReady waits until the agent is ready after a restart.
func (s *show) waitReady(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	return s.i.Ready(within)
}

func (s *show) reboot(ctx context.Context) (string, error) {
	within, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if err := s.i.Reboot(within); err != nil {
		return "", err
	}
	if err := s.waitReady(ctx); err != nil {
		return "", err
	}
	if err := s.i.Agent.WaitRunning(ctx, stepTimeout); err != nil {
		return "", err
	}
	if err := s.web(ctx); err != nil {
		return "", err
	}
	lines, err := s.output(ctx, "wc", "-l", "/var/vcap/store/web/started")
	if err == nil && !strings.HasPrefix(lines, "1 ") {
		err = fmt.Errorf("the persistent disk has %q, want the one line of the first start", lines)
	}
	boots, _ := s.i.Boots()
	return fmt.Sprintf("boot %d, running", boots), err
}

// printFirstBoot draws how the first boot spent its time.
func printFirstBoot(w io.Writer, d status.Document) {
	if len(d.Steps) == 0 {
		return
	}
	_, _ = fmt.Fprintf(w, "\nWhere the first boot's %.0f ms went:\n", float64(d.ReadyNS)/1e6)
	steps := append([]status.Step(nil), d.Steps...)
	sort.SliceStable(steps, func(i, j int) bool { return steps[i].Start < steps[j].Start })
	const width = 50
	total := max(d.ReadyNS, 1)
	for _, step := range steps {
		took := step.End - step.Start
		if step.Outcome == status.Skipped || took < 1_000_000 {
			continue // less than a millisecond is not shown
		}
		from := min(int(step.Start*width/total), width-1)
		length := max(min(int(took*width/total), width-from), 1)
		_, _ = fmt.Fprintf(w, "  %-18s %8.1f ms  |%s%s%s|\n", step.Name, float64(took)/1e6, strings.Repeat(" ", from),
			strings.Repeat("#", length), strings.Repeat(" ", width-from-length))
	}
}

// explain prints the status and the log after a failed demo.
func (s *show) explain(ctx context.Context) {
	if s.i == nil || !s.i.Running() {
		return
	}
	journal, err := s.i.Journal(ctx)
	if err != nil {
		return
	}
	lines := strings.Split(strings.TrimSpace(journal), "\n")
	s.c.progress("the end of the agent's log:\n%s", strings.Join(lines[max(0, len(lines)-30):], "\n"))
}

// holdLab holds the lab until `lab down`.
func (s *show) holdLab(ctx context.Context, p plan) error {
	server, err := control.Serve(s.lab, p.Dir)
	if err != nil {
		return errors.Join(err, s.lab.Close(context.WithoutCancel(ctx)))
	}
	defer server.Close()
	own, err := os.Executable()
	if err != nil {
		own = "lab"
	}
	if dir, err := os.Getwd(); err == nil {
		if relative, err := filepath.Rel(dir, own); err == nil && !strings.HasPrefix(relative, "..") {
			own = relative
		}
	}
	s.c.progress("\nThe machine stays. Look around with\n"+
		"  %[1]s shell --lab %[2]s           a root shell in it\n  %[1]s logs --lab %[2]s            the agent's log\n"+
		"  %[1]s watch --lab %[2]s           heartbeats and alerts\n"+
		"  %[1]s call --lab %[2]s get_state full\nand remove everything with\n  %[1]s down %[2]s", own, p.Name)
	up := os.NewFile(upFile, "up")
	if _, err := up.Write([]byte{'\n'}); err != nil {
		return errors.Join(err, s.lab.Close(context.WithoutCancel(ctx)))
	}
	_ = up.Close()
	silence()
	select {
	case <-ctx.Done():
	case <-server.Down():
	}
	return s.lab.Close(context.WithoutCancel(ctx))
}
