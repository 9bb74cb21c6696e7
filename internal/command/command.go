// Package command is the only importer of os/exec. It runs external programs that implement something better than we
// could (mkfs, fsck), the stemcell's hooks and the releases' scripts: always with a context, never through a shell,
// each in its own process group, which is ended as a whole, and with limits for the output kept in memory.
package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/thread"
)

// defaultMaxOutput is the number of bytes kept of each output stream if the caller provides no writer.
const defaultMaxOutput = 64 << 10

// defaultGrace is the time between SIGTERM and SIGKILL of a canceled program.
const defaultGrace = 10 * time.Second

// Cmd describes a program to run. Errors and logs never contain its arguments, which may be secret.
type Cmd struct {
	Name  string // searched for in PATH if it has no slash
	Args  []string
	Dir   string
	Env   []string // the complete environment; nil means the agent's own
	Stdin io.Reader
	// Stdout and Stderr receive the output. If one is nil, the end of that output is kept in Result.
	Stdout, Stderr io.Writer
	// Credential runs the program as another user.
	Credential *syscall.Credential
	// Nice is added to the agent's nice level. The result is at least 0, because only the agent itself has a raised
	// priority.
	Nice int
	// Grace is the time between SIGTERM and SIGKILL after ctx has ended; defaultGrace if zero.
	Grace time.Duration
}

// Result holds the output and the exit status of a program. Signal is the signal that killed it, or 0.
type Result struct {
	Stdout, Stderr []byte
	ExitCode       int
	Signal         int
}

// Status returns the exit code as a shell reports it: 128 plus the signal if the program was killed.
func (r Result) Status() int {
	if r.Signal != 0 {
		return 128 + r.Signal
	}
	return r.ExitCode
}

// ExitError means that the program has exited with a status other than 0.
type ExitError struct {
	Name string
	Result
}

func (e *ExitError) Error() string {
	ended := fmt.Sprintf("exit status %d", e.ExitCode)
	if e.Signal != 0 {
		ended = "killed by " + unix.SignalName(syscall.Signal(e.Signal))
	}
	if line := lastLine(e.Stderr); line != "" {
		return fmt.Sprintf("%s: %s: %s", e.Name, ended, line)
	}
	return e.Name + ": " + ended
}

// Run runs a program until it ends.
func Run(ctx context.Context, c Cmd) (Result, error) {
	p, err := Start(ctx, c)
	if err != nil {
		return Result{}, err
	}
	return p.Wait()
}

// Process is a running program and its process group.
type Process struct {
	ctx            context.Context
	cmd            *exec.Cmd
	stdout, stderr *Tail
	grace          time.Duration
	stopped        chan struct{} // closed after the program was waited for
	cleanup        chan struct{} // closed after watch has ended the group
}

// Start starts a program. The caller must call Wait.
func Start(ctx context.Context, c Cmd) (*Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: not started: %w", c.Name, context.Cause(ctx))
	}
	p := &Process{ctx: ctx, cmd: exec.Command(c.Name, c.Args...), grace: c.Grace,
		stopped: make(chan struct{}), cleanup: make(chan struct{})}
	if p.grace == 0 {
		p.grace = defaultGrace
	}
	p.cmd.Dir, p.cmd.Env, p.cmd.Stdin = c.Dir, c.Env, c.Stdin
	p.cmd.Stdout, p.cmd.Stderr = c.Stdout, c.Stderr
	if c.Stdout == nil {
		p.stdout = &Tail{Max: defaultMaxOutput}
		p.cmd.Stdout = p.stdout
	}
	if c.Stderr == nil {
		p.stderr = &Tail{Max: defaultMaxOutput}
		p.cmd.Stderr = p.stderr
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: c.Credential}
	// A grandchild that inherited an output pipe must not block Wait.
	p.cmd.WaitDelay = p.grace
	if err := start(p.cmd, c.Nice); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, errors.Unwrap(err))
	}
	defaults(p.Pid())
	go p.watch()
	return p, nil
}

// timerSlack is the kernel's default for a thread, in ns.
const timerSlack = 50_000

// start starts the program on a new thread that has the nice level and timer slack which the program must inherit. The
// thread ends afterwards.
func start(cmd *exec.Cmd, nice int) error {
	return thread.Run(func() error {
		thread.LowerPriority(nice)
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, timerSlack, 0, 0, 0)
		return cmd.Start()
	})
}

// defaults resets oom_score_adj, which the agent's unit lowers for the agent itself. It ignores errors. Raising the
// value is always permitted.
func defaults(pid int) {
	if own, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil && bytes.HasPrefix(own, []byte("-")) {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("0"), 0)
	}
}

// Pid returns the process id, which is also the id of the process group.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends sig to the whole process group.
func (p *Process) Signal(sig syscall.Signal) error { return unix.Kill(-p.Pid(), sig) }

// watch ends the group when the context ends.
func (p *Process) watch() {
	defer close(p.cleanup)
	select {
	case <-p.stopped:
		return
	case <-p.ctx.Done():
	}
	_ = p.Signal(unix.SIGTERM)
	timer := time.NewTimer(p.grace)
	defer timer.Stop()
	select {
	case <-p.stopped:
	case <-timer.C:
	}
	// Also when the leader has gone: the rest of its group must not outlive a canceled call.
	_ = p.Signal(unix.SIGKILL)
}

// Wait waits for the program. A status other than 0 is an *ExitError. If the context ended first, the error says so,
// too.
func (p *Process) Wait() (Result, error) {
	err := p.cmd.Wait()
	close(p.stopped)
	<-p.cleanup
	var r Result
	if p.stdout != nil {
		r.Stdout = p.stdout.Bytes()
	}
	if p.stderr != nil {
		r.Stderr = p.stderr.Bytes()
	}
	state := p.cmd.ProcessState
	if state != nil {
		r.ExitCode = state.ExitCode()
		if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			r.Signal = int(status.Signal())
		}
	}
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay) && state.Success():
		// ErrWaitDelay: the program is done, only a background child kept its output open.
	case errors.As(err, &exit), errors.Is(err, exec.ErrWaitDelay):
		err = &ExitError{Name: p.cmd.Args[0], Result: r}
	default:
		err = fmt.Errorf("%s: %w", p.cmd.Args[0], err)
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	if err != nil && p.ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(p.ctx), err)
	}
	return r, err
}

// Tail keeps the last Max bytes written to it. As both outputs of a Cmd, it is written by one goroutine.
type Tail struct {
	Max  int
	kept []byte // up to twice as much, so that they are seldom moved
}

func (t *Tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	if len(t.kept) > 2*t.Max {
		t.kept = append(t.kept[:0], t.Bytes()...)
	}
	return len(p), nil
}

// Bytes returns what is kept.
func (t *Tail) Bytes() []byte { return t.kept[max(0, len(t.kept)-t.Max):] }

func lastLine(b []byte) string {
	text := strings.TrimSpace(string(bytes.ToValidUTF8(b, []byte("?"))))
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	if len(text) > 300 {
		text = text[:300] + "…"
	}
	return text
}

// Find returns the path of a program, or "" if it does not exist: most hooks of a stemcell are optional.
func Find(name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		return ""
	}
	return path
}
