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

// Monitor says whether a service is supervised. The values are those of monit's status documents.
type Monitor int

// A service is Initializing until it was checked for the first time.
const (
	Off Monitor = iota
	On
	Initializing
)

// status is the part of a service's state that other goroutines can read. Only its chain changes it, except for the
// pending action. All changes are made with the mutex held.
type status struct {
	monitor Monitor
	pending monitfile.Verb // a requested action that has not ended
	next    monitfile.Verb // the next action: unmonitor, if that was requested meanwhile
	errors  event
	message string // text of the last error
	// starts and cycles count for tests of the form "3 restarts within 5 cycles".
	starts, cycles int
	restarts       int // restarts by the supervisor, after the service had run
	lastEnd        time.Time
	endReason      string
	looked         time.Time
	process        process // of a process service; zero while it does not run
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
	mu *sync.Mutex // the supervisor's mutex
	status
	kick chan struct{} // the chain's

	// Only the chain's goroutine uses the fields below.
	histories map[any]*history
	watch     *pidfile.Watch
	waiting   bool      // the process has ended, and its pid file is watched
	restarted time.Time // the last restart by the supervisor, after the service had run
	// starting is the end of the time for the start program. The program is not run again before, even if the control
	// files are read again.
	starting time.Time
	skipped  int // cycles since the last check, if only each nth cycle checks the service
	stamps   map[string]int64
	programs map[*monitfile.Command]*pidfile.Watch // running programs of exec actions
	usage    usage
	alerted  map[event]uint64 // the cycle of the last alert for an event
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

// reset forgets the health of a service that is no longer supervised.
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

// supervise starts the supervision of a service that is not supervised.
func (s *service) supervise() {
	s.update(func(v *status) {
		if v.monitor == Off {
			v.monitor = Initializing
		}
	})
}

// pid returns the pid of the service, or 0 if it does not run.
func (s *service) pid(processes processes) int {
	pid, _ := s.find(processes)
	return pid
}

// find returns the service's pid, or 0 if it does not run. If command lines cannot be read, it returns bounded.ErrHangs:
// the service may be running, and must not be started twice.
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

// missing says that no process runs, and why its pid file cannot be used.
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

// runs reports whether the service has a running process. Only process services have one.
func (s *service) runs() bool {
	return s.Type == monitfile.Process && s.pid(nil) != 0
}

// restartTests returns the tests of the form "3 restarts within 5 cycles".
func (s *service) restartTests() (tests []*monitfile.Test) {
	for i := range s.Tests {
		if s.Tests[i].Kind == monitfile.Restarts {
			tests = append(tests, &s.Tests[i])
		}
	}
	return tests
}

// needsCycle reports whether the service has tests beyond the existence of its process, so that a cycle must decide
// whether it is well.
func (s *service) needsCycle() bool {
	return slices.ContainsFunc(s.Tests, func(t monitfile.Test) bool { return t.Kind != monitfile.Restarts })
}
