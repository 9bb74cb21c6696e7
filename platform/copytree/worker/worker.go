// Package worker copies a tree in a process of its own: the agent's program, started with a command of its own.
// Minutes of system calls and checksums in the process that answers the Director would make its answers wait. The
// copying process ends when the agent does, whatever the reason: its standard input is a pipe that only the agent
// holds.
//
// The protocol is lines of JSON: the agent sends one request at a time, the copying process replies
// with progress and finally the result.
package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"cambium/internal/command"
	"cambium/platform/copytree"
)

// word is the argument by which the agent's program becomes the copying process.
const word = "copy-trees"

const (
	// terminationGrace is the time between SIGTERM and SIGKILL: the process ends at once unless a disk holds it.
	terminationGrace = time.Second
	progressInterval = 200 * time.Millisecond
)

// Phases of a copy, in order.
const (
	PhaseCopy     = "copy"
	PhaseVerify   = "verify"
	phaseComplete = "complete"
)

// Request says what to copy.
type Request struct {
	From, To string
	// Mark is the name of the file at the top of the target that says that it is incomplete. Complete removes it.
	Mark string
	// Own is the extended attribute of the top directory that is not copied.
	Own string
	// Exact says that what is on the target besides is left over from an interrupted copy: it is removed.
	Exact bool
}

// Report is progress.
type Report struct {
	Phase string
	copytree.Progress
	// Begin marks the first report of a phase: nothing of it is done before the callback returns.
	Begin bool
	// End marks the last report of a phase that has succeeded.
	End bool
}

// Copying is a copying process, as the agent sees it. Between two steps it has nothing open on either disk.
type Copying struct {
	*process
	request Request
}

// Start starts the process. Whatever fails, the target can be copied to again when Close has returned: nothing is
// written any more then.
func Start(ctx context.Context, program string, r Request) (*Copying, error) {
	p, err := start(ctx, program)
	return &Copying{p, r}, err
}

// Copy copies the tree and flushes the target.
func (c *Copying) Copy(report func(Report)) error {
	_, err := c.do(message{Phase: PhaseCopy, Request: &c.request}, report)
	return err
}

// Verify compares the copy, read back, with what was read of the source.
func (c *Copying) Verify(report func(Report)) (copytree.Clamped, error) {
	answer, err := c.do(message{Phase: PhaseVerify, Request: &c.request}, report)
	return copytree.Clamped{Files: answer.Clamped, First: string(answer.First)}, err
}

// Complete makes a target that was verified a tree like any other. The source need not be there.
func (c *Copying) Complete() error {
	_, err := c.do(message{Phase: phaseComplete, Request: &c.request}, func(Report) {})
	return err
}

// message is a request, progress, or with End the result: nothing or an error. A path is sent as
// bytes: names are not always valid UTF-8.
type message struct {
	Phase   string   `json:",omitempty"`
	Request *Request `json:",omitempty"`
	copytree.Progress
	End     bool          `json:",omitempty"`
	Error   string        `json:",omitempty"`
	Errno   syscall.Errno `json:",omitempty"`
	Clamped int64         `json:",omitempty"`
	First   []byte        `json:",omitempty"`
}

// result is the last answer to a request.
func result(p copytree.Progress, c copytree.Clamped, err error) message {
	m := message{Progress: p, End: true, Clamped: c.Files, First: []byte(c.First)}
	if err != nil {
		m.Error = err.Error()
		errors.As(err, &m.Errno)
	}
	return m
}

func (m message) err() error {
	switch {
	case m.Errno != 0:
		return &remoteError{m.Error, m.Errno}
	case m.Error != "":
		return errors.New(m.Error)
	}
	return nil
}

// remoteError is an error of the copying process.
type remoteError struct {
	text  string
	cause error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.cause }

// process is the copying process, as the agent sees it.
type process struct {
	ctx      context.Context
	process  *command.Process
	requests *os.File
	answers  *os.File
	decoder  *json.Decoder // of the answers, which hold paths of any length
}

func start(ctx context.Context, program string) (*process, error) {
	stdin, requests, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	answers, stdout, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, stdin.Close(), requests.Close())
	}
	started, err := command.Start(ctx, command.Cmd{Name: program, Args: []string{word}, Stdin: stdin, Stdout: stdout,
		Grace: terminationGrace})
	err = errors.Join(err, stdin.Close(), stdout.Close())
	if err != nil {
		return nil, errors.Join(err, requests.Close(), answers.Close())
	}
	return &process{ctx: ctx, process: started, requests: requests, answers: answers,
		decoder: json.NewDecoder(answers)}, nil
}

// do sends a request and reports progress until its result is there.
func (p *process) do(m message, report func(Report)) (answer message, err error) {
	phase := m.Phase
	report(Report{Phase: phase, Begin: true})
	if err := json.NewEncoder(p.requests).Encode(m); err != nil {
		return answer, p.lost(phase, err)
	}
	for {
		answer = message{}
		if err := p.decoder.Decode(&answer); err != nil {
			return answer, p.lost(phase, err)
		}
		err := answer.err()
		report(Report{Phase: phase, Progress: answer.Progress, End: answer.End && err == nil})
		if answer.End {
			return answer, err
		}
	}
}

// lost says why there is no answer. A context that has ended is the reason, not the broken pipe.
func (p *process) lost(phase string, err error) error {
	if p.ctx.Err() != nil {
		return fmt.Errorf("%s: %w", phase, context.Cause(p.ctx))
	}
	return errors.Join(fmt.Errorf("%s: the copying process ended", phase), err)
}

// Close ends the process and waits for it.
func (p *process) Close() error {
	closed := p.requests.Close()
	_, err := p.process.Wait()
	var exit *command.ExitError
	switch {
	case p.ctx.Err() != nil:
		err = nil // it was terminated by its context
	case errors.As(err, &exit):
		exit.Name = "the copying process"
		err = exit
	}
	return errors.Join(closed, err, p.answers.Close())
}
