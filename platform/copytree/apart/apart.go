// Package apart copies a tree in a process of its own: the agent's program again, called by a word of its own.
// Minutes of system calls and checksums in the process that answers the Director would make its
// answers wait. The copying process ends when the agent does, whatever the reason: its standard
// input is a pipe that only the agent holds.
//
// The protocol is lines of JSON: the agent sends one request at a time, the copying process replies
// with progress and finally the result.
package apart

import (
	"bufio"
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
	// MaxRounds is how many times a tree is copied and verified while the verification finds other
	// differences each time.
	MaxRounds = 4
	// terminationGrace is the time between SIGTERM and SIGKILL: the process ends at once unless a disk holds it.
	terminationGrace = time.Second
	progressInterval = 200 * time.Millisecond
)

// Phases of a Run, in order; copy and verify may be repeated.
const (
	phaseOpen   = "open"
	PhaseCopy   = "copy"
	PhaseVerify = "verify"
	phaseFinish = "finish"
)

// Request says what to copy.
type Request struct {
	From, To string
	// Exact says that the target held nothing before the first attempt: what is only there is removed.
	Exact bool
}

// Report is the progress that Run reports.
type Report struct {
	Phase string
	copytree.Progress
	// Begin marks the first report of a phase: nothing of it is done before the callback returns.
	Begin bool
	// End marks the last report of a phase that has succeeded.
	End bool
	// Differs is set once in a report of its own when the verification has found a difference and
	// the tree is copied again.
	Differs *copytree.DifferenceError
}

// Run copies a tree and verifies the copy, in a process of its own. It returns when that process has
// ended: nothing is written any more. Whatever has failed, the target can be given to Run again.
func Run(ctx context.Context, program string, r Request, report func(Report)) (err error) {
	p, err := start(ctx, program)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.do(ctx, message{Phase: phaseOpen, Request: &r}, func(Report) {}); err != nil {
		return err
	}
	for round := 1; ; round++ {
		err := p.do(ctx, message{Phase: PhaseCopy}, report)
		if err == nil {
			err = p.do(ctx, message{Phase: PhaseVerify}, report)
		}
		if err == nil {
			return p.do(ctx, message{Phase: phaseFinish}, func(Report) {})
		}
		var differs *copytree.DifferenceError
		if !errors.As(err, &differs) || differs.Again || round == MaxRounds {
			return err
		}
		report(Report{Phase: PhaseVerify, Differs: differs})
	}
}

// message is a request, progress, or with End the result: nothing or an error. A path is sent as
// bytes: names are not always valid UTF-8.
type message struct {
	Phase   string   `json:",omitempty"`
	Request *Request `json:",omitempty"`
	copytree.Progress
	End     bool                      `json:",omitempty"`
	Error   string                    `json:",omitempty"`
	Errno   syscall.Errno             `json:",omitempty"`
	Differs *copytree.DifferenceError `json:",omitempty"`
	Path    []byte                    `json:",omitempty"`
}

// result is the last answer to a request.
func result(p copytree.Progress, err error) message {
	m := message{Progress: p, End: true}
	if err == nil {
		return m
	}
	m.Error = err.Error()
	if errors.As(err, &m.Differs) {
		m.Path = []byte(m.Differs.Path)
	}
	errors.As(err, &m.Errno)
	return m
}

func (m message) err() error {
	switch {
	case m.Differs != nil:
		m.Differs.Path = string(m.Path)
		return &remoteError{m.Error, m.Differs}
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
	lines    *bufio.Scanner
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
	started, err := command.Start(ctx, command.Cmd{Name: program, Args: []string{word}, Stdin: stdin, Stdout: stdout, Grace: terminationGrace})
	err = errors.Join(err, stdin.Close(), stdout.Close())
	if err != nil {
		return nil, errors.Join(err, requests.Close(), answers.Close())
	}
	return &process{ctx: ctx, process: started, requests: requests, answers: answers, lines: bufio.NewScanner(answers)}, nil
}

// do sends a request and reports progress until its result is there.
func (p *process) do(ctx context.Context, m message, report func(Report)) error {
	phase := m.Phase
	report(Report{Phase: phase, Begin: true})
	if err := json.NewEncoder(p.requests).Encode(m); err != nil {
		return lost(ctx, phase, err)
	}
	for p.lines.Scan() {
		var answer message
		if err := json.Unmarshal(p.lines.Bytes(), &answer); err != nil {
			return lost(ctx, phase, err)
		}
		err := answer.err()
		report(Report{Phase: phase, Progress: answer.Progress, End: answer.End && err == nil})
		if answer.End {
			return err
		}
	}
	return lost(ctx, phase, p.lines.Err())
}

// lost says why there is no answer. A context that has ended is the reason, not the broken pipe.
func lost(ctx context.Context, phase string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", phase, context.Cause(ctx))
	}
	return errors.Join(fmt.Errorf("%s: the copying process ended", phase), err)
}

// close ends the process and waits for it.
func (p *process) close() error {
	closed := p.requests.Close()
	_, err := p.process.Wait()
	var exit *command.ExitError
	switch {
	case p.ctx.Err() != nil:
		err = nil // it was terminated by close
	case errors.As(err, &exit):
		exit.Name = "the copying process"
		err = exit
	}
	return errors.Join(closed, err, p.answers.Close())
}
