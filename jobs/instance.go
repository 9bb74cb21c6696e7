package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"cambium/internal/atomicfile"
	"cambium/internal/blob"
	"cambium/internal/vcap"
	"cambium/jobs/bundle"
	"cambium/jobs/logs"
	"cambium/jobs/monit"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"
)

// Process is a supervised process, in the format of get_state.
type Process = monit.Process

// Blobs opens the archives of packages and templates.
type Blobs interface {
	blob.Opener
	// Remove deletes the local copy of a blob, if there is one.
	Remove(id string) error
}

// Supervisor runs the processes of the jobs. It is monit or a dummy.
type Supervisor interface {
	// Reload makes the supervisor read the files of the jobs again.
	Reload(ctx context.Context) error
	StartAll(ctx context.Context) error
	StopAll(ctx context.Context, wait bool) error
	UnmonitorAll(ctx context.Context) error
	// Observe returns at once, with the state of all services together. If the supervisor does not answer, the state is
	// "unknown", and err says why.
	Observe(ctx context.Context) (state string, processes []Process, err error)
}

// Instance manages the jobs and packages of the machine, and their processes.
type Instance struct {
	Dirs       vcap.Dirs
	Blobs      Blobs
	Supervisor Supervisor
	// CheckMonitFiles, if set, checks the monit files of jobs before anything is stopped.
	CheckMonitFiles func(files map[string][]byte) error
	// Withheld returns the reason why no job may start, or "". If it is nil, jobs may always start.
	Withheld func() string
	// Running reports whether the supervisor is running. It is required with Withheld.
	Running func(ctx context.Context) bool
	// Owner is root and the group vcap.
	Owner bundle.Owner
	// Parallel bounds the number of archives that are fetched at the same time; less than 1 means 1.
	Parallel int
	// Root is the system root, for log rotation.
	Root string
	// Pending is the start that the boot is about to repeat, or nil.
	Pending *PendingStart
	// Boot starts the jobs that the boot has held back for their scripts; may be nil.
	Boot *BootScripts
	Log  *logrus.Entry

	health   sync.Mutex
	requests sync.Mutex // held while the record of the start request changes
	command  command
	// shown is set once monit supervises all services. The start request is not read after that.
	shown atomic.Bool
}

func (i *Instance) state() *SpecFile { return &SpecFile{Dirs: i.Dirs} }

// Spec returns the spec that was applied last.
func (i *Instance) Spec() (Spec, error) { return i.state().Spec() }

func (i *Instance) jobs() bundle.Collection {
	return bundle.Collection{Store: i.Dirs.DataJobs(), Links: i.Dirs.Jobs(), Mode: 0o750, Owner: i.Owner}
}

func (i *Instance) packages() bundle.Collection { return Packages(i.Dirs, i.Owner) }

// Packages returns the collection of installed packages. The compiler also installs dependencies there.
func Packages(dirs vcap.Dirs, owner bundle.Owner) bundle.Collection {
	return bundle.Collection{Store: dirs.DataPackages(), Links: dirs.Packages(), Mode: 0o755, Owner: owner}
}

// createJobDirs creates the directories to which each job may write, if they do not exist. Apply calls it, and so does
// the boot of a machine that has lost its ephemeral disk.
func (i *Instance) createJobDirs(spec Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	for _, job := range spec.JobNames() {
		for _, dir := range []string{i.Dirs.SysLog(), i.Dirs.SysRun(), i.Dirs.Data()} {
			if err := i.jobDir(dir, job); err != nil {
				return fmt.Errorf("job %s: %w", job, err)
			}
		}
	}
	return nil
}

// jobDir creates a directory. It never replaces anything, because a job can replace its directories at any time.
func (i *Instance) jobDir(parent, job string) error {
	if err := os.MkdirAll(parent, 0o750); err != nil {
		return err
	}
	dir, err := os.OpenRoot(parent)
	if err != nil {
		return err
	}
	defer dir.Close()
	if info, err := dir.Lstat(job); err == nil {
		if !info.IsDir() {
			i.Log.WithField("path", filepath.Join(parent, job)).Warn("not a directory; it is left alone")
		}
		return nil
	}
	// Made under another name, so that an existing directory always has its mode and owner.
	temp := ".new-" + uuid.NewString()
	if err := dir.Mkdir(temp, 0o700); err != nil {
		return err
	}
	err = permit(dir, temp, i.Owner)
	if err == nil {
		err = dir.Rename(temp, job)
	}
	if err != nil {
		_, there := dir.Lstat(job)
		err = errors.Join(err, dir.Remove(temp))
		if there == nil {
			return nil // the job has made it meanwhile
		}
	}
	return err
}

// permit sets mode and owner of a new directory.
func permit(dir *os.Root, name string, owner bundle.Owner) error {
	made, err := dir.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(made.Chown(owner.UID, owner.GID), made.Chmod(0o770), made.Close())
}

// Apply makes the machine match spec: it installs bundles, switches links, creates job directories, withdraws monit's
// job files until Start, and writes log rotation and instance files. spec.json is written last. If anything fails,
// everything is restored. A spec without a configuration hash installs nothing and is only recorded.
func (i *Instance) Apply(ctx context.Context, spec Spec) error {
	spec.fill()
	if err := i.check(spec); err != nil {
		return err
	}
	if spec.ConfigurationHash == "" {
		var change bundle.Switch
		return orBack(&change, i.record(spec, &change))
	}
	if err := i.install(ctx, spec); err != nil {
		return err
	}
	// A boot starts what the Director has started, not what it has applied since.
	if err := i.changeRequest(StartRequest.forget); err != nil {
		return err
	}
	// From here on the new spec is in force. A failure to delete what is obsolete is only logged;
	// the next apply retries.
	i.forgetArchive(spec)
	i.prune(ctx, spec)
	i.rotation(spec).RunHook(ctx)
	return nil
}

// check returns an error for a spec that cannot be applied.
func (i *Instance) check(spec Spec) error {
	_, _, err := i.rotation(spec).File()
	return errors.Join(spec.Validate(), err)
}

func (i *Instance) rotation(spec Spec) logs.Rotation {
	return logs.Rotation{Root: i.Root, LogDir: i.Dirs.SysLog(), MaxSize: spec.Properties.Logging.MaxLogFileSize,
		Hook: i.Dirs.Program("setup-logrotate.sh"), Log: i.Log}
}

// prune deletes bundles that spec does not need.
func (i *Instance) prune(ctx context.Context, spec Spec) {
	jobs, packages, err := bundles(spec)
	if err == nil {
		err = errors.Join(i.jobs().Prune(ctx, jobs), i.packages().Prune(ctx, packages),
			os.RemoveAll(i.Dirs.MonitJobsWithdrawn()))
	}
	if err != nil {
		i.Log.WithError(err).Warn("could not delete all obsolete jobs and packages")
	}
}

func (i *Instance) install(ctx context.Context, spec Spec) error {
	if err := i.TakeOver(); err != nil {
		return err
	}
	if err := i.fetch(ctx, spec); err != nil {
		return err
	}
	if err := i.checkMonitFiles(spec); err != nil {
		return err
	}
	if err := i.createJobDirs(spec); err != nil {
		return err
	}
	var change bundle.Switch
	err := i.enable(spec, &change)
	if err == nil {
		err = i.withdrawMonitFiles(&change)
	}
	if err == nil {
		err = change.Sync()
	}
	if err == nil {
		err = i.reload(ctx)
	}
	if err == nil {
		err = i.rotate(spec, &change)
	}
	if err == nil {
		err = i.record(spec, &change)
	}
	return orBack(&change, err)
}

// orBack undoes the change if err is set.
func orBack(change *bundle.Switch, err error) error {
	if err == nil {
		return nil
	}
	if undone := change.Rollback(); undone != nil {
		return fmt.Errorf("%w (restoring what was in force failed as well: %w)", err, undone)
	}
	return err
}

func (i *Instance) rotate(spec Spec, change *bundle.Switch) error {
	path, content, err := i.rotation(spec).File()
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = change.Write(path, content, 0o644)
	}
	if err != nil {
		return fmt.Errorf("log rotation: %w", err)
	}
	return nil
}

// record writes the instance files, and spec.json last, which says that everything else is in place.
func (i *Instance) record(spec Spec, change *bundle.Switch) error {
	if err := os.MkdirAll(i.Dirs.Instance(), 0o755); err != nil {
		return fmt.Errorf("instance files: %w", err)
	}
	// Jobs of any user read these, whatever the umask was.
	if err := os.Chmod(i.Dirs.Instance(), 0o755); err != nil {
		return fmt.Errorf("instance files: %w", err)
	}
	for path, content := range map[string]string{i.Dirs.InstanceID(): spec.ID, i.Dirs.InstanceAZ(): spec.AZ,
		i.Dirs.InstanceName(): spec.Name, i.Dirs.InstanceDeployment(): spec.Deployment} {
		if err := change.Write(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return i.state().Write(spec, change)
}

// enable switches all links to the bundles of spec, and removes links to others.
func (i *Instance) enable(spec Spec, change *bundle.Switch) error {
	jobs, packages, err := bundles(spec)
	if err != nil {
		return err
	}
	for collection, wanted := range map[*bundle.Collection][]bundle.Bundle{ptr(i.packages()): packages,
		ptr(i.jobs()): jobs} {
		if err := collection.EnsureLinks(); err != nil {
			return err
		}
		if err := relink(*collection, wanted, change); err != nil {
			return err
		}
	}
	for _, job := range jobs {
		if err := i.linkPackages(i.jobs().Dir(job), packages, change); err != nil {
			return fmt.Errorf("job %s: %w", job.Name, err)
		}
	}
	return nil
}

func ptr[T any](v T) *T { return &v }

func relink(c bundle.Collection, wanted []bundle.Bundle, change *bundle.Switch) error {
	keep := map[string]bool{}
	for _, b := range wanted {
		keep[b.Name] = true
		if err := change.Set(c.Link(b.Name), c.Dir(b)); err != nil {
			return err
		}
	}
	have, err := c.Linked()
	if err != nil {
		return err
	}
	for _, name := range have {
		if !keep[name] {
			if err := change.Drop(c.Link(name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// linkPackages creates a job's links to its packages.
func (i *Instance) linkPackages(jobDir string, packages []bundle.Bundle, change *bundle.Switch) error {
	links := i.packages()
	links.Links = filepath.Join(jobDir, "packages")
	links.Mode = 0o750
	if len(packages) > 0 {
		if err := links.EnsureLinks(); err != nil {
			return err
		}
	}
	return relink(links, packages, change)
}

// forgetArchive deletes the local copy of the rendered templates, which contain secrets.
func (i *Instance) forgetArchive(spec Spec) {
	if spec.Archive == nil || spec.Archive.BlobstoreID == "" {
		return
	}
	if err := i.Blobs.Remove(spec.Archive.BlobstoreID); err != nil {
		i.Log.WithError(err).Warn("could not delete the rendered templates archive")
	}
}

// healthFile is the content of health.json, which bosh-dns and others read.
type healthFile struct {
	State string `json:"state"`
}

// JobState returns the state of the instance, and records it in health.json if it has changed.
func (i *Instance) JobState(ctx context.Context) string {
	state, _, _ := i.Observe(ctx)
	return state
}

// Observe returns the state of the instance and its processes. It records the state in health.json if it has changed.
func (i *Instance) Observe(ctx context.Context) (state string, processes []Process, err error) {
	// Before the question: an answer from before a start does not count.
	withheld, held, shown := i.CheckStart() != nil, i.Boot.State(), i.shown.Load()
	if withheld && !i.Running(ctx) {
		i.recordHealth(monit.StateFailing)
		return monit.StateFailing, nil, nil
	}
	state, processes, err = i.Supervisor.Observe(ctx)
	switch {
	case withheld:
		state = monit.StateFailing
	case state == monit.StateUnknown:
	case isStopped(i.Dirs):
		state = monit.StateStopped
	case held != "":
		state = held
	}
	if ctx.Err() == nil {
		i.recordHealth(state)
	}
	if err == nil && !withheld && held == "" && !shown && !unsupervised(processes) {
		i.recordShown()
	}
	return state, processes, err
}

func (i *Instance) startRequest() StartRequest { return StartRequest{Dirs: i.Dirs} }

// recordShown records in the start request that the supervisor supervises all services.
func (i *Instance) recordShown() {
	if err := i.changeRequest(func(r StartRequest) error { return r.shown(time.Now()) }); err != nil {
		i.Log.WithError(err).Warn("could not record that monit supervises all services")
		return
	}
	i.shown.Store(true)
}

func (i *Instance) recordHealth(state string) {
	i.health.Lock()
	defer i.health.Unlock()
	// One string always encodes.
	data, _ := json.Marshal(healthFile{State: state})
	err := os.MkdirAll(i.Dirs.Instance(), 0o755)
	if err == nil {
		_, err = atomicfile.WriteIfChanged(i.Dirs.Health(), data, 0o644)
	}
	if err != nil {
		i.Log.WithError(err).Warn("could not record the health")
	}
}

// Start writes the jobs' files for the supervisor and starts all services.
func (i *Instance) Start(ctx context.Context) error {
	if err := i.CheckStart(); err != nil {
		return err
	}
	if err := i.TakeOver(); err != nil {
		return err
	}
	return i.startAll(ctx, "")
}

// startAll starts all services. pending is the stage that is then still to be done.
func (i *Instance) startAll(ctx context.Context, pending string) error {
	spec, err := i.Spec()
	if err != nil {
		return err
	}
	if err := i.writeMonitFiles(spec); err != nil {
		return err
	}
	i.Pending.supersede()
	defer i.command.begin()()
	if err := i.reload(ctx); err != nil {
		return err
	}
	if err := i.CheckStart(); err != nil {
		return err
	}
	if err := i.Supervisor.StartAll(ctx); err != nil {
		return err
	}
	now := time.Now()
	err = i.changeRequest(func(r StartRequest) error {
		return r.Record(now, pending)
	})
	if err != nil {
		return err
	}
	if err := atomicfile.Remove(i.Dirs.MonitStopped()); err != nil {
		return fmt.Errorf("remove the stopped marker: %w", err)
	}
	i.shown.Store(false)
	i.JobState(ctx)
	return nil
}

// Stop stops all services, and marks the instance as stopped. If wait is false, it does not wait for the processes to
// end.
func (i *Instance) Stop(ctx context.Context, wait bool) error {
	if err := i.TakeOver(); err != nil {
		return err
	}
	i.Pending.supersede()
	defer i.command.begin()()
	if !i.idle(ctx) {
		if err := i.Supervisor.StopAll(ctx, wait); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(i.Dirs.Monit(), 0o755); err != nil {
		return fmt.Errorf("stopped marker: %w", err)
	}
	if err := atomicfile.Write(i.Dirs.MonitStopped(), nil, 0o644); err != nil {
		return err
	}
	if err := i.changeRequest(StartRequest.forget); err != nil {
		return err
	}
	i.JobState(ctx)
	return nil
}

// Unmonitor ends the supervision of all processes, which continue to run.
func (i *Instance) Unmonitor(ctx context.Context) error {
	if err := i.TakeOver(); err != nil {
		return err
	}
	i.Pending.supersede()
	if !i.idle(ctx) {
		if err := i.Supervisor.UnmonitorAll(ctx); err != nil {
			return err
		}
	}
	i.JobState(ctx)
	return nil
}

// Sweep removes what a crash has left. Call it before the instance is used.
func (i *Instance) Sweep() error {
	// The monit files that an interrupted apply set aside stay away: nothing is to run before the
	// Director has applied and started again.
	return errors.Join(i.jobs().Sweep(), i.packages().Sweep(), os.RemoveAll(i.Dirs.MonitJobsWithdrawn()),
		atomicfile.Sweep(i.Dirs.Instance()), atomicfile.Sweep(i.Dirs.Monit()))
}

// notExist reports whether err means that a file does not exist.
func notExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
