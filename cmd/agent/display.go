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

// display shows the state of the agent in the status, to the service manager and on the consoles.
type display struct {
	log         *logrus.Entry
	rec         *status.Recorder
	history     status.History
	serviceLine *status.ServiceLine
	announcer   bootstrap.Announcer
	// missing returns the features that kernel and container engine lack. The agent starts without them, and a boot
	// step that needs one fails. It runs beside the boot, because a check may load a kernel module.
	missing func() string
	// collections numbers the long collections of logs.
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

// write changes the status and writes it to disk.
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

// showState shows the state of a serving agent, and its bus, to the service manager.
func (d *display) showState() {
	if doc := d.rec.Snapshot(); doc.Serving() {
		d.serviceLine.Show(fmt.Sprintf("STATUS=%s; bus: %s", doc.State, doc.Bus))
	}
}

// showWithheld records in the status why no job may start; "" if jobs may start.
func (d *display) showWithheld(reason string) {
	d.setWarning(status.JobsWithheld, reason)
}

// showWork records a long check or mount of a file system in the status.
func (d *display) showWork(text string) { d.progress("disk", status.Progress{Text: text}) }

// showMigration records the progress of a migration in the status.
func (d *display) showMigration(p storage.MigrationProgress) {
	d.progress("migrate_disk", status.Progress{Text: p.String(), Done: p.Bytes, Total: p.TotalBytes, Files: p.Files,
		Rate: p.Rate(), Remaining: int64(p.Remaining().Seconds())})
}

// collection returns a function that records the progress of one collection of logs in the status. Several can run at
// the same time.
func (d *display) collection() func(logs.Progress) {
	name := fmt.Sprintf("collect_logs %d", d.collections.Add(1))
	return func(p logs.Progress) {
		d.progress(name, status.Progress{Text: p.String(), Done: p.Bytes, Files: p.Files, Rate: p.Rate()})
	}
}

// warnAlertsUnreceived records why monit's alerts do not arrive: in the status, and once in the log.
func (d *display) warnAlertsUnreceived(why error) {
	d.warn("cannot receive monit's alerts", "cannot receive monit's alerts; retrying every second", why)
}

// warnPortTaken records which process has monit's port: in the status, and once in the log.
func (d *display) warnPortTaken(by error) {
	d.warn(status.PortTaken, "monit's port is taken; monit is restarted when it is free", by)
}

// duplicates records which addresses another machine also uses: in the status, and once in the log.
func (d *display) duplicates(text string) (changed bool) {
	var why error
	if text != "" {
		why = errors.New(text)
	}
	return d.warn(status.DuplicateAddress, "another machine uses an address of this one", why)
}

// shortfall returns a function that records why a file system is smaller than its disk: in the status, and once in an
// alert.
func (d *display) shortfall(alerts *agent.Alerts) func(dir, text string) {
	return func(dir, text string) {
		topic := dir + status.SmallerThanDisk
		if d.setWarning(topic, text) && text != "" {
			alerts.Send(agent.ShortfallAlert(d.rec.Snapshot().AgentID, topic+": "+text))
		}
	}
}

// warn sets a warning in the status, or clears it if why is nil, and logs each reason once. It reports whether the
// warning has changed.
func (d *display) warn(topic, message string, why error) (changed bool) {
	text := ""
	if why != nil {
		text = why.Error()
	}
	changed = d.setWarning(topic, text)
	if changed && why != nil {
		d.log.WithError(why).Warn(message)
	}
	return changed
}

// warnOfPlatform records the missing features in the status, whose warnings are cleared at each attempt to boot.
func (d *display) warnOfPlatform() { d.setWarning("platform", d.missing()) }

// setWarning sets the warning about a topic in the status, or removes it if the text is empty. It reports whether the
// warning has changed.
func (d *display) setWarning(topic, text string) bool {
	changed, err := d.rec.SetWarning(topic, text)
	if err != nil {
		d.log.WithError(err).Warn("cannot write the status")
	}
	return changed
}
