// Package supervisor runs jobs and answers requests as monit does, but reacts to the end of a process at once and not
// in the next cycle. It reads the control files that releases contain (package monitfile), and runs in a process of its
// own in place of monit.
//
// Services that depend on each other form a chain, with one goroutine that checks and controls them. A tick starts a
// cycle in all chains. Ends of processes and requests are handled in between. event.go decides when a test fires, and
// chain.go what follows.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"cambium/internal/pidfile"
	"cambium/supervisor/monitfile"

	"github.com/sirupsen/logrus"
)

// Version is the version of monit whose behavior and documents are reproduced.
const Version = "5.2.5"

// group is the group of the services that belong to a deployment's jobs.
const group = "vcap"

// Options configures a supervisor.
type Options struct {
	// Patterns are the glob patterns of the control files.
	Patterns []string
	// Cycle is the time between two checks of a service. monit's is 10 s. Grace is the time in which a job may replace
	// a process that has ended. Ours is 2 s.
	Cycle, Grace time.Duration
	// StateFile is the path of the document that survives a restart of the supervisor or the machine.
	StateFile string
	// UserFile holds the credentials of the HTTP interface as "user:password".
	UserFile string
	// MailAddress is the address to which alerts are sent.
	MailAddress string
	Log         *logrus.Entry
}

// Supervisor supervises the services of a machine.
type Supervisor struct {
	Options
	host   string
	reload chan struct{}
	wake   chan struct{} // starts a cycle at once

	mu          sync.Mutex
	services    []*service
	rejected    map[string]*rejection // by path
	incarnation time.Time
	began       time.Time

	saving sync.Mutex
	saved  []byte
	alerts alertQueue
}

// rejection is a control file that cannot be used. Its job appears as a service that fails until it is stopped, like
// any other, because the Director stops an instance before it installs a better file.
type rejection struct {
	error
	off bool
}

// New reads the control files and the state.
func New(o Options) (*Supervisor, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("supervisor: %w", err)
	}
	s := &Supervisor{Options: o, host: host, reload: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		began: time.Now()}
	s.alerts = alertQueue{address: o.MailAddress, log: o.Log, more: make(chan struct{}, 1), delivered: s.saveState}
	known, err := s.readState()
	if err != nil {
		return nil, err
	}
	for _, one := range known.Mails {
		s.alerts.enqueue(one)
	}
	s.load(known)
	return s, nil
}

// Reload makes Run read the control files again. Running processes are not affected.
func (s *Supervisor) Reload() { token(s.reload) }

// StartCycle starts a cycle at once.
func (s *Supervisor) StartCycle() { token(s.wake) }

func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is there already
	}
}

// Run supervises the services until ctx ends. Their processes continue to run.
func (s *Supervisor) Run(ctx context.Context) {
	var sending sync.WaitGroup
	sending.Go(func() { s.alerts.send(ctx, s.Cycle) })
	defer sending.Wait()
	for number := uint64(0); ctx.Err() == nil; {
		number = s.generation(ctx, number)
		if ctx.Err() == nil {
			s.Log.Info("reading the control files again")
			s.load(s.state())
		}
	}
	s.saveState()
}

// generation supervises the current services until ctx ends or a reload is due. It returns the number of the last
// cycle.
func (s *Supervisor) generation(ctx context.Context, number uint64) uint64 {
	ctx, cancel := context.WithCancel(ctx)
	chains := s.chains(ctx)
	var running sync.WaitGroup
	for _, c := range chains {
		running.Go(func() { c.run(ctx) })
	}
	defer running.Wait()
	defer cancel()
	ticker := time.NewTicker(s.Cycle)
	defer ticker.Stop()
	for {
		number++
		t := tick{number, readProcesses()}
		for _, c := range chains {
			select {
			case <-c.ticks: // the chain was busy for a whole cycle
			default:
			}
			c.ticks <- t
		}
		select {
		case <-ctx.Done():
			return number
		case <-s.reload:
			return number
		case <-ticker.C:
		case <-s.wake:
		}
	}
}

// chains groups the services by their dependencies.
func (s *Supervisor) chains(ctx context.Context) (all []*chain) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := map[string]*chain{}
	for _, v := range s.services {
		of[v.Name] = &chain{}
	}
	for _, v := range s.services {
		for _, name := range v.DependsOn {
			from, to := of[name], of[v.Name]
			for other, c := range of {
				if c == from {
					of[other] = to
				}
			}
		}
	}
	for _, v := range s.services {
		c := of[v.Name]
		if c.Supervisor == nil {
			*c = chain{Supervisor: s, done: ctx.Done(), kick: make(chan struct{}, 1), ticks: make(chan tick, 1),
				calls: make(chan func(context.Context))}
			all = append(all, c)
		}
		c.services = append(c.services, v)
		v.kick = c.kick
		c.adopt(v)
		if v.pending != monitfile.Ignore {
			token(c.kick)
		}
	}
	return all
}

// load reads the control files. Known services keep their state and their history.
func (s *Supervisor) load(state state) {
	checks, rejected := readFiles(s.Patterns)
	for path, err := range rejected {
		s.Log.WithError(err).WithField("file",
			path).Error("a control file is invalid; its services are not supervised")
	}
	if !slices.ContainsFunc(checks, func(c monitfile.Check) bool { return c.Type == monitfile.System }) {
		checks = append(checks, monitfile.Check{Type: monitfile.System, Name: "system_" + s.host})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := map[string]*service{}
	for _, v := range s.services {
		known[v.Name] = v
	}
	s.services = nil
	for _, check := range checks {
		v := known[check.Name]
		delete(known, check.Name)
		if v == nil || !reflect.DeepEqual(v.Check, check) {
			before := v
			before.release()
			v = newService(check, &s.mu, state.Services[check.Name])
			v.inherit(before)
		}
		s.services = append(s.services, v)
	}
	for _, gone := range known {
		gone.release()
	}
	before := s.rejected
	s.rejected = map[string]*rejection{}
	for path, err := range rejected {
		s.rejected[path] = &rejection{error: errors.New(cut(err.Error()))}
		if known := before[path]; known == nil || known.Error() != s.rejected[path].Error() {
			s.alerts.add(
				Mail{Service: jobOf(path), Event: eventNames[eventInvalid][0], Action: monitfile.Alert.String(),
					Description: err.Error(), Date: time.Now()},
				s.host,
			)
		}
	}
	// Two documents of one second look the same to the agent, which waits for another incarnation.
	s.incarnation = time.Now()
}

// newService returns a service with its state from before a restart, if there is one.
func newService(check monitfile.Check, mu *sync.Mutex, before *serviceState) *service {
	v := &service{Check: check, mu: mu, histories: map[any]*history{}, stamps: map[string]int64{},
		programs: map[*monitfile.Command]*pidfile.Watch{}, alerted: map[event]uint64{}}
	v.monitor = Initializing
	if before != nil {
		v.starts, v.cycles, v.restarts = before.Starts, before.Cycles, before.Restarts
		if !before.Monitored {
			v.monitor = Off
		}
	} else if check.Mode == monitfile.Manual {
		v.monitor = Off
	}
	return v
}

// inherit keeps what is under way when the check of a service changes: a request, and the time for an unchanged start
// program. The check may only have moved to another line of the file.
func (s *service) inherit(before *service) {
	if before == nil {
		return
	}
	s.pending, s.next = before.pending, before.next
	if s.Pidfile == before.Pidfile && reflect.DeepEqual(s.Start, before.Start) {
		s.starting = before.starting
	}
}

// release closes the watches of a service that is gone.
func (s *service) release() {
	if s == nil {
		return
	}
	s.watch.Close()
	for _, w := range s.programs {
		w.Close()
	}
}

// readFiles reads all control files. It returns those that cannot be used with the reason.
func readFiles(patterns []string) ([]monitfile.Check, map[string]error) {
	texts, rejected := map[string][]byte{}, map[string]error{}
	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			rejected[pattern] = err
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue // removed meanwhile
			}
			if err != nil {
				rejected[path] = err
				continue
			}
			texts[path] = text
		}
	}
	checks, more := parse(texts)
	maps.Copy(rejected, more)
	return checks, rejected
}

// parse parses each control file, and then resolves their dependencies.
func parse(texts map[string][]byte) ([]monitfile.Check, map[string]error) {
	files, rejected := map[string][]monitfile.Check{}, map[string]error{}
	for path, text := range texts {
		checks, err := monitfile.Parse(path, text)
		if err != nil {
			rejected[path] = err
			continue
		}
		files[path] = checks
	}
	checks, more := monitfile.Resolve(files)
	maps.Copy(rejected, more)
	return checks, rejected
}

// CheckFiles returns the errors of control files, in the order of their paths.
func CheckFiles(patterns ...string) error {
	_, rejected := readFiles(patterns)
	return joined(rejected)
}

// CheckTexts returns the errors of control files that do not exist yet, given by path.
func CheckTexts(texts map[string][]byte) error {
	_, rejected := parse(texts)
	return joined(rejected)
}

func joined(rejected map[string]error) error {
	var all []error
	for _, path := range slices.Sorted(maps.Keys(rejected)) {
		all = append(all, rejected[path])
	}
	return errors.Join(all...)
}

var fileName = regexp.MustCompile(`^\d+_(.*)\.monitrc$`)

// jobOf returns the job to which a control file belongs.
func jobOf(path string) string {
	if match := fileName.FindStringSubmatch(filepath.Base(path)); match != nil {
		return match[1]
	}
	return strings.TrimSuffix(filepath.Base(path), ".monitrc")
}

func (s *Supervisor) log(v *service) *logrus.Entry { return s.Log.WithField("service", v.Name) }
