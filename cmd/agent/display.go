package main

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"

	"cambium/agent"
	"cambium/bootstrap"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/jobs/logs"
	"cambium/platform/features"
	"cambium/platform/unit"
	"cambium/storage"
)

// display shows how the agent is: in the status, to the service manager, on the consoles.
type display struct {
	log         *logrus.Entry
	rec         *status.Recorder
	history     status.History
	serviceLine *status.ServiceLine
	announcer   bootstrap.Announcer
	// missing are the features that kernel and container engine lack. The agent starts without them: a boot step that
	// needs one fails by itself. They are asked for beside the boot: a question may have the kernel load a module.
	missing func() string
	// collections counts the long collections of logs, to name them.
	collections atomic.Int64
}

func newDisplay(o runOptions, port string, rec *status.Recorder, notifier unit.Notifier, log *logrus.Entry) *display {
	line := &status.ServiceLine{Send: notifier.Status, Log: log}
	d := &display{log: log, rec: rec, history: status.History{Path: vcap.New(o.base).Boots(), Of: rec, Log: log},
		serviceLine: line, announcer: bootstrap.Announcer{Root: "/", Log: log, Notify: line.Show, Port: port}}
	d.missing = sync.OnceValue(func() string {
		if o.dummy() {
			return ""
		}
		return features.Describe(features.Missing("/"))
	})
	return d
}

// write changes the status, and has it on disk.
func (d *display) write(change func(*status.Document)) {
	if err := errors.Join(d.rec.Update(change), d.rec.Flush()); err != nil {
		d.log.WithError(err).Warn("cannot write the status")
	}
}

// progress shows how far a long operation is.
func (d *display) progress(name string, p status.Progress) {
	if err := d.rec.SetProgress(name, p); err != nil {
		d.log.WithError(err).Debug("cannot write the status")
	}
}

// showState passes on to the service manager what an agent that serves requests is, and how its bus is.
func (d *display) showState() {
	if doc := d.rec.Snapshot(); doc.Served() {
		d.serviceLine.Show(fmt.Sprintf("STATUS=%s; bus: %s", doc.State, doc.Bus))
	}
}

// showWithheld puts into the status why no job may be started.
func (d *display) showWithheld(reason string) {
	if _, err := d.rec.SetWarning(status.JobsWithheld, reason); err != nil {
		d.log.WithError(err).Warn("cannot write the status")
	}
	d.write(func(doc *status.Document) {
		switch {
		case reason != "" && doc.State == status.Ready:
			doc.State = status.Degraded
		case reason == "" && doc.State == status.Degraded && len(doc.Warnings) == 0:
			doc.State = status.Ready
		}
	})
}

// showWork puts the check or the mount of a file system that takes long into the status.
func (d *display) showWork(text string) { d.progress("disk", status.Progress{Text: text}) }

// showMigration puts the progress of a migration into the status.
func (d *display) showMigration(p storage.MigrationProgress) {
	d.progress("migrate_disk", status.Progress{Text: p.String(), Done: p.Bytes, Total: p.TotalBytes, Files: p.Files,
		Rate: p.Rate(), Remaining: int64(p.Remaining().Seconds())})
}

// collection puts the progress of one long collection of logs into the status. Several can be under
// way.
func (d *display) collection() func(logs.Progress) {
	name := fmt.Sprintf("collect_logs %d", d.collections.Add(1))
	return func(p logs.Progress) {
		d.progress(name, status.Progress{Text: p.String(), Done: p.Bytes, Files: p.Files, Rate: p.Rate()})
	}
}

// mailsUnserved puts into the status, and once into the log, why monit's mails do not arrive.
func (d *display) mailsUnserved(why error) {
	d.warn("cannot receive monit's alerts", "cannot receive monit's alerts; retrying every second", why)
}

// portHeld puts into the status, and once into the log, who has monit's port.
func (d *display) portHeld(by error) {
	d.warn(status.PortTaken, "monit's port is taken; monit is restarted when it is free", by)
}

// duplicates puts into the status, and once into the log, which addresses another machine uses, too.
func (d *display) duplicates(text string) (changed bool) {
	var why error
	if text != "" {
		why = errors.New(text)
	}
	return d.warn(status.DuplicateAddress, "another machine uses an address of this one", why)
}

// shortfall returns what puts into the status, and once into an alert, why a file system does not use its disk.
func (d *display) shortfall(alerts *agent.Alerts) func(dir, text string) {
	return func(dir, text string) {
		topic := dir + status.SmallerThanDisk
		changed, err := d.rec.SetWarning(topic, text)
		if err != nil {
			d.log.WithError(err).Warn("cannot write the status")
		}
		if changed && text != "" {
			alerts.Send(agent.ShortfallAlert(d.rec.Snapshot().AgentID, topic+": "+text))
		}
	}
}

// warn keeps a warning in the status for as long as there is a reason, and logs each reason once. It reports
// whether that is news.
func (d *display) warn(topic, message string, why error) (changed bool) {
	text := ""
	if why != nil {
		text = why.Error()
	}
	changed, err := d.rec.SetWarning(topic, text)
	if err != nil {
		d.log.WithError(err).Warn("cannot write the status")
	}
	if changed && why != nil {
		d.log.WithError(why).Warn(message)
	}
	return changed
}

// warnOfPlatform puts the missing features into the status, whose warnings begin anew with each attempt to boot.
func (d *display) warnOfPlatform() {
	if _, err := d.rec.SetWarning("platform", d.missing()); err != nil {
		d.log.WithError(err).Debug("cannot write the status")
	}
}
