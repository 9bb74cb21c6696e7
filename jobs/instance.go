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

// Process is a supervised process as get_state shows it.
type Process = monit.Process

// Blobs opens the archives of packages and templates.
type Blobs interface {
	blob.Opener
	// Remove deletes the machine's own copy of a blob, if there is one.
	Remove(id string) error
}

// Supervisor runs the processes of the jobs: monit, or a dummy.
type Supervisor interface {
	// Reload makes it read the files of the jobs again.
	Reload(ctx context.Context) error
	StartAll(ctx context.Context) error
	StopAll(ctx context.Context, wait bool) error
	UnmonitorAll(ctx context.Context) error
	// State answers at once; a supervisor that does not is "unknown".
	State(ctx context.Context) string
	Processes(ctx context.Context) ([]Process, error)
}

// Instance is the machine as the Director sees it: its jobs and packages on disk and the
// processes they run.
type Instance struct {
	Dirs       vcap.Dirs
	Blobs      Blobs
	Supervisor Supervisor
	// CheckMonitFiles refuses monit files of jobs that the supervisor would not understand, before anything is stopped;
	// nil where that is left to the supervisor.
	CheckMonitFiles func(files map[string][]byte) error
	// Withheld returns the reason why no job may start, or "" if jobs may start; a nil Withheld never withholds them.
	Withheld func() string
	// Owner is root and the group vcap.
	Owner bundle.Owner
	// Parallel bounds the archives fetched at a time; less than 1 means 1.
	Parallel int
	// Root is the system root, for the log rotation.
	Root string
	// Pending is a start that the boot is about to make, nil if there is none.
	Pending *PendingStart
	// Boot starts the jobs that a boot holds back for their scripts; nil if there are none.
	Boot *BootScripts
	Log  *logrus.Entry

	health   sync.Mutex
	requests sync.Mutex // held while the record of the start request changes
	command  command
	// shown is set when monit supervises all services; the file of the start request is not read from then on.
	shown atomic.Bool
}

func (i *Instance) state() *SpecFile { return &SpecFile{Dirs: i.Dirs} }

// Spec is the spec that was applied last.
func (i *Instance) Spec() (Spec, error) { return i.state().Spec() }

func (i *Instance) jobs() bundle.Collection {
	return bundle.Collection{Store: i.Dirs.DataJobs(), Links: i.Dirs.Jobs(), Mode: 0o750, Owner: i.Owner}
}

func (i *Instance) packages() bundle.Collection { return Packages(i.Dirs, i.Owner) }

// Packages returns the collection of installed packages; the compiler installs dependencies there, too.
func Packages(dirs vcap.Dirs, owner bundle.Owner) bundle.Collection {
	return bundle.Collection{Store: dirs.DataPackages(), Links: dirs.Packages(), Mode: 0o755, Owner: owner}
}

// createJobDirs makes the directories that each job may write to, where they are missing. It
// serves apply, and the boot of a machine that lost its ephemeral disk.
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

// jobDir makes a directory. It never replaces what exists: a job can replace its directories at any moment.
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

// Apply makes the machine carry spec: bundles installed, links switched, job directories made, monit without job files
// until Start, log rotation and instance files. spec.json is written last, and only if everything before succeeded;
// otherwise everything stays as it was. A spec without a configuration hash installs nothing and is only recorded.
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

// check refuses a spec before anything is done for it.
func (i *Instance) check(spec Spec) error {
	_, _, err := i.rotation(spec).File()
	return errors.Join(spec.Validate(), err)
}

func (i *Instance) rotation(spec Spec) logs.Rotation {
	return logs.Rotation{Root: i.Root, LogDir: i.Dirs.SysLog(), MaxSize: spec.Properties.Logging.MaxLogFileSize,
		Hook: i.Dirs.Program("setup-logrotate.sh"), Log: i.Log}
}

// prune deletes what spec does not need.
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
		err = i.Supervisor.Reload(ctx)
	}
	if err == nil {
		err = i.rotate(spec, &change)
	}
	if err == nil {
		err = i.record(spec, &change)
	}
	return orBack(&change, err)
}

// orBack undoes a change that has failed with err.
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

// record writes the instance files, and spec.json last: it says that everything else is in force.
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

// enable switches all links to the bundles of spec and drops those it does not have.
func (i *Instance) enable(spec Spec, change *bundle.Switch) error {
	jobs, packages, err := bundles(spec)
	if err != nil {
		return err
	}
	for collection, wanted := range map[*bundle.Collection][]bundle.Bundle{ptr(i.packages()): packages, ptr(i.jobs()): jobs} {
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

// linkPackages gives a job its own view of the packages.
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

// forgetArchive deletes the machine's own copy of the rendered templates, which hold secrets.
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

// JobState is the state of the instance. It is also recorded in health.json, when it changed.
func (i *Instance) JobState(ctx context.Context) string {
	state := i.Supervisor.State(ctx)
	if state != monit.StateUnknown && i.CheckStart() == nil {
		if _, err := os.Lstat(i.Dirs.MonitStopped()); err == nil {
			state = monit.StateStopped
		} else if held := i.Boot.State(); held != "" {
			state = held
		}
	}
	if ctx.Err() == nil {
		i.recordHealth(state)
		i.noteShown(ctx)
	}
	return state
}

func (i *Instance) startRequest() StartRequest { return StartRequest{Dirs: i.Dirs} }

// noteShown records in the start request, once, that the supervisor supervises all services.
func (i *Instance) noteShown(ctx context.Context) {
	if i.shown.Load() || i.CheckStart() != nil || i.Boot.State() != "" {
		return
	}
	processes, err := i.Supervisor.Processes(ctx)
	if err != nil || unsupervised(processes) {
		return
	}
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

// Processes lists what the supervisor runs.
func (i *Instance) Processes(ctx context.Context) ([]Process, error) {
	return i.Supervisor.Processes(ctx)
}

// Start hands the jobs' files to the supervisor and starts everything.
func (i *Instance) Start(ctx context.Context) error {
	if err := i.CheckStart(); err != nil {
		return err
	}
	if err := i.TakeOver(); err != nil {
		return err
	}
	return i.startAll(ctx, "")
}

// startAll starts everything; pending is what the start then waits for.
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
	if err := i.Supervisor.Reload(ctx); err != nil {
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

// Stop stops everything and marks the instance as stopped. Without wait it does not wait for the
// processes to end.
func (i *Instance) Stop(ctx context.Context, wait bool) error {
	if err := i.TakeOver(); err != nil {
		return err
	}
	i.Pending.supersede()
	defer i.command.begin()()
	if err := i.Supervisor.StopAll(ctx, wait); err != nil {
		return err
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

// Unmonitor ends the supervision of all processes; they go on running.
func (i *Instance) Unmonitor(ctx context.Context) error {
	if err := i.TakeOver(); err != nil {
		return err
	}
	i.Pending.supersede()
	if err := i.Supervisor.UnmonitorAll(ctx); err != nil {
		return err
	}
	i.JobState(ctx)
	return nil
}

// Sweep removes what a crash left behind. Call it before anything else works on the instance.
func (i *Instance) Sweep() error {
	// The monit files that an interrupted apply set aside stay away: nothing is to run before the
	// Director has applied and started again.
	return errors.Join(i.jobs().Sweep(), i.packages().Sweep(), os.RemoveAll(i.Dirs.MonitJobsWithdrawn()),
		atomicfile.Sweep(i.Dirs.Instance()), atomicfile.Sweep(i.Dirs.Monit()))
}

// notExist reports whether err is about something that is not there.
func notExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
