package supervisor

import (
	"errors"
	"io/fs"
	"slices"
	"sync"
	"time"

	"cambium/internal/bounded"
	"cambium/internal/pidfile"
	"cambium/supervisor/monitfile"
)

// Monitor says whether a service is supervised. The numbers are those of monit's status documents.
type Monitor int

// A service is Initializing until it has been looked at once.
const (
	Off Monitor = iota
	On
	Initializing
)

// status is the part of a service's state that others can see. Only its chain changes it, except for the pending
// action; all changes are made under the mutex.
type status struct {
	monitor Monitor
	pending monitfile.Verb // an action that was asked for and has not ended
	next    monitfile.Verb // what follows it: unmonitor, if that was asked for meanwhile
	errors  event
	message string // of the error that came last
	// starts and cycles count for tests of the form "3 restarts within 5 cycles".
	starts, cycles int
	restarts       int // by itself, after it had run
	lastEnd        time.Time
	endReason      string
	looked         time.Time
	process        process // of a service that is a process; zero while it does not run
	connected      []connected
}

// connected is the result of a connection test.
type connected struct {
	endpoint monitfile.Endpoint
	ok       bool
	took     time.Duration
}

type service struct {
	monitfile.Check
	mu *sync.Mutex // the supervisor's
	status
	kick chan struct{} // of its chain

	// Only the chain's goroutine uses these.
	histories map[any]*history
	watch     *pidfile.Watch
	waiting   bool      // a process has ended, and its pid file is watched
	restarted time.Time // by itself, after it had run
	// starting is until when its start program has time: it is not run again if the files are read meanwhile.
	starting time.Time
	skipped  int // cycles, of a service that is looked at every nth
	stamps   map[string]int64
	programs map[*monitfile.Command]*pidfile.Watch // running programs of exec
	usage    usage
	alerted  map[event]uint64 // the cycle of the last alert
}

// update changes the status.
func (s *service) update(change func(*status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.status)
}

// currentStatus returns a copy of the status.
func (s *service) currentStatus() status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// reset forgets what is known about the health of a service: it is not supervised anymore.
func (s *service) reset() {
	s.histories = map[any]*history{}
	s.watch.Close()
	s.watch, s.waiting, s.stamps = nil, false, map[string]int64{}
	s.restarted, s.starting = time.Time{}, time.Time{}
	s.update(func(v *status) {
		v.monitor, v.errors, v.message, v.starts, v.cycles = Off, 0, "", 0, 0
		v.process, v.connected = process{}, nil
	})
}

// supervise begins to supervise a service that was not.
func (s *service) supervise() {
	s.update(func(v *status) {
		if v.monitor == Off {
			v.monitor = Initializing
		}
	})
}

// pid is the process of the service, or 0 if none runs.
func (s *service) pid(processes processes) int {
	pid, _ := s.find(processes)
	return pid
}

// find is pid, with bounded.ErrHangs where that cannot be known: a process that runs is not started again.
func (s *service) find(processes processes) (pid int, err error) {
	if s.Matching != nil {
		pid, err = processes.matching(s.Matching)
	} else {
		pid, err = pidfile.Read(s.Pidfile)
	}
	if pid == 0 && errors.Is(err, bounded.ErrHangs) {
		// As long as it lives.
		if pid = s.currentStatus().process.pid; pid == 0 && s.Matching != nil {
			return 0, err
		}
	}
	if !pidfile.Alive(pid) {
		return 0, nil
	}
	return pid, nil
}

// missing says that no process runs, and why if there may be one.
func (s *service) missing() string {
	const text = "process is not running"
	if s.Matching != nil {
		return text
	}
	if _, err := pidfile.Read(s.Pidfile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return text + ": " + err.Error()
	}
	return text
}

// runs reports whether a process service runs; other services have no process.
func (s *service) runs() bool {
	return s.Type == monitfile.Process && s.pid(nil) != 0
}

// restartTests are the tests of the form "3 restarts within 5 cycles".
func (s *service) restartTests() (tests []*monitfile.Test) {
	for i := range s.Tests {
		if s.Tests[i].Kind == monitfile.Restarts {
			tests = append(tests, &s.Tests[i])
		}
	}
	return tests
}

// needsCycle reports whether tests decide if a service is well, beyond the existence of its process.
func (s *service) needsCycle() bool {
	return slices.ContainsFunc(s.Tests, func(t monitfile.Test) bool { return t.Kind != monitfile.Restarts })
}
