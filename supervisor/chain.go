package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"time"

	"cambium/internal/command"
	"cambium/internal/pidfile"
	"cambium/internal/watch"
	"cambium/supervisor/monitfile"

	"golang.org/x/sys/unix"
)

// chain is a set of services that depend on each other. One goroutine checks and controls them, so that only one thing
// happens at a time within a chain, and a slow program delays no other chain.
type chain struct {
	*Supervisor
	services []*service // in the order of the control files
	done     <-chan struct{}
	kick     chan struct{}
	ticks    chan tick
	calls    chan func(context.Context)
	cycle    uint64
}

// tick starts a cycle.
type tick struct {
	number    uint64
	processes processes
}

// run checks and controls the services until ctx ends.
func (c *chain) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.kick:
			c.requested(ctx)
		case call := <-c.calls:
			call(ctx)
		case t := <-c.ticks:
			c.cycle = t.number
			c.requested(ctx)
			for _, s := range c.services {
				if ctx.Err() == nil {
					c.checkService(ctx, s, t.processes)
				}
			}
		}
		c.saveState()
	}
}

// requested carries out the pending requests.
func (c *chain) requested(ctx context.Context) {
	for _, s := range c.services {
		if verb := s.currentStatus().pending; verb != monitfile.Ignore && ctx.Err() == nil {
			c.control(ctx, s, verb)
			if ctx.Err() == nil {
				s.update(func(v *status) { v.pending, v.next = v.next, monitfile.Ignore })
			}
		}
	}
}

// control carries out an action on a service, and what it implies for dependent services.
func (c *chain) control(ctx context.Context, s *service, verb monitfile.Verb) {
	switch verb {
	case monitfile.Start:
		if s.runs() {
			s.supervise()
			c.settle(ctx, s)
			return
		}
		stopped := c.stopDependants(ctx, s)
		c.startAgain(ctx, append(stopped, s))
	case monitfile.Stop:
		for _, d := range c.dependants(s) {
			c.stop(ctx, d)
			d.reset()
		}
		c.stop(ctx, s)
		s.reset()
	case monitfile.Restart:
		if s.Start == nil {
			s.supervise()
			c.log(s).Warn("cannot restart the service: its control file has no start program")
			return
		}
		stopped := c.stopDependants(ctx, s)
		s.supervise()
		if c.stop(ctx, s) {
			c.startAgain(ctx, append(stopped, s))
		}
	case monitfile.Monitor:
		c.superviseWithPrerequisites(s)
		c.settle(ctx, s)
	case monitfile.Unmonitor:
		for _, d := range c.dependants(s) {
			d.reset()
		}
		s.reset()
	}
}

// dependants returns the services that depend on s, directly or not. Each comes before those on which it depends.
func (c *chain) dependants(s *service) (all []*service) {
	seen := map[*service]bool{s: true}
	var visit func(*service)
	visit = func(of *service) {
		for _, d := range c.services {
			if !seen[d] && slices.Contains(d.DependsOn, of.Name) {
				seen[d] = true
				visit(d)
				all = append(all, d)
			}
		}
	}
	visit(s)
	return all
}

// prerequisites returns the services on which s depends directly.
func (c *chain) prerequisites(s *service) (all []*service) {
	for _, p := range c.services {
		if slices.Contains(s.DependsOn, p.Name) {
			all = append(all, p)
		}
	}
	return all
}

func (c *chain) superviseWithPrerequisites(s *service) {
	for _, p := range c.prerequisites(s) {
		c.superviseWithPrerequisites(p)
	}
	s.supervise()
}

// stopDependants stops the services that depend on s, and returns those that must be started again afterwards. It skips
// services that are neither supervised nor running.
func (c *chain) stopDependants(ctx context.Context, s *service) (stopped []*service) {
	for _, d := range c.dependants(s) {
		if d.currentStatus().monitor != Off || d.runs() {
			c.stop(ctx, d)
			stopped = append(stopped, d)
		}
	}
	return stopped
}

// startAgain starts services in reverse order, because stopDependants has stopped them in order.
func (c *chain) startAgain(ctx context.Context, stopped []*service) {
	visited := map[*service]bool{}
	for _, s := range slices.Backward(stopped) {
		c.start(ctx, s, visited)
	}
}

// start starts a service and waits for its process. It first starts the services on which this one depends. Each is
// visited once.
func (c *chain) start(ctx context.Context, s *service, visited map[*service]bool) {
	if visited[s] {
		return
	}
	visited[s] = true
	for _, p := range c.prerequisites(s) {
		c.start(ctx, p, visited)
	}
	s.supervise()
	if s.Start == nil || s.runs() || ctx.Err() != nil {
		c.settle(ctx, s)
		return
	}
	if !time.Now().Before(s.starting) {
		c.log(s).WithField("program", s.Start.Args[0]).Info("start")
		if _, err := c.launch(s, s.Start, "Started", "Started"); err != nil {
			c.executed(ctx, s, failed, "failed to start: "+err.Error())
			return
		}
		if s.Type != monitfile.Process {
			return
		}
		s.starting = time.Now().Add(s.Start.Timeout)
	}
	runs := c.until(ctx, s, time.Until(s.starting), func() bool { return s.pid(nil) != 0 })
	if runs || ctx.Err() == nil {
		s.starting = time.Time{}
	}
	if !runs {
		if ctx.Err() == nil {
			c.executed(ctx, s, failed, fmt.Sprintf(
				"failed to start: %s does not name a running process after %v", cmp.Or(s.Pidfile, "its pattern"),
				s.Start.Timeout))
		}
		return
	}
	c.executed(ctx, s, passed, "started")
	c.settle(ctx, s)
}

// stop runs the stop program, unless there is none or no process runs, and waits until the process and the program have
// ended. It reports whether the service is stopped.
func (c *chain) stop(ctx context.Context, s *service) bool {
	// Its end is wanted, and not an event.
	s.watch.Close()
	s.watch, s.waiting = nil, false
	if s.Stop == nil || s.Type == monitfile.Process && !s.runs() || ctx.Err() != nil {
		return ctx.Err() == nil
	}
	c.log(s).WithField("program", s.Stop.Args[0]).Info("stop")
	program, err := c.launch(s, s.Stop, "Stopped", "Stopped")
	if err != nil {
		c.executed(ctx, s, failed, "failed to stop: "+err.Error())
		return false
	}
	deadline := time.Now().Add(s.Stop.Timeout)
	stopped := s.Type != monitfile.Process || c.until(ctx, s, s.Stop.Timeout, func() bool { return s.pid(nil) == 0 })
	// A start must not meet the program: it may be about to remove the pid file, which would be the new one then.
	if stopped && !awaitEnd(ctx, program, time.Until(deadline)) {
		stopped = s.Type == monitfile.Process
	}
	if !stopped {
		if ctx.Err() == nil {
			c.executed(ctx, s, failed,
				fmt.Sprintf("failed to stop: still running after %v", s.Stop.Timeout))
		}
		return false
	}
	s.update(func(v *status) {
		v.lastEnd, v.endReason = time.Now(), "stopped"
		if v.pending == monitfile.Ignore && v.errors != 0 {
			v.endReason += ": " + v.message
		}
	})
	c.executed(ctx, s, passed, "stopped")
	return true
}

// awaitEnd waits until a program has ended, or for timeout. It reports whether the program has ended.
func awaitEnd(ctx context.Context, pid int, timeout time.Duration) bool {
	ended := make(chan struct{})
	w, err := pidfile.Follow(pid, func() { close(ended) })
	if err != nil {
		return true // it has ended, or the kernel cannot tell
	}
	defer w.Close()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	select {
	case <-ended:
		return true
	case <-ctx.Done():
		return false
	}
}

// executed records the result of a start or stop program.
func (c *chain) executed(ctx context.Context, s *service, found outcome, text string) {
	c.post(ctx, s, "execution", defaultRule(eventExec, monitfile.Alert), found, text)
}

// settle records and watches the process of a service that was just started or is now supervised. If the control file
// has no further tests, the service is then known to be well.
func (c *chain) settle(ctx context.Context, s *service) {
	if s.Type != monitfile.Process || s.currentStatus().monitor == Off {
		return
	}
	all := readProcesses()
	pid := s.pid(all)
	if pid == 0 {
		return
	}
	c.follow(s, pid)
	s.update(func(v *status) {
		v.process, v.looked = all[pid], time.Now()
		v.process.pid = pid
		if v.monitor == Initializing && !s.needsCycle() {
			v.monitor = On
		}
		v.errors &^= eventNonexist
	})
	// Its next end is another event, also before the next cycle.
	if h := s.histories["existence"]; h != nil && h.failed {
		c.post(ctx, s, "existence", c.existence(s), passed, fmt.Sprintf("process is running with pid %d", pid))
	}
}

// until waits until done returns true, or for timeout. It checks when the pid file changes, when the process in it ends
// and, as monit does, each second: a file that its writer keeps open, and a new command line, cause no event.
func (c *chain) until(ctx context.Context, s *service, timeout time.Duration, done func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for !done() && ctx.Err() == nil {
		turn, next := context.WithTimeout(ctx, time.Second)
		var w *pidfile.Watch
		if pid, err := pidfile.Read(s.Pidfile); err == nil && pidfile.Alive(pid) {
			w, _ = pidfile.Follow(pid, next) // none: it has ended
		}
		awaitChange(turn, s.Pidfile, done)
		next()
		w.Close()
	}
	return done()
}

// awaitChange waits for a change of a file after which holds returns true, or until ctx ends.
func awaitChange(ctx context.Context, path string, holds func() bool) {
	// Where there is no file, or the kernel has no room for another watch, the time has to do.
	if path == "" || watch.Until(ctx, path, func() (bool, error) { return holds(), nil }) != nil {
		<-ctx.Done()
	}
}

// follow watches a process of the service.
func (c *chain) follow(s *service, pid int) {
	if s.watch != nil && s.watch.Pid == pid {
		return
	}
	s.watch.Close()
	s.watch, s.waiting = nil, false
	var w *pidfile.Watch
	w, err := pidfile.Follow(pid, func() { c.call(func(ctx context.Context) { c.ended(ctx, s, w) }) })
	if err != nil {
		return // it has ended, or the kernel cannot tell: the next cycle sees it
	}
	s.watch = w
}

// call runs a function in the chain's goroutine.
func (c *chain) call(do func(context.Context)) {
	select {
	case c.calls <- do:
	case <-c.done:
	}
}

// ended handles the end of a process. A release may replace the process itself, so the pid file is watched for a while.
func (c *chain) ended(ctx context.Context, s *service, w *pidfile.Watch) {
	if w == nil || s.watch != w {
		return // it was stopped, or has been replaced
	}
	s.watch, s.waiting = nil, true
	at := time.Now()
	go func() {
		turn, cancel := context.WithTimeout(ctx, c.Grace)
		defer cancel()
		var readErr error
		awaitChange(turn, s.Pidfile, func() bool {
			var now int
			now, readErr = pidfile.Read(s.Pidfile)
			return readErr != nil || now != w.Pid && pidfile.Alive(now)
		})
		reason := w.Reason() // which the kernel knows once its parent has waited for it
		w.Close()
		c.call(func(ctx context.Context) {
			s.update(func(v *status) { v.lastEnd, v.endReason = at, reason })
			c.replaced(ctx, s, readErr)
		})
	}()
}

// replaced checks whether the process was replaced, when its pid file has changed or the grace period is over.
func (c *chain) replaced(ctx context.Context, s *service, readErr error) {
	if !s.waiting || s.currentStatus().monitor == Off {
		return
	}
	s.waiting = false
	switch pid := s.pid(nil); {
	case pid != 0:
		c.newPid(ctx, s, pid)
		c.settle(ctx, s)
	case errors.Is(readErr, os.ErrNotExist), time.Since(s.restarted) < c.Cycle:
		// Its file was removed, which a script does that is about to start another one; or it was restarted a
		// moment ago. The next cycle decides.
		s.update(func(v *status) { v.process = process{} })
	default:
		c.missing(ctx, s)
	}
}

// newPid records that the process was replaced.
func (c *chain) newPid(ctx context.Context, s *service, pid int) {
	if old := s.currentStatus().process.pid; old != 0 && old != pid {
		c.post(ctx, s, "pid", defaultRule(eventPid, monitfile.Alert), changed,
			fmt.Sprintf("process PID changed from %d to %d", old, pid))
	}
}

// missing records that the process or file of a service is missing.
func (c *chain) missing(ctx context.Context, s *service) {
	s.update(func(v *status) { v.process = process{} })
	text := s.Path + " doesn't exist"
	if s.Type == monitfile.Process {
		text = s.missing()
	}
	c.post(ctx, s, "existence", c.existence(s), failed, text)
}

// existence returns the rule for a missing process or file: restart, unless the control file has another.
func (c *chain) existence(s *service) rule {
	for _, t := range s.Tests {
		if t.Kind == monitfile.NotExist {
			return ruleOf(eventNonexist, t)
		}
	}
	return defaultRule(eventNonexist, monitfile.Restart)
}

// post records the outcome of a check. It sends an alert if the state of the test has changed, and runs the actions
// that are due. key identifies the test.
func (c *chain) post(ctx context.Context, s *service, key any, r rule, found outcome, text string) {
	text = cut(text)
	h := s.histories[key]
	if h == nil {
		h = &history{}
		s.histories[key] = h
	}
	change, act := h.add(found, r)
	if found == passed {
		if change {
			s.update(func(v *status) { v.errors &^= r.event })
			c.alert(s, r.event, found, r.after.Verb, text)
			c.act(ctx, s, r.after, eventNames[r.event][index(found)], text)
		}
		return
	}
	if !act {
		return
	}
	s.update(func(v *status) {
		if found == failed {
			v.errors |= r.event
			v.message = text
		}
	})
	if change {
		c.alert(s, r.event, found, r.then.Verb, text)
	}
	c.act(ctx, s, r.then, eventNames[r.event][index(found)], text)
}

// act carries out the action of a test.
func (c *chain) act(ctx context.Context, s *service, a monitfile.Action, event, text string) {
	switch a.Verb {
	case monitfile.Ignore, monitfile.Alert:
		return
	case monitfile.Exec:
		c.exec(s, a.Exec, event, text)
		return
	case monitfile.Start, monitfile.Restart:
		if s.currentStatus().monitor == On {
			s.restarted = time.Now()
		}
		s.update(func(v *status) {
			if v.monitor == On {
				v.restarts++
			}
			if len(s.restartTests()) > 0 {
				v.starts++
			}
		})
	}
	if s.Mode == monitfile.Passive && a.Verb != monitfile.Unmonitor {
		return
	}
	c.control(ctx, s, a.Verb)
}

// exec runs the program of an action, unless it is still running.
func (c *chain) exec(s *service, program *monitfile.Command, event, text string) {
	if _, runs := s.programs[program]; runs {
		return
	}
	pid, err := c.launch(s, program, event, text)
	if err != nil {
		c.log(s).WithError(err).Error("cannot execute a test's program")
		return
	}
	c.followProgram(s, program, pid)
}

// followProgram waits for the end of an action's program.
func (c *chain) followProgram(s *service, program *monitfile.Command, pid int) {
	var w *pidfile.Watch
	w, err := pidfile.Follow(pid, func() {
		c.call(func(context.Context) {
			w.Close()
			delete(s.programs, program)
		})
	})
	if err != nil {
		delete(s.programs, program) // it has ended already
		return
	}
	s.programs[program] = w
}

// adopt moves a service to this chain after the control files were read again. The next tick watches its process again.
func (c *chain) adopt(s *service) {
	s.watch.Close()
	s.watch, s.waiting = nil, false
	for program, w := range s.programs {
		w.Close()
		c.followProgram(s, program, w.Pid)
	}
}

// launch starts a program of a service with monit's environment.
func (c *chain) launch(s *service, program *monitfile.Command, event, text string) (pid int, err error) {
	uid, gid, err := account(program)
	if err != nil {
		return 0, err
	}
	if err := unix.Access(program.Args[0], unix.X_OK); err != nil {
		return 0, &os.PathError{Op: "execute", Path: program.Args[0], Err: err}
	}
	return command.Detach(command.Detached{Args: program.Args, Env: c.environment(s, event, text), UID: uid, GID: gid})
}

// environment returns the whole environment of a program. Like monit, it passes on no other variables.
func (c *chain) environment(s *service, event, text string) []string {
	env := []string{"PATH=/bin:/usr/bin:/sbin:/usr/sbin", "MONIT_DATE=" + time.Now().Format(time.RFC1123Z),
		"MONIT_SERVICE=" + s.Name, "MONIT_HOST=" + c.host, "MONIT_EVENT=" + event, "MONIT_DESCRIPTION=" + text}
	if zone, set := os.LookupEnv("TZ"); set {
		env = append(env, "TZ="+zone)
	}
	if s.Type == monitfile.Process {
		p := s.currentStatus().process
		env = append(env, fmt.Sprintf("MONIT_PROCESS_PID=%d", p.pid), fmt.Sprintf("MONIT_PROCESS_MEMORY=%d",
			p.kilobytes),
			fmt.Sprintf("MONIT_PROCESS_CHILDREN=%d", p.children), fmt.Sprintf("MONIT_PROCESS_CPU_PERCENT=%.1f", p.cpu))
	}
	return env
}

// account returns the ids of a program's user and group, which are names or numbers.
func account(program *monitfile.Command) (uid, gid int, err error) {
	if program.User != "" {
		if uid, err = strconv.Atoi(program.User); err != nil {
			found, err := user.Lookup(program.User)
			if err != nil {
				return 0, 0, err
			}
			if uid, err = strconv.Atoi(found.Uid); err != nil {
				return 0, 0, err
			}
		}
	}
	if program.Group != "" {
		if gid, err = strconv.Atoi(program.Group); err != nil {
			found, err := user.LookupGroup(program.Group)
			if err != nil {
				return 0, 0, err
			}
			if gid, err = strconv.Atoi(found.Gid); err != nil {
				return 0, 0, err
			}
		}
	}
	return uid, gid, nil
}
