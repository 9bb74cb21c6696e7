package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"cambium/platform/copytree"
)

// maxOpenFiles is the kernel's limit. Two files are open for each level of the tree.
const maxOpenFiles = 1 << 20

// ServeIfCalled serves requests and exits if this is a copying process; otherwise it returns at once. The main function
// of each program passed to Start must call it first.
func ServeIfCalled(ctx context.Context) {
	if len(os.Args) < 2 || os.Args[1] != word {
		return
	}
	if err := serve(ctx, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", word, err)
	}
	os.Exit(1)
}

// serve answers requests until the agent has ended. Then it exits at once, even during a request.
func serve(ctx context.Context, in io.Reader, out io.Writer) error {
	// If it fails, only very deep trees cannot be copied.
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: maxOpenFiles, Max: maxOpenFiles})
	// Use one P for each worker: workers are blocked in system calls most of the time, and need not hand off their P.
	runtime.GOMAXPROCS(copytree.Workers())
	requests := make(chan message)
	failed := make(chan error, 1)
	go func() {
		decoder := json.NewDecoder(in)
		for {
			var m message
			switch err := decoder.Decode(&m); {
			case errors.Is(err, io.EOF):
				os.Exit(0)
			case err != nil:
				failed <- err
				return
			}
			requests <- m
		}
	}()
	s := &server{}
	for {
		select {
		case err := <-failed:
			return err
		case m := <-requests:
			if err := s.answer(ctx, m, json.NewEncoder(out)); err != nil {
				return err
			}
		}
	}
}

type server struct{ trees *copytree.Trees }

// answer processes a request and reports its progress.
func (s *server) answer(ctx context.Context, m message, out *json.Encoder) error {
	if m.Request == nil || m.Phase != PhaseCopy && (s.trees == nil || m.Phase != PhaseVerify &&
		m.Phase != phaseComplete) {
		return fmt.Errorf("unexpected request %q", m.Phase)
	}
	counter := &copytree.Counter{}
	ended := make(chan message, 1)
	go func() {
		clamped, err := s.work(ctx, m, counter)
		ended <- result(counter.Load(), clamped, err)
	}()
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for {
		select {
		case end := <-ended:
			return out.Encode(end)
		case <-ticker.C:
			if err := out.Encode(message{Progress: counter.Load()}); err != nil {
				return err
			}
		}
	}
}

// work opens the directories and runs one phase.
func (s *server) work(ctx context.Context, m message, counter *copytree.Counter) (clamped copytree.Clamped, err error) {
	to, err := openDetached(m.Request.To, 0)
	if err != nil {
		return clamped, err
	}
	defer to.Close()
	if err := lock(to); err != nil {
		return clamped, err
	}
	if m.Phase == phaseComplete {
		return clamped, s.trees.Complete(to)
	}
	from, err := openDetached(m.Request.From, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return clamped, err
	}
	defer from.Close()
	if m.Phase == PhaseVerify {
		return s.trees.Verify(ctx, from, to, counter)
	}
	s.trees = copytree.New(m.Request.Mark, m.Request.Own, m.Request.Exact)
	return clamped, s.trees.Copy(ctx, from, to, counter)
}

// lock waits until no other process uses the target: a killed one may not have ended yet.
func lock(to *os.File) (err error) {
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(to.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return &os.PathError{Op: "lock", Path: to.Name(), Err: err}
	}
	return nil
}
