package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/atomicfile"
	"cambium/internal/command"
	"cambium/internal/oneline"
	"cambium/internal/pidfile"
	"cambium/internal/retry"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/internal/watch"
	"cambium/jobs/monit"
	"cambium/platform/mount"
	"cambium/supervisor"
)

// Time limits.
const (
	endTime     = time.Minute     // for the end of the command that has started this process
	restartTime = 2 * time.Minute // for the stemcell's agent to run again
	steadyTime  = 5 * time.Second // for which it must then keep running
	alertTime   = 3 * time.Minute // for an agent to accept the alert
	glance      = 250 * time.Millisecond
)

// later performs the operation in the background process, after the command that started it has ended.
func (m *machine) later(ctx context.Context, operation string) (string, error) {
	if err := os.MkdirAll(filepath.Dir(m.o.dirs.TrialLog()), 0o750); err != nil {
		return "", err
	}
	log, err := os.OpenFile(m.o.dirs.TrialLog(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return "", err
	}
	defer func() { _ = log.Close() }() // the last line is logged
	m.log.Logger.SetOutput(io.MultiWriter(m.log.Logger.Out, log))
	m.log.Logger.SetFormatter(
		&logrus.TextFormatter{DisableColors: true, FullTimestamp: true, TimestampFormat: time.RFC3339})
	locked, err := m.lock()
	if err != nil {
		return "", err
	}
	defer func() { _ = locked.Close() }() // which gives up the lock
	r, _ := readRecord(m.o.dirs.TrialRecord())
	if operation == try {
		r = Record{State: scheduled, Agent: m.version, Before: m.oldVersion(ctx)}
	}
	r.After = m.o.after
	if err := m.record(r); err != nil {
		return "", err
	}
	if err := m.await(ctx); err != nil {
		return "", err
	}
	f := m.observe(ctx)
	f.busy = false // it is this process
	switch refused := refusal(operation, f); {
	case refused != nil && operation == back:
		return "", refused
	case refused != nil:
		r.State, r.Reason = failed, refused.Error()
	case operation == try:
		r = m.try(ctx, r)
	default:
		r = m.back(ctx, r)
	}
	err = m.record(r)
	if alertErr := m.alert(context.WithoutCancel(ctx), r); alertErr != nil {
		m.log.WithError(alertErr).Warn("cannot send the alert")
		if r.State == failed || r.State == ended {
			err = errors.Join(err, fmt.Errorf("the stemcell's agent does not take alerts: %w", alertErr))
		}
	}
	return r.String(), err
}

// record writes and logs the state of the operation.
func (m *machine) record(r Record) error {
	r.Time = time.Now().UTC().Truncate(time.Second)
	m.log.WithFields(logrus.Fields{"state": r.State, "reason": r.Reason}).Info("trial")
	return r.write(m.o.dirs.TrialRecord())
}

// await waits until the command that started this process has ended, and then for the delay.
func (m *machine) await(ctx context.Context) error {
	over := make(chan struct{})
	followed, err := pidfile.Follow(m.o.after, func() { close(over) })
	switch {
	case errors.Is(err, os.ErrProcessDone):
	case err != nil:
		return err
	default:
		defer followed.Close()
		ctx, cancel := context.WithTimeout(ctx, endTime)
		defer cancel()
		select {
		case <-over:
		case <-ctx.Done():
			return fmt.Errorf("process %d does not end: %w", m.o.after, context.Cause(ctx))
		}
	}
	return retry.Sleep(ctx, m.o.delay)
}

// targets returns the paths of the stemcell's agent, which may have a second hard link.
func (m *machine) targets() []string {
	first, second := m.o.dirs.Agent(), m.o.dirs.StemcellFile("bosh-enable-monit-access")
	if _, err := os.Stat(second); err != nil {
		return []string{first}
	}
	return []string{second, first}
}

// mount mounts this agent over the stemcell's.
func (m *machine) mount(ctx context.Context) error {
	// A name of its own: the job may replace the other while this one runs.
	tried := m.o.dirs.TrialTried()
	if err := atomicfile.Remove(tried); err != nil {
		return err
	}
	if err := os.Link(m.o.dirs.TrialAgent(), tried); err != nil {
		return err
	}
	for _, target := range m.targets() {
		if err := mount.Bind(ctx, tried, target); err != nil {
			return err
		}
	}
	return nil
}

// unmount removes this agent's mounts, which uncovers the stemcell's agent.
func (m *machine) unmount() error {
	var errs []error
	for _, target := range m.targets() {
		errs = append(errs, mount.Detach(target, func([]mount.Process) {}))
	}
	return errors.Join(errs...)
}

// try mounts this agent over the stemcell's, restarts the service and judges the result.
func (m *machine) try(ctx context.Context, r Record) Record {
	r.State, r.Reason = running, ""
	err := m.record(r)
	if err == nil {
		err = m.mount(ctx)
	}
	reason := ""
	if err == nil {
		reason = m.judge(ctx)
	} else {
		reason = err.Error()
	}
	if reason == "" {
		r.State = confirmed
		return r
	}
	m.log.WithField("reason", reason).Warn("going back to the stemcell's agent")
	r.State, r.Reason = failed, reason
	if err := m.restore(context.WithoutCancel(ctx)); err != nil {
		r.Reason += "; and the way back failed: " + err.Error()
	}
	return r
}

// judge restarts the service, which now runs this agent. It returns why the trial has failed, or "".
func (m *machine) judge(ctx context.Context) string {
	began := time.Now()
	restart, cancel := context.WithTimeout(ctx, m.o.time)
	defer cancel()
	if err := m.service.Restart(restart, m.name); err != nil {
		m.log.WithError(err).Warn("restart") // what has come of it is seen below
	}
	changes, err := watch.Listen(0, func([]byte) bool { return true })
	if err != nil {
		return err.Error()
	}
	defer changes.Close()
	tick := time.NewTicker(glance)
	defer tick.Stop()
	var s sight
	for {
		// Neither need be there yet.
		_ = changes.Add(filepath.Dir(vcap.RunDir.Status()))
		_ = changes.Add(filepath.Join("/etc/service", m.name, "supervise"))
		m.updateSight(ctx, &s)
		s.since = time.Since(began)
		if over, reason := judge(s, m.o.time); over {
			return reason
		}
		select {
		case <-changes.Events:
		case <-tick.C:
		case <-ctx.Done():
			return "the trial was ended"
		}
	}
}

// updateSight updates what was observed of the new agent.
func (m *machine) updateSight(ctx context.Context, s *sight) {
	state, err := m.service.State(ctx, m.name)
	if err != nil {
		return
	}
	if state.MainPID != 0 && s.pid != 0 && state.MainPID != s.pid {
		s.ends++
	}
	if state.MainPID != 0 {
		s.pid, s.ours = state.MainPID, m.runsInstalled(state.MainPID)
	}
	s.ends = max(s.ends, state.Restarts)
	if state.Active == "failed" {
		s.ends = maxEnds + 1 // systemd has given it up
	}
	s.doc = nil
	if doc, err := status.Observe(vcap.RunDir.Status()); err == nil && doc.PID == state.MainPID {
		s.doc = &doc
	}
}

// back restarts the stemcell's agent, from a trial or from an agent that was kept.
func (m *machine) back(ctx context.Context, r Record) Record {
	r.State, r.Reason = ended, "on request"
	if _, err := os.Lstat(m.o.dirs.BeforeSwap()); err == nil {
		if err := m.swap(ctx, "--back"); err != nil {
			r.State, r.Reason = failed, err.Error()
			return r
		}
	}
	if err := m.restore(ctx); err != nil {
		r.State, r.Reason = failed, err.Error()
	}
	return r
}

// restore uncovers the stemcell's agent, restarts it and checks that it keeps running.
func (m *machine) restore(ctx context.Context) error {
	if err := m.unmount(); err != nil {
		return err
	}
	m.clean(ctx)
	ctx, cancel := context.WithTimeout(ctx, restartTime)
	defer cancel()
	if m.systemd != nil && m.service == service(m.systemd) {
		if err := m.systemd.ResetFailed(ctx, m.name); err != nil {
			m.log.WithError(err).Warn("the restart may be refused")
		}
	}
	if err := m.service.Restart(ctx, m.name); err != nil {
		m.log.WithError(err).Warn("restart") // what has come of it is seen below
	}
	pid, since := 0, time.Time{}
	for {
		state, err := m.service.State(ctx, m.name)
		switch {
		case err != nil || state.MainPID == 0 || !m.runsInstalled(state.MainPID):
			pid = 0
		case state.MainPID != pid:
			pid, since = state.MainPID, time.Now()
		case time.Since(since) >= steadyTime:
			return nil
		}
		if retry.Sleep(ctx, glance) != nil {
			return errors.New("the stemcell's agent does not run; look at its log, or recreate the VM")
		}
	}
}

// clean removes files of this agent that would affect the stemcell's agent: those that identify it, and the drop-in
// that replaces monit with its supervisor.
func (m *machine) clean(ctx context.Context) {
	dropIn := vcap.RunDir.MonitDropIn()
	reload := atomicfile.Exists(dropIn) && m.systemd != nil
	for _, path := range []string{m.o.dirs.AgentVersion(), m.o.dirs.AgentSupervisor(), dropIn} {
		if err := atomicfile.Remove(path); err != nil {
			m.log.WithError(err).Warn("cannot remove a file of this agent")
		}
	}
	if reload {
		if err := m.systemd.ReloadUnits(ctx, monit.UnitName, dropIn); err != nil {
			m.log.WithError(err).Warn("systemd does not forget this agent's supervisor")
		}
	}
}

// installAgent installs this agent in place of the stemcell's. The running process continues, since its binary is the
// same.
func (m *machine) installAgent(ctx context.Context) (string, error) {
	r, err := readRecord(m.o.dirs.TrialRecord())
	if err != nil {
		return "", err
	}
	if err := m.unmount(); err != nil {
		return "", err
	}
	if err := m.swap(ctx, m.o.dirs.TrialTried()); err != nil {
		return "", errors.Join(err, m.mount(ctx))
	}
	r.State, r.Reason = kept, ""
	if err := m.record(r); err != nil {
		return "", err
	}
	return r.String(), nil
}

// swap runs the script swap of the stemcell builder.
func (m *machine) swap(ctx context.Context, argument string) error {
	_, err := command.Run(ctx, command.Cmd{Name: m.o.dirs.TrialSwap(), Args: []string{"/", argument}})
	return err
}

// alert sends the outcome in the format of monit's mails, which both agents forward. It retries until an agent accepts
// it.
func (m *machine) alert(ctx context.Context, r Record) error {
	event := "execution changed"
	if r.State == failed {
		event = "execution failed"
	}
	now := time.Now()
	mail := supervisor.Mail{ID: fmt.Sprintf("%d.trial@cambium-agent", now.UnixNano()), Service: "bosh-agent",
		Event: event, Action: "trial", Date: now, Description: oneline.Of(r.String())}
	ctx, cancel := context.WithTimeout(ctx, alertTime)
	defer cancel()
	return retry.Do(ctx, retry.Backoff{Min: time.Second, Max: 5 * time.Second}, func(ctx context.Context) error {
		return supervisor.SendMail(ctx, monit.AlertsAddress, mail)
	})
}
