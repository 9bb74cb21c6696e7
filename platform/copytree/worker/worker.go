// Package worker copies a tree in a separate process, the agent's program with a special argument, since minutes of
// system calls and checksums would delay the agent's replies to the Director. The process ends with the agent, whatever
// the reason: its standard input is a pipe whose other end only the agent holds.
//
// The protocol consists of lines of JSON. The agent sends one request at a time; the process replies with progress and
// finally the result.
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

// word is the argument that makes the agent's program a copying process.
const word = "copy-trees"

const (
	// terminationGrace is the time between SIGTERM and SIGKILL. The process ends at once, unless a disk blocks it.
	terminationGrace = time.Second
	progressInterval = 200 * time.Millisecond
)

// Phases of a copy, in order.
const (
	PhaseCopy     = "copy"
	PhaseVerify   = "verify"
	phaseComplete = "complete"
)

// Request describes a copy.
type Request struct {
	From, To string
	// Mark is the name of the file at the top of the target that marks an incomplete copy. Complete removes it.
	Mark string
	// Own is an extended attribute of the top directory that is not copied.
	Own string
	// Exact removes other files from the target, which an interrupted copy has left.
	Exact bool
}

// Report describes the progress of a phase.
type Report struct {
	Phase string
	copytree.Progress
	// Begin is set in the first report of a phase, whose work starts once the callback returns.
	Begin bool
	// End is set in the last report of a successful phase.
	End bool
}

// Copying is a running copying process. It has no files open on the disks between phases.
type Copying struct {
	*process
	request Request
}

// Start starts the process. Whatever fails afterwards, nothing is written any more once Close has returned.
func Start(ctx context.Context, program string, r Request) (*Copying, error) {
	p, err := start(ctx, program)
	return &Copying{p, r}, err
}

// Copy copies the tree and flushes the target.
func (c *Copying) Copy(report func(Report)) error {
	_, err := c.do(message{Phase: PhaseCopy, Request: &c.request}, report)
	return err
}

// Verify reads the copy back and compares it with what was read from the source.
func (c *Copying) Verify(report func(Report)) (copytree.Clamped, error) {
	answer, err := c.do(message{Phase: PhaseVerify, Request: &c.request}, report)
	return copytree.Clamped{Files: answer.Clamped, First: string(answer.First)}, err
}

// Complete removes the mark from a verified target and gives its top directory its attributes. The source need not be
// mounted.
func (c *Copying) Complete() error {
	_, err := c.do(message{Phase: phaseComplete, Request: &c.request}, func(Report) {})
	return err
}

// message is a request, a progress report or, with End, a result. A path is sent as bytes, since names may be invalid
// UTF-8.
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

// result returns the last reply to a request.
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

// process controls the copying process.
type process struct {
	ctx      context.Context
	process  *command.Process
	requests *os.File
	answers  *os.File
	decoder  *json.Decoder // of answers
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

// do sends a request and reports progress until the result arrives.
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

// lost returns the error for a missing reply. If the context has ended, that is the reason.
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
		err = nil // terminated by its context
	case errors.As(err, &exit):
		exit.Name = "the copying process"
		err = exit
	}
	return errors.Join(closed, err, p.answers.Close())
}
