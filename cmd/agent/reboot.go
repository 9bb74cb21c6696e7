package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"cambium/agent"
	"cambium/agent/action"
	"cambium/internal/atomicfile"
	"cambium/internal/status"
	"cambium/jobs"
	platform "cambium/platform/reboot"
)

// reboot describes the reboot that led to this boot.
type reboot struct {
	of    string // the id of the agent that ran before the reboot
	cause string
}

// findReboot describes the reboot that led to this boot. It returns nil on a first boot, and if an earlier process of
// this boot has already reported it.
func findReboot(ctx context.Context, d *display) *reboot {
	now := d.rec.Snapshot()
	last, seen, found := d.history.Previous(now)
	if !found || now.Reboot != nil && now.Reboot.Back != "" {
		return nil
	}
	if now.Reboot != nil { // an earlier process ended before it reported this
		return &reboot{last.AgentID, now.Reboot.Cause}
	}
	why := last.Down
	if why == "" {
		// The agent may have had no time to record a request: systemd can take minutes to say that it shuts down.
		journal := platform.Journal(ctx, true)
		why = cmp.Or(platform.Requested(journal), platform.CrashCause("/", journal, last.Started))
	}
	return &reboot{last.AgentID, describeReboot(now.Began(), seen, why)}
}

// describeReboot combines when a boot began, why the machine had gone down, and how long it was away. seen is zero if
// unknown.
func describeReboot(began, seen time.Time, why string) string {
	text := began.UTC().Format(time.RFC3339) + ", "
	if why == "" {
		why = "nothing was written before it: the power was cut, or the machine was reset"
	}
	text += why
	if away := began.Sub(seen).Round(time.Second); !seen.IsZero() && away >= 0 {
		text += fmt.Sprintf("; last seen %s before", away)
	}
	return text
}

// downLimit bounds the queries to systemd and the journal while the agent stops.
const downLimit = 5 * time.Second

// noteGoingDown records a requested shutdown, so that the next boot can report it.
func (b *booting) noteGoingDown(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, downLimit)
	defer cancel()
	how := b.machine.goingDown(ctx)
	if how == "" || b.display.history.Of == nil {
		return
	}
	now := time.Now().UTC()
	b.display.write(func(d *status.Document) {
		by := d.Down
		if by == "" {
			by = platform.Requester(platform.Journal(ctx, false))
		}
		d.Down, d.Stopped = "requested ("+how+")", &now
		if by != "" {
			d.Down += " by " + by
		}
	})
	if err := status.AddBoot(b.display.history.Path, b.display.rec.Snapshot()); err != nil {
		b.log.WithError(err).Warn("cannot record why the machine goes down")
	}
}

// servedPower records that the Director requested the shutdown.
type servedPower struct {
	action.Power
	display *display
}

func (p servedPower) PowerOff(ctx context.Context) error {
	p.display.write(func(d *status.Document) { d.Down = "the Director" })
	err := p.Power.PowerOff(ctx)
	if err != nil {
		p.display.write(func(d *status.Document) { d.Down = "" })
	}
	return err
}

// The alert about a reboot waits for the jobs, which start after the agent. No supervisor announces their state.
const (
	jobsComeUp    = 5 * time.Minute
	jobsComeUpAsk = 5 * time.Second
)

// explainReboot records in the status why the machine was rebooted. Once the jobs are up, or have had time to start, it
// adds what came back, and sends an alert.
func (s *serving) explainReboot(ctx context.Context) {
	if s.reboot == nil || s.reboot.of != s.machine.current.Effective().Settings.AgentID {
		return
	}
	account := status.Reboot{Cause: s.reboot.cause}
	s.display.write(func(d *status.Document) { d.Reboot = &account })
	back := s.disksBack(ctx) + "; " + s.jobsBack(ctx)
	if ctx.Err() != nil {
		return
	}
	told := status.Reboot{Cause: account.Cause, Back: back}
	s.display.write(func(d *status.Document) { d.Reboot = &told })
	s.log.WithField("account", told.Summary()).Info("the machine was rebooted")
	s.alerts.Send(agent.RebootAlert(told.Summary()))
}

// disksBack lists the persistent disks that are mounted, and those that are not.
func (s *serving) disksBack(ctx context.Context) string {
	mounted, err := s.deps.Disks.List(ctx)
	if err != nil {
		return "disks: " + err.Error()
	}
	var missing []string
	associated := map[string]bool{}
	for _, a := range s.machine.current.Effective().Associations {
		associated[a.CID] = true
	}
	for cid := range s.machine.current.Disks() {
		if !associated[cid] && !slices.Contains(mounted, cid) {
			missing = append(missing, cid)
		}
	}
	return listed("disks", "mounted", mounted, "not mounted", missing)
}

// jobsBack waits for all processes of the jobs to run, for jobsComeUp at most, and lists those that do and do not.
func (s *serving) jobsBack(ctx context.Context) string {
	if s.machine.JobsWithheld() != "" {
		return "jobs: withheld" // an alert of its own says why
	}
	if atomicfile.Exists(s.dirs.MonitStopped()) {
		return "jobs: stopped, as before"
	}
	if _, err := os.Stat(s.dirs.Spec()); err != nil {
		return "jobs: none"
	}
	ctx, cancel := context.WithTimeout(ctx, jobsComeUp)
	defer cancel()
	ticker := time.NewTicker(jobsComeUpAsk)
	defer ticker.Stop()
	for {
		_, processes, err := s.instance.Observe(ctx)
		running, others := split(processes)
		if err == nil && len(others) == 0 && s.instance.Boot.State() == "" {
			return listed("processes", "running", running, "", nil)
		}
		select {
		case <-ticker.C:
			continue
		case <-ctx.Done():
		}
		if err != nil {
			return "jobs: " + err.Error()
		}
		if s.instance.Boot.State() != "" {
			return "jobs: they wait for their scripts"
		}
		return listed("processes", "running", running, "not running", others)
	}
}

func split(processes []jobs.Process) (running, others []string) {
	for _, p := range processes {
		if p.State == "running" {
			running = append(running, p.Name)
		} else {
			others = append(others, p.Name)
		}
	}
	return running, others
}

// listed formats two lists of names, such as the mounted disks and the missing ones.
func listed(what, isBack string, back []string, isMissing string, missing []string) string {
	slices.Sort(back)
	slices.Sort(missing)
	var parts []string
	if len(back) > 0 {
		parts = append(parts, isBack+" "+strings.Join(back, ", "))
	}
	if len(missing) > 0 {
		parts = append(parts, isMissing+" "+strings.Join(missing, ", "))
	}
	if len(parts) == 0 {
		parts = []string{"none"}
	}
	return what + ": " + strings.Join(parts, ", ")
}
