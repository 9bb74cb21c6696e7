// Package apart copies and verifies trees in a process of its own: the agent again, called by Word. Minutes of
// system calls and checksums in the process that answers the Director would make its answers wait, and a
// process that does nothing else can be much faster. It ends when the agent does, however that comes about:
// its standard input is a pipe that nobody else holds.
//
// The two speak in lines of JSON: a request goes one way, progress and in the end the result come back.
package apart

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"cambium/internal/command"
	"cambium/platform/copytree"
)

// Word is the argument by which the agent's program becomes the other process.
const Word = "copy-trees"

// grace is what a process that is told to end has; it does so at once unless a disk holds it.
const grace = time.Second

// progressEvery is how often progress is told.
const progressEvery = 200 * time.Millisecond

const (
	copying   = "copy"
	verifying = "verify"
)

type request struct {
	Do       string
	From, To string
	Exact    bool
}

// message is progress, or with End the result: nothing, or an error. What is different is told as bytes: names
// are not always text.
type message struct {
	copytree.Progress
	End     bool          `json:",omitempty"`
	Error   string        `json:",omitempty"`
	Errno   syscall.Errno `json:",omitempty"`
	Differs bool          `json:",omitempty"`
	Path    []byte        `json:",omitempty"`
	What    string        `json:",omitempty"`
	Again   bool          `json:",omitempty"`
	Others  int           `json:",omitempty"`
}

// Trees is the other process, as the agent sees it.
type Trees struct {
	ctx     context.Context // of the process
	process *command.Process
	to      *os.File
	from    *os.File
	lines   *bufio.Scanner
}

// Start starts the program as the other process; it lives until Close, or as long as ctx.
func Start(ctx context.Context, program string) (*Trees, error) {
	theirIn, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	from, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, theirIn.Close(), to.Close())
	}
	process, err := command.Start(ctx, command.Cmd{Name: program, Args: []string{Word}, Stdin: theirIn, Stdout: theirOut, Grace: grace})
	err = errors.Join(err, theirIn.Close(), theirOut.Close())
	if err != nil {
		return nil, errors.Join(err, to.Close(), from.Close())
	}
	return &Trees{ctx: ctx, process: process, to: to, from: from, lines: bufio.NewScanner(from)}, nil
}

// Copy is copytree.Copy. What it has read is remembered for Verify.
func (t *Trees) Copy(ctx context.Context, from, to string, o copytree.Options) error {
	return t.do(ctx, request{Do: copying, From: from, To: to, Exact: o.Exact}, o.Progress)
}

// Verify is copytree.Verify.
func (t *Trees) Verify(ctx context.Context, from, to string, o copytree.Options) error {
	return t.do(ctx, request{Do: verifying, From: from, To: to, Exact: o.Exact}, o.Progress)
}

func (t *Trees) do(ctx context.Context, r request, progress *copytree.Counter) error {
	if err := json.NewEncoder(t.to).Encode(r); err != nil {
		return t.lost(ctx, r.Do, err)
	}
	for t.lines.Scan() {
		var m message
		if err := json.Unmarshal(t.lines.Bytes(), &m); err != nil {
			return t.lost(ctx, r.Do, err)
		}
		if progress != nil {
			progress.Set(m.Progress)
		}
		if m.End {
			return m.err()
		}
	}
	return t.lost(ctx, r.Do, t.lines.Err())
}

// lost says why there is no answer. A context that has ended is the reason, not the broken pipe.
func (t *Trees) lost(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	return errors.Join(fmt.Errorf("%s: the process that does it ended", what), err)
}

// Close ends the other process, and returns when it has: nothing is written any more.
func (t *Trees) Close() error {
	closed := t.to.Close()
	_, err := t.process.Wait()
	var exit *command.ExitError
	switch {
	case t.ctx.Err() != nil:
		err = nil // it was told to end
	case errors.As(err, &exit):
		exit.Name = "the process that copies"
		err = exit
	}
	return errors.Join(closed, err, t.from.Close())
}

// failure is an error that came from the other process.
type failure struct {
	text  string
	cause error
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.cause }

func (m message) err() error {
	switch {
	case m.Differs:
		return &failure{m.Error, &copytree.DifferenceError{Path: string(m.Path), What: m.What, Again: m.Again, Others: m.Others}}
	case m.Errno != 0:
		return &failure{m.Error, m.Errno}
	case m.Error != "":
		return errors.New(m.Error)
	}
	return nil
}

// result describes how the work ended.
func result(p copytree.Progress, err error) message {
	m := message{Progress: p, End: true}
	if err == nil {
		return m
	}
	m.Error = err.Error()
	var differs *copytree.DifferenceError
	if errors.As(err, &differs) {
		m.Differs, m.Path, m.What, m.Again, m.Others = true, []byte(differs.Path), differs.What, differs.Again, differs.Others
	}
	errors.As(err, &m.Errno)
	return m
}

// ServeIfCalled is the whole life of a process that Start has started, and nothing in any other. It stands
// first in the main function of every program that Start may be given.
func ServeIfCalled() {
	if len(os.Args) < 2 || os.Args[1] != Word {
		return
	}
	if err := Serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", Word, err)
	}
	os.Exit(1)
}

// Serve is the other process: it does what it is asked until there is nobody to ask. Then it ends the process
// at once, in the middle of whatever it does.
func Serve(in io.Reader, out io.Writer) error {
	copytree.Alone()
	debug.SetGCPercent(200) // it lives shortly, and collecting stops all workers
	requests := make(chan request)
	failed := make(chan error, 1)
	go func() {
		decoder := json.NewDecoder(in)
		for {
			var r request
			switch err := decoder.Decode(&r); {
			case errors.Is(err, io.EOF):
				os.Exit(0)
			case err != nil:
				failed <- err
				return
			}
			requests <- r
		}
	}()
	sums := &copytree.Sums{}
	for {
		select {
		case err := <-failed:
			return err
		case r := <-requests:
			if err := work(r, sums, json.NewEncoder(out)); err != nil {
				return err
			}
		}
	}
}

func work(r request, sums *copytree.Sums, out *json.Encoder) error {
	do := copytree.Verify
	switch r.Do {
	case copying:
		do = copytree.Copy
	case verifying:
	default:
		return fmt.Errorf("request %q is not known", r.Do)
	}
	counter := &copytree.Counter{}
	ended := make(chan error, 1)
	go func() {
		ended <- do(context.Background(), r.From, r.To, copytree.Options{Exact: r.Exact, Sums: sums, Progress: counter})
	}()
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			return out.Encode(result(counter.Load(), err))
		case <-ticker.C:
			if err := out.Encode(message{Progress: counter.Load()}); err != nil {
				return err
			}
		}
	}
}
