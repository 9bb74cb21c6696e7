package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"cambium/agent/task"
	"cambium/internal/command"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/internal/watch"
	"cambium/platform/features"
	"cambium/platform/mount"
	"cambium/platform/unit"
)

// service restarts and inspects the agent's service, in systemd or runit.
type service interface {
	Restart(ctx context.Context, name string) error
	State(ctx context.Context, name string) (unit.State, error)
}

// machine observes the VM, and changes it for a trial.
type machine struct {
	o       options
	version string
	log     *logrus.Entry
	systemd *unit.Systemd // nil if systemd is not the init
	service service
	name    string // name of the agent's service
}

func newMachine(o options, version string, log *logrus.Entry) *machine {
	m := &machine{o: o, version: version, log: log}
	if unit.Booted("/") {
		m.systemd = &unit.Systemd{Root: "/", Log: log}
		m.service, m.name = m.systemd, "bosh-agent"
	}
	if unit.RunitHas("/", "agent") {
		m.service, m.name = &unit.Runit{Root: "/", Log: log}, "agent"
	}
	return m
}

func (m *machine) close() {
	if m.systemd != nil {
		m.systemd.Close()
	}
}

// mounted reports whether the stemcell's agent is covered by a bind mount.
func (m *machine) mounted() bool {
	_, there, err := mount.At(m.o.dirs.Agent())
	return err == nil && there
}

// lock locks out other operations until the file is closed.
func (m *machine) lock() (*os.File, error) {
	file, err := os.OpenFile(m.o.dirs.TrialLock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", file.Name(), err), file.Close())
	}
	return file, nil
}

// busy reports whether another process performs an operation.
func (m *machine) busy() bool {
	file, err := m.lock()
	if err == nil {
		_ = file.Close() // which gives up the lock
	}
	return errors.Is(err, unix.EWOULDBLOCK)
}

// spare is the free space of each file system that is left for the agents.
const spare = 16 << 20

// observe collects the facts.
func (m *machine) observe(ctx context.Context) (f facts) {
	dirs := m.o.dirs
	f.record, _ = readRecord(dirs.TrialRecord()) // an unreadable one is none
	f.busy, f.mounted = m.busy(), m.mounted()
	_, err := os.Lstat(dirs.BeforeSwap())
	f.swapped = err == nil
	doc, err := status.Observe(vcap.RunDir.Status())
	f.served = err == nil && doc.Serving()
	f.binary = m.comparable()
	if m.systemd != nil {
		f.systemd, _ = m.systemd.Version(ctx) // one that cannot be asked refuses the start of the trial
	}
	for _, feature := range features.Missing("/") {
		if strings.HasPrefix(feature.Without, "the boot fails") {
			f.missing = append(f.missing, feature.Name)
		}
	}
	f.tasks = m.tasks()
	_, f.migrating, _ = mount.At(dirs.StoreMigrationTarget())
	size := uint64(0)
	if info, err := os.Stat(dirs.TrialAgent()); err == nil {
		size = uint64(info.Size())
	}
	// The script swap copies it beside the old one.
	for dir, need := range map[string]uint64{dirs.BoshBin(): size + spare, dirs.TrialDir(): spare} {
		var of unix.Statfs_t
		if unix.Statfs(dir, &of) == nil {
			f.free = append(f.free, space{dir: dir, free: of.Bavail * uint64(of.Bsize), need: need})
		}
	}
	slices.SortFunc(f.free, func(a, b space) int { return strings.Compare(a.dir, b.dir) })
	return f
}

// comparable fails unless the new binary has the same architecture as the stemcell's agent.
func (m *machine) comparable() error {
	own, err := architecture(m.o.dirs.TrialAgent())
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is missing: deploy the job cambium-agent to this VM first", m.o.dirs.TrialAgent())
	}
	if err != nil {
		return err
	}
	old, err := architecture(m.o.dirs.Agent())
	if err == nil && !bytes.Equal(own, old) {
		err = fmt.Errorf("%s and %s are for different architectures", m.o.dirs.TrialAgent(), m.o.dirs.Agent())
	}
	return err
}

// architecture returns the class, byte order and processor of an ELF program.
func architecture(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read from
	header := make([]byte, 20)
	if _, err := file.ReadAt(header, 0); err != nil || !bytes.HasPrefix(header, []byte("\x7fELF")) {
		return nil, fmt.Errorf("%s is not a program for Linux (ELF)", path)
	}
	return append(header[4:6:6], header[18:]...), nil
}

// tasks returns the methods of running tasks. Of the stemcell's agent it knows only those that a restart would resume.
// If this agent runs, it counts all tasks but the errand that called it.
func (m *machine) tasks() (methods []string) {
	if data, err := os.ReadFile(m.o.dirs.Tasks()); err == nil {
		var others map[string]struct{ Method string }
		if json.Unmarshal(data, &others) == nil {
			for _, t := range others {
				methods = append(methods, t.Method)
			}
		}
	}
	own := 0
	for _, place := range m.o.dirs.Places() {
		if c, err := task.Count(place.TaskRecord()); err == nil && m.mounted() {
			own += c.Running
		}
	}
	if m.o.after == 0 {
		own-- // the errand
	}
	if own > 0 {
		methods = append(methods, strconv.Itoa(own)+" tasks")
	}
	slices.Sort(methods)
	return methods
}

// unitName is the name of the transient unit.
const unitName = "cambium-agent-trial"

// startTime bounds the wait for the background process to take the lock.
const startTime = 10 * time.Second

// background starts the operation in a process that survives the restart of the agent, and waits until that process has
// the lock.
func (m *machine) background(ctx context.Context, operation string) error {
	argv := []string{m.o.dirs.TrialAgent(), "trial", operation, "--after", strconv.Itoa(os.Getpid()),
		"--time", m.o.time.String(), "--delay", m.o.delay.String(), "-b", m.o.dirs.Base()}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	var err error
	if m.systemd != nil {
		err = m.systemd.StartTransient(ctx, unitName, "Trial of the Cambium agent", argv)
	} else {
		_, err = command.Detach(command.Detached{Args: argv, Env: os.Environ()})
	}
	if err != nil {
		return fmt.Errorf("start the trial in the background: %w", err)
	}
	err = watch.Until(ctx, m.o.dirs.TrialRecord(), func() (bool, error) {
		r, _ := readRecord(m.o.dirs.TrialRecord()) // none yet
		return r.After == os.Getpid(), nil
	})
	if err != nil {
		return fmt.Errorf("the trial did not begin in the background; %s has its log: %w", m.o.dirs.TrialLog(), err)
	}
	return nil
}

// runsInstalled reports whether a process runs the file at the agent's path.
func (m *machine) runsInstalled(pid int) bool {
	running, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return false
	}
	installed, err := os.Stat(m.o.dirs.Agent())
	return err == nil && os.SameFile(running, installed)
}

// oldVersion returns the version of the stemcell's agent.
func (m *machine) oldVersion(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	result, err := command.Run(ctx, command.Cmd{Name: m.o.dirs.Agent(), Args: []string{"-v"}})
	if err != nil {
		m.log.WithError(err).Warn("the stemcell's agent does not tell its version")
		return "the stemcell's agent"
	}
	return strings.TrimSpace(string(result.Stdout))
}
