package script

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"cambium/internal/command"
	"cambium/internal/jsoncut"
	"cambium/internal/tempfile"
)

// maxErrandOutput bounds the returned part of each output stream, in encoded bytes. Both together fit into a message of
// a NATS server, so that an errand with long output still has a result. Of a longer stream, the first quarter and the
// end are kept.
const maxErrandOutput = 448 << 10

// Outcome is the result of run_errand.
type Outcome struct {
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	ExitCode int    `json:"exit_code"`
}

// Errand runs a job's "run" script and returns its output. A status other than 0 is not an error. If ctx ends, the
// script's process group is ended, and the outcome has the signal.
func (r Runner) Errand(ctx context.Context, job string) (Outcome, error) {
	if err := checkName(job); err != nil {
		return Outcome{}, err
	}
	path := r.path(job, "run")
	// Unlinked files, not memory: a crash leaves nothing behind.
	stdout, err := tempfile.Unnamed(r.Dirs.Tmp())
	if err != nil {
		return Outcome{}, err
	}
	defer stdout.Close()
	stderr, err := tempfile.Unnamed(r.Dirs.Tmp())
	if err != nil {
		return Outcome{}, err
	}
	defer stderr.Close()
	result, err := command.Run(ctx, command.Cmd{Name: path, Env: r.environ(nil), Stdout: stdout,
		Stderr: stderr, Nice: nice})
	var exit *command.ExitError
	if err != nil && !errors.As(err, &exit) {
		return Outcome{}, fmt.Errorf("errand %s: %w", job, err)
	}
	outcome := Outcome{ExitCode: result.Status()}
	if outcome.Stdout, err = excerpt(stdout, maxErrandOutput); err != nil {
		return Outcome{}, fmt.Errorf("errand %s: %w", job, err)
	}
	if outcome.Stderr, err = excerpt(stderr, maxErrandOutput); err != nil {
		return Outcome{}, fmt.Errorf("errand %s: %w", job, err)
	}
	return outcome, nil
}

// excerpt returns the content of file, cut so that its JSON encoding has at most max bytes.
func excerpt(file *os.File, max int) (string, error) {
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	size := info.Size()
	if size <= int64(max) {
		all, err := section(file, 0, size)
		if err != nil || jsoncut.Head(all, max) == all {
			return all, err
		}
	}
	const mark = 64 // room for the text in the middle
	headRoom := (max - mark) / 4
	headSize := min(size, int64(max/4))
	head, err := section(file, 0, headSize)
	if err != nil {
		return "", err
	}
	head = jsoncut.Head(head, headRoom)
	tailSize := min(size-int64(len(head)), int64(max))
	tail, err := section(file, size-tailSize, tailSize)
	if err != nil {
		return "", err
	}
	tail = jsoncut.Tail(tail, max-mark-headRoom)
	return fmt.Sprintf("%s\n...[%d bytes left out]...\n%s", head, size-int64(len(head))-int64(len(tail)), tail), nil
}

func section(file io.ReaderAt, from, size int64) (string, error) {
	var b strings.Builder
	if _, err := io.Copy(&b, io.NewSectionReader(file, from, size)); err != nil {
		return "", fmt.Errorf("read output: %w", err)
	}
	return b.String(), nil
}
