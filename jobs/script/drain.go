package script

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"cambium/internal/command"
	"cambium/internal/retry"
	"cambium/internal/tempfile"

	"github.com/sirupsen/logrus"
)

// DrainArgs has the arguments of a drain script and the instance states for its environment.
type DrainArgs struct {
	JobChange  string // job_shutdown, job_new, job_changed
	HashChange string // hash_unchanged, hash_new, hash_changed
	// UpdatedPackages is sorted.
	UpdatedPackages []string
	// PersistentDisk is the size in MiB in the current spec, and Next the one in the new spec, if there is one.
	PersistentDisk     int
	NextPersistentDisk *int
}

// followUp returns the arguments of further calls of a dynamic drain.
func (a DrainArgs) followUp() DrainArgs {
	return DrainArgs{JobChange: "job_check_status", HashChange: "hash_unchanged", PersistentDisk: a.PersistentDisk}
}

func (a DrainArgs) env() map[string]string {
	env := map[string]string{"BOSH_JOB_STATE": diskState(a.PersistentDisk)}
	if a.NextPersistentDisk != nil {
		env["BOSH_JOB_NEXT_STATE"] = diskState(*a.NextPersistentDisk)
	}
	return env
}

func diskState(size int) string {
	// A struct of one number always encodes.
	data, _ := json.Marshal(struct {
		PersistentDisk int `json:"persistent_disk"`
	}{size})
	return string(data)
}

// maxDrainOutput bounds what is read of a drain script's output, which should be one number. maxDrainError bounds what
// an error quotes.
const (
	maxDrainOutput = 64 << 10
	maxDrainError  = 1 << 10
)

// Drain runs the drain scripts of all jobs at the same time, until each reports that it is done. If ctx ends, Drain
// ends the process groups of the scripts before it returns, and starts no script again.
func (r Runner) Drain(ctx context.Context, jobs []string, args DrainArgs) error {
	faults := make([]error, len(jobs))
	var running sync.WaitGroup
	for n, job := range jobs {
		found, err := installed(r.path(job, "drain"))
		if err != nil {
			faults[n] = fmt.Errorf("job %s: %w", job, err)
		} else if found {
			running.Go(func() {
				if err := r.drain(ctx, job, args); err != nil {
					faults[n] = fmt.Errorf("drain of job %s: %w", job, err)
				}
			})
		}
	}
	running.Wait()
	return errors.Join(faults...)
}

// drain implements the protocol: a script prints the number of seconds to wait. If that is negative, it is called
// again.
func (r Runner) drain(ctx context.Context, job string, args DrainArgs) error {
	for {
		wait, err := r.drainOnce(ctx, job, args)
		if err != nil {
			return err
		}
		if err := retry.Sleep(ctx, time.Duration(max(wait, -wait))*time.Second); err != nil {
			return err
		}
		if wait >= 0 {
			return nil
		}
		args = args.followUp()
	}
}

func (r Runner) drainOnce(ctx context.Context, job string, args DrainArgs) (int, error) {
	// Files: a script that outlives the agent must not die of a closed pipe.
	stdout, err := tempfile.Unnamed(r.Dirs.Tmp())
	if err != nil {
		return 0, err
	}
	defer stdout.Close()
	stderr, err := tempfile.Unnamed(r.Dirs.Tmp())
	if err != nil {
		return 0, err
	}
	defer stderr.Close()
	_, err = command.Run(ctx, command.Cmd{
		Name: r.path(job, "drain"), Args: append([]string{args.JobChange, args.HashChange}, args.UpdatedPackages...),
		Env: r.environ(args.env()), Stdout: stdout, Stderr: stderr, Nice: nice,
	})
	var exit *command.ExitError
	if err != nil && (ctx.Err() != nil || !errors.As(err, &exit)) {
		return 0, err
	}
	output, readErr := section(stdout, 0, maxDrainOutput)
	if readErr != nil {
		return 0, readErr
	}
	said, readErr := excerpt(stderr, maxDrainError)
	if readErr != nil {
		return 0, readErr
	}
	wait, parseErr := strconv.Atoi(strings.TrimSpace(output))
	const year = 365 * 24 * 60 * 60
	if parseErr != nil || wait > year || wait < -year {
		fault := errors.New("the script did not print a number of seconds")
		if said = strings.TrimSpace(said); said != "" {
			fault = fmt.Errorf("%w: %s", fault, said)
		}
		return 0, errors.Join(fault, err)
	}
	if err != nil {
		// Released scripts exit with a status other than 0 and still expect their number to count.
		r.Log.WithFields(logrus.Fields{"job": job, "seconds": wait, "error": err}).
			Warn("drain script failed after printing a number")
	}
	return wait, nil
}
