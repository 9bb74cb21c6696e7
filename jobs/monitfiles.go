package jobs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"cambium/internal/atomicfile"
	"cambium/jobs/bundle"
)

// withdrawMonitFiles hides the job files from monit until Start, so that monit does not start earlier jobs with
// half-installed files. monit reads only the files in its directory.
func (i *Instance) withdrawMonitFiles(change *bundle.Switch) error {
	if err := os.RemoveAll(i.Dirs.MonitJobsWithdrawn()); err != nil {
		return fmt.Errorf("monit files: %w", err)
	}
	err := os.Rename(i.Dirs.MonitJobs(), i.Dirs.MonitJobsWithdrawn())
	if notExist(err) {
		return i.ensureMonitDir()
	}
	if err != nil {
		return fmt.Errorf("monit files: %w", err)
	}
	change.AddUndo(func() error {
		return errors.Join(os.RemoveAll(i.Dirs.MonitJobs()), os.Rename(i.Dirs.MonitJobsWithdrawn(), i.Dirs.MonitJobs()))
	})
	return i.ensureMonitDir()
}

func (i *Instance) ensureMonitDir() error {
	if err := os.MkdirAll(i.Dirs.MonitJobs(), 0o755); err != nil {
		return fmt.Errorf("monit files: %w", err)
	}
	return nil
}

// wantedMonitFiles returns the files of all jobs of spec, by name. The names have numbers, so that monit reads them in
// reverse order of the spec.
func (i *Instance) wantedMonitFiles(spec Spec) (wanted map[string][]byte, err error) {
	jobs, _, err := bundles(spec)
	if err != nil {
		return nil, err
	}
	wanted = map[string][]byte{}
	for n := range jobs {
		job := jobs[len(jobs)-1-n]
		dir := i.jobs().Dir(job)
		if !i.jobs().Installed(job) {
			return nil, fmt.Errorf("job %s is not installed: apply the spec again", job.Name)
		}
		files, err := monitFiles(dir)
		if err != nil {
			return nil, fmt.Errorf("job %s: %w", job.Name, err)
		}
		for label, content := range files {
			wanted[fmt.Sprintf("%04d_%s%s.monitrc", n, job.Name, label)] = content
		}
	}
	return wanted, nil
}

// checkMonitFiles fails if a file of spec is invalid for the supervisor.
func (i *Instance) checkMonitFiles(spec Spec) error {
	if i.CheckMonitFiles == nil {
		return nil
	}
	wanted, err := i.wantedMonitFiles(spec)
	if err == nil {
		err = i.CheckMonitFiles(wanted)
	}
	if err != nil {
		return fmt.Errorf("monit files: %w", err)
	}
	return nil
}

// writeMonitFiles writes the files of all jobs of spec, and removes all others.
func (i *Instance) writeMonitFiles(spec Spec) error {
	wanted, err := i.wantedMonitFiles(spec)
	if err != nil {
		return err
	}
	if err := i.ensureMonitDir(); err != nil {
		return err
	}
	for name, content := range wanted {
		if _, err := atomicfile.WriteIfChanged(filepath.Join(i.Dirs.MonitJobs(), name), content, 0o640); err != nil {
			return err
		}
	}
	have, err := os.ReadDir(i.Dirs.MonitJobs())
	if err != nil {
		return fmt.Errorf("monit files: %w", err)
	}
	for _, e := range have {
		if _, keep := wanted[e.Name()]; !keep {
			if err := os.RemoveAll(filepath.Join(i.Dirs.MonitJobs(), e.Name())); err != nil {
				return fmt.Errorf("monit files: %w", err)
			}
		}
	}
	return nil
}

// monitFiles reads a job's "monit" file and its "<label>.monit" files. The keys are what a label adds to the file name.
func monitFiles(dir string) (map[string][]byte, error) {
	files := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var faults []error
	for _, e := range entries {
		label, further := strings.CutSuffix(e.Name(), ".monit")
		if e.Name() != "monit" && !further || !e.Type().IsRegular() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		faults = append(faults, err)
		if further {
			files["_"+label] = content
		} else {
			files[""] = content
		}
	}
	return files, errors.Join(faults...)
}
