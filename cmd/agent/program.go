package main

import (
	"context"
	"net"
	"os"
	"strings"

	"github.com/sirupsen/logrus"

	"cambium/internal/atomicfile"
	"cambium/internal/vcap"
	"cambium/internal/watch"
	"cambium/jobs/monit"
	"cambium/platform/unit"
)

// program identifies the running program to the service manager, jobs and operators. Its file can be replaced while it
// runs.
type program struct {
	dirs       vcap.Dirs
	supervisor string
	notifier   unit.Notifier
	log        *logrus.Entry
}

// openPort opens the port of monit's alerts before a job can take it, or uses the socket that systemd has kept for this
// process. It returns nil if another process has the port.
func (p program) openPort(ctx context.Context, kept net.Listener) *net.TCPListener {
	if listener, ok := kept.(*net.TCPListener); ok {
		return listener
	}
	listener, err := monit.ListenAlerts(ctx, monit.AlertsAddress)
	if err != nil {
		return nil // Alerts.Run retries, and reports the failure
	}
	p.keepPort(listener)
	return listener
}

// keepPort makes systemd keep the port open while the agent restarts.
func (p program) keepPort(listener *net.TCPListener) {
	if err := p.notifier.StoreSocket(monit.AlertsSocket, listener); err != nil {
		p.log.WithError(err).Warn("systemd cannot keep monit's alert port open while the agent restarts")
	}
	_, _ = p.releasePortIfReplaced() // it may have been replaced before systemd kept the port
}

// programReplaced reports whether the running program's file was replaced.
func programReplaced() bool {
	path, err := os.Readlink(ownProgram)
	return err == nil && strings.HasSuffix(path, replacedMark)
}

// replacedMark is the suffix of a running program's path in /proc if its file no longer exists.
const replacedMark = " (deleted)"

// releasePortWhenReplaced releases the alert port as soon as the agent's program file is replaced, because an agent
// that is killed later cannot do so. It returns after that, or when ctx ends. systemd keeps the socket for the next
// process of the unit, whatever program that is; cloudfoundry/bosh-agent opens the port itself and exits if it cannot.
func (p program) releasePortWhenReplaced(ctx context.Context) {
	path, err := os.Readlink(ownProgram)
	if err == nil {
		err = watch.Until(ctx, strings.TrimSuffix(path, replacedMark), p.releasePortIfReplaced)
	}
	switch {
	case err == nil:
		return
	case ctx.Err() == nil:
		p.log.WithError(err).Warn("cannot watch the agent binary; a replacement is noticed only at shutdown")
		<-ctx.Done()
	}
	_, _ = p.releasePortIfReplaced()
}

// releasePortIfReplaced releases the port if the agent's program was replaced, and reports whether it was. It removes
// the identity files last, so that the port is free once they are gone.
func (p program) releasePortIfReplaced() (replaced bool, _ error) {
	if !programReplaced() {
		return false, nil
	}
	if err := p.notifier.RemoveSocket(monit.AlertsSocket); err != nil {
		p.log.WithError(err).Warn("cannot make systemd release monit's alert port")
	}
	p.withdrawIdentity()
	p.log.Info("the agent's program was replaced")
	return true, nil
}

// identity returns the files in the instance directory that identify the agent to jobs and operators.
func (p program) identity() map[string]string {
	return map[string]string{p.dirs.AgentVersion(): version, p.dirs.AgentSupervisor(): p.supervisor}
}

// showIdentity writes the identity files.
func (p program) showIdentity() error {
	if err := os.MkdirAll(p.dirs.Instance(), 0o755); err != nil {
		return err
	}
	for path, content := range p.identity() {
		if _, err := atomicfile.WriteIfChanged(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// withdrawIdentity removes the identity files, because the next program may not write them.
func (p program) withdrawIdentity() {
	for path := range p.identity() {
		if err := atomicfile.Remove(path); err != nil {
			p.log.WithError(err).Debug("cannot remove a file that identifies this agent")
		}
	}
}
