package apart

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

// maxOpenFiles is the kernel's own limit: two are open for each level of the tree.
const maxOpenFiles = 1 << 20

// ServeIfCalled serves copy requests and exits in a copying process, and returns at once in any other. It stands
// first in the main function of every program that Run may be given.
func ServeIfCalled(ctx context.Context) {
	if len(os.Args) < 2 || os.Args[1] != word {
		return
	}
	if err := serve(ctx, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", word, err)
	}
	os.Exit(1)
}

// serve answers requests until the agent has ended. Then it exits at once, also in the middle of a
// request.
func serve(ctx context.Context, in io.Reader, out io.Writer) error {
	// If it fails, only very deep trees cannot be copied.
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: maxOpenFiles, Max: maxOpenFiles})
	// One P for each worker: workers block in disk system calls most of the time, and need not hand
	// off their P then.
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

// answer carries out a request and reports its progress.
func (s *server) answer(ctx context.Context, m message, out *json.Encoder) error {
	work, err := s.work(ctx, m)
	if err != nil {
		return err
	}
	counter := &copytree.Counter{}
	ended := make(chan error, 1)
	go func() { ended <- work(counter) }()
	ticker := time.NewTicker(progressInterval)
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

func (s *server) work(ctx context.Context, m message) (func(*copytree.Counter) error, error) {
	switch {
	case m.Phase == phaseOpen && m.Request != nil && s.trees == nil:
		return func(*copytree.Counter) error {
			from, to, err := openPrivately(m.Request.From, m.Request.To)
			if err != nil {
				return err
			}
			s.trees, err = copytree.New(from, to, m.Request.Exact)
			return err
		}, nil
	case s.trees == nil:
	case m.Phase == PhaseCopy:
		return func(c *copytree.Counter) error { return s.trees.Copy(ctx, c) }, nil
	case m.Phase == PhaseVerify:
		return func(c *copytree.Counter) error { return s.trees.Verify(ctx, c) }, nil
	case m.Phase == phaseFinish:
		return func(*copytree.Counter) error { return s.trees.Finish(ctx) }, nil
	}
	return nil, fmt.Errorf("request %q is not known here", m.Phase)
}
