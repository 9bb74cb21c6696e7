package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"cambium/cmd/agent/doctor/observe"
	"cambium/internal/status"
	"cambium/internal/vcap"
	"cambium/settings"
)

// What the machine itself is like: disks, clock, settings, processes.

// restartAgent does not wait for systemctl, because the unit becomes active only when the agent is ready, which never
// happens if its boot fails.
const restartAgent = "restart the agent: 'systemctl restart --no-block bosh-agent', then 'agent status --wait 5m'"

// A file system is full if root can no longer write the agent's records, and nearly full at the share at which
// monitoring usually warns.
const (
	fullBytes   = 4 << 20
	fullInodes  = 64
	nearlyShare = 0.05
	minWarnSize = 64 << 20 // smaller file systems are small on purpose
)

var store = vcap.New(vcap.DefaultBase).Store()

// migrating reports whether the agent is copying the store to another disk.
func migrating(m observe.Facts) bool {
	if m.Agent.Status == nil || !m.Agent.Running {
		return false
	}
	_, copying := m.Agent.Status.Progress["migrate_disk"]
	return copying
}

func space(m observe.Facts) (found []Finding) {
	for _, f := range m.FileSystems {
		how := fmt.Sprintf("remove what is not needed: 'du -xhd1 %s' shows where it is", f.Path)
		if f.Journal {
			how += ", 'journalctl --vacuum-size=100M' shrinks the journal"
		}
		inodes := "remove directories with many small files: 'du --inodes -xd1 " + f.Path + "' shows where they are"
		switch {
		case f.ReadOnly && f.Path == store && migrating(m):
			// migrate_disk copies a store that does not change.
		case f.ReadOnly && f.Path != "/run":
			found = append(found, problem("look for I/O errors in the kernel log ('journalctl -k'); repair the disk and reboot",
				"the file system of %s is read-only", f.Path))
		case f.Size == 0:
		case f.Free < fullBytes:
			found = append(found, problem(how, "no space left on %s: %d of %d MiB are free", f.Path, f.Free>>20, f.Size>>20))
		case f.Inodes > 0 && f.FreeInodes < fullInodes:
			found = append(found, problem(inodes, "no inodes left on %s: %d of %d are free", f.Path, f.FreeInodes, f.Inodes))
		case f.Size > minWarnSize && float64(f.Free) < nearlyShare*float64(f.Size):
			found = append(found, warning(how, "little space left on %s: %d of %d MiB are free", f.Path, f.Free>>20, f.Size>>20))
		case f.Inodes > 0 && float64(f.FreeInodes) < nearlyShare*float64(f.Inodes):
			found = append(found, warning(inodes, "few inodes left on %s: %d of %d are free", f.Path, f.FreeInodes, f.Inodes))
		}
	}
	if len(found) == 0 {
		return []Finding{good("%d file systems have free space", len(m.FileSystems))}
	}
	return found
}

// Offsets above which a clock is wrong, or worth a warning. Date headers have whole seconds, and an answer can take a
// few.
const (
	clockWrong = 5 * time.Minute
	clockOff   = 15 * time.Second
)

func clock(m observe.Facts) (found []Finding) {
	const do = "set the clock: check 'timedatectl', the settings' ntp servers and the hypervisor's clock; then " +
		restartAgent
	samples := 0
	for _, s := range m.Clock.Samples {
		if s.Err != "" {
			continue
		}
		samples++
		if off := s.Offset.Abs(); off >= clockOff {
			severity := warning
			if off >= clockWrong {
				severity = problem
			}
			return []Finding{severity(do, "the clock is %s %s, according to %s",
				status.FormatDuration(off), direction(s.Offset), s.From)}
		}
	}
	// A server's certificate is made before it is used: one from the future indicates a clock that is behind.
	for _, s := range m.Bus.Servers {
		if !s.NotBefore.IsZero() && m.Time.Before(s.NotBefore) {
			return []Finding{problem(do, "the clock is behind: it shows %s, but the certificate of %s is valid only from %s",
				day(m.Time), s.Address, day(s.NotBefore))}
		}
		if !s.NotAfter.IsZero() && m.Time.After(s.NotAfter) && samples == 0 {
			severity, how := warning, "synchronized"
			if !m.Clock.Synchronized {
				severity, how = problem, "not synchronized"
			}
			found = append(found, severity(do,
				"the clock (%s) shows %s, but the certificate of %s expired on %s: one of the two is wrong",
				how, day(m.Time), s.Address, day(s.NotAfter)))
		}
	}
	if f := timeServers(m); f != nil {
		found = append(found, *f)
	}
	switch {
	case len(found) > 0:
		return found
	case samples == 0 && !m.Clock.Synchronized && m.Clock.Moved.Abs() >= clockWrong:
		return []Finding{warning(do,
			"the clock was set %s %s since the agent started, and no time daemon synchronizes it; it shows %s",
			status.FormatDuration(m.Clock.Moved.Abs()), direction(m.Clock.Moved), day(m.Time))}
	case samples > 0:
		return []Finding{good("agrees with other hosts (%d asked)", samples)}
	case m.Clock.Synchronized:
		return []Finding{good("synchronized by a time daemon")}
	}
	return []Finding{note("see 'timedatectl' and the settings' ntp servers",
		"no time daemon synchronizes the clock, and there is no other host to compare it with; it shows %s", day(m.Time))}
}

// firstPolls is the time after the agent's start during which a time daemon may have no answers yet.
const firstPolls = time.Minute

// timeServers returns a finding if the clock does not follow the time servers in the settings.
func timeServers(m observe.Facts) *Finding {
	t := m.Clock.Time
	if t == nil || m.Agent.Status == nil || time.Duration(m.Agent.Status.Age()) < firstPolls {
		return nil
	}
	servers := strings.Join(t.Servers, ", ")
	reach := "allow UDP port 123 from this machine to them, or correct " + settings.DescribeKey("ntp")
	var f Finding
	switch {
	case t.Unit == "":
		f = warning("start it: 'systemctl start chrony', or the time daemon of this stemcell",
			"the clock is not synchronized: no time daemon runs, although the settings name time servers (%s)", servers)
	case t.Sources == 0:
		f = warning("'agent plan' shows what a boot would change; "+restartAgent,
			"the clock is not synchronized: %s has no time servers, although the settings name %s", t.Unit, servers)
	case t.Reachable == 0:
		f = warning(reach, "the clock is not synchronized: none of the time servers (%s) answers %s", servers, t.Unit)
	case !m.Clock.Synchronized:
		f = warning(reach, "the clock is not synchronized, although %s runs with the time servers %s", t.Unit, servers)
	default:
		return nil
	}
	return &f
}

func direction(ahead time.Duration) string {
	if ahead > 0 {
		return "ahead"
	}
	return "behind"
}

func config(m observe.Facts) (found []Finding) {
	if m.Config.Denied {
		return []Finding{unchecked()}
	}
	if m.Config.Err != "" {
		return []Finding{problem("correct it, and check it with 'agent validate "+m.Config.Path+"'",
			"%s", m.Config.Err)}
	}
	for _, text := range m.Config.Warnings {
		found = append(found, note("", "%s", text))
	}
	return append(found, good("%s is valid", m.Config.Path))
}

func settingsFiles(m observe.Facts) (found []Finding) {
	for _, f := range m.Settings.Files {
		severity := warning
		if m.Settings.Err != "" {
			severity = problem
		}
		if f.Aside {
			if m.Settings.Err == "" {
				severity = note
			}
			found = append(found,
				severity("check that 'agent settings' shows the right values, then remove the file; "+
					"if there are no settings, recreate the VM",
					"a settings file was damaged and set aside as %s at %s", f.Path, day(f.Modified)))
			continue
		}
		if f.Damage == "" {
			continue
		}
		found = append(found,
			severity(restartAgent+"; it uses the previous generation of the file, or asks its sources; "+
				"if that does not help, recreate the VM",
				"%s is damaged: %s", f.Path, f.Damage))
	}
	if len(found) == 0 {
		return []Finding{good("%d files can be read", len(m.Settings.Files))}
	}
	return found
}

func settingsFound(m observe.Facts) (found []Finding) {
	s := m.Settings
	switch {
	case s.Err != "":
		found = append(found, problem("'agent settings --explain' shows what each source answered",
			"there are no settings: %s", s.Err))
	case s.SourcesErr != "":
		found = append(found, warning("check that the source can be reached: 'agent settings --explain'",
			"the settings sources failed; using %s%s: %s", s.From, age(m), s.SourcesErr))
	default:
		found = append(found, good("from %s%s, agent id %s", s.From, age(m), s.AgentID))
	}
	if s.PlainPassword {
		found = append(found, warning(
			"put a hash there ('mkpasswd -m sha-512'): correct "+settings.DescribeKey("env.bosh.password"),
			"env.bosh.password is not a hash of crypt(3): nobody can log in with it"))
	}
	return found
}

// age describes the age of the cached copy.
func age(m observe.Facts) string {
	for _, f := range m.Settings.Files {
		if strings.HasSuffix(f.Path, "/settings.json") && !f.Modified.IsZero() {
			return fmt.Sprintf(" (%s written %s ago)", f.Path, status.FormatDuration(m.Time.Sub(f.Modified)))
		}
	}
	return ""
}

// reportedStore returns a finding if the agent starts no jobs because the store is not mounted.
func reportedStore(m observe.Facts) []Finding {
	reason := m.Agent.Status.JobsWithheld()
	if reason == "" {
		return nil
	}
	do := "mount the disk ('bosh cck', or mount_disk by the Director)"
	if strings.Contains(reason, " is refused: ") { // the reason says what is on it, and what is expected
		do = "attach the right disk; see 'agent disk format --help' only if nothing on this one is needed"
	}
	return []Finding{problem(do+"; the jobs are started when it is mounted", "%s: %s", status.JobsWithheld, reason)}
}

func persistentDisk(m observe.Facts) []Finding {
	d := m.Disk
	switch {
	case d.CID == "" && d.Mounted == "":
		return []Finding{good("no persistent disk is recorded")}
	case d.Gone:
		return []Finding{problem("attach it again ('bosh cck'), then "+restartAgent,
			"the persistent disk %s is mounted, but the kernel has lost its device %s", d.CID, d.Mounted)}
	case d.Silent:
		return []Finding{problem("look for its errors in the kernel log ('journalctl -k'), "+
			"and see whether the IaaS or 'dmsetup info' shows it as suspended",
			"the device %s of the persistent disk %s does not answer a read", d.Mounted, d.CID)}
	case d.Frozen:
		return []Finding{problem("end the backup or snapshot that froze it, or thaw it: 'fsfreeze -u "+store+"'",
			"the file system of %s is frozen: every write to the persistent disk %s waits", store, d.CID)}
	case d.Failing != "":
		return []Finding{problem("look for its errors in the kernel log ('journalctl -k'); replace the disk",
			"the persistent disk %s fails: %s", d.CID, d.Failing)}
	case m.Agent.Status.JobsWithheld() != "": // something else may be mounted there
		return reportedStore(m)
	case d.Mounted == "" && m.Agent.Running && m.Agent.Status != nil && m.Agent.Status.Unmounted == d.CID:
		return []Finding{note("run mount_disk to use it again", "the persistent disk %s was unmounted by unmount_disk",
			d.CID)}
	case d.Mounted == "":
		return []Finding{problem("attach it again ('bosh cck'), or have the Director detach it",
			"the persistent disk %s is recorded as mounted, but is not mounted", d.CID)}
	}
	return []Finding{good("%s is mounted from %s", d.CID, d.Mounted)}
}

func process(m observe.Facts) []Finding {
	d := m.Agent.Status
	const start = "start it: 'systemctl start --no-block bosh-agent', then 'agent status --wait 5m'; " +
		"'journalctl -u bosh-agent -n 50' shows why it ended"
	unit := ""
	if m.Agent.Unit != "" {
		unit = "; its unit is " + m.Agent.Unit
	}
	switch {
	case d == nil:
		return []Finding{problem(start, "the agent is not running: %s%s", m.Agent.StatusErr, unit)}
	case d.Halted:
		return []Finding{problem("resume it: 'systemctl kill -s CONT bosh-agent'; "+
			"systemd's watchdog kills and restarts an agent that stays stopped",
			"the agent's process %d is stopped by a signal%s", d.PID, unit)}
	case !m.Agent.Running:
		return []Finding{problem(start, "the agent is not running: its process %d is gone%s", d.PID, unit)}
	}
	if others := slices.DeleteFunc(slices.Clone(m.Agent.PIDs),
		func(pid int) bool { return pid == cmp.Or(m.Agent.MainPID, d.PID) }); len(others) > 0 {
		return []Finding{problem(fmt.Sprintf("end the one that systemd did not start: 'kill %d'; then %s", others[0],
			restartAgent),
			"%d agents are running: process %d is the unit's, and %s is not", len(others)+1, cmp.Or(m.Agent.MainPID, d.PID),
			joinPIDs(others))}
	}
	if d.Ended != nil {
		return []Finding{note("'journalctl -u bosh-agent' shows more",
			"the process before this one ended at %s: %s; systemd has restarted the agent %s",
			day(d.Ended.At), d.Ended.How, times(m.Agent.Restarts))}
	}
	return []Finding{good("process %d has been running since %s%s", d.PID, day(d.Started), unit)}
}

func joinPIDs(pids []int) string {
	var texts []string
	for _, pid := range pids {
		texts = append(texts, fmt.Sprint(pid))
	}
	return strings.Join(texts, ", ")
}

func adviceFor(s status.Step) string {
	return cmp.Or(s.Advice, "see 'agent status -v' for its evidence") +
		"; the agent retries the boot by itself, and at once with 'agent retry'"
}

// unmade reports whether the agent is still booting and has not completed a step.
func unmade(m observe.Facts, step string) bool {
	d := m.Agent.Status
	return d != nil && m.Agent.Running && !d.Serving() && slices.ContainsFunc(d.Steps, func(s status.Step) bool {
		return s.Name == step && !slices.Contains([]status.Outcome{status.Done, status.Warned, status.Skipped},
			s.Outcome)
	})
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func boot(m observe.Facts) (found []Finding) {
	d := m.Agent.Status
	if d == nil {
		return nil
	}
	for _, s := range d.Steps {
		switch {
		case s.Outcome == status.Broken:
			found = append(found, problem(adviceFor(s), "boot step %s failed: %s", s.Name, s.Error))
		case s.Outcome == status.Running && s.Waiting != "" && d.Verdict != "": // the last try failed
			found = append(found, problem(adviceFor(s), "%s", d.Verdict))
		case s.Outcome == status.Running && s.Waiting != "":
			found = append(found, warning(adviceFor(s), "boot step %s is waiting for %s", s.Name, s.Waiting))
		}
	}
	if d.Verdict != "" && len(found) == 0 {
		found = append(found, problem("see 'agent status -v'", "the boot failed: %s", d.Verdict))
	}
	for _, text := range d.Warnings {
		found = append(found, warning("", "%s", text))
	}
	if len(found) == 0 {
		return []Finding{good("%s", d.State)}
	}
	return found
}

// supervisorStart bounds how long monit may take to listen after the agent has started it.
const supervisorStart = 30 * time.Second

// justReady reports whether the agent became ready less than supervisorStart ago.
func justReady(m observe.Facts) bool {
	d := m.Agent.Status
	return d != nil && m.Agent.Running && d.ReadyNS > 0 && time.Duration(d.Age()-d.ReadyNS) < supervisorStart
}

func supervisor(m observe.Facts) (found []Finding) {
	s := m.Supervisor
	busy := m.Agent.Running && m.Tasks.Running > 0 // apply and start have monit read its files again
	switch {
	case !s.Expected:
		return []Finding{good("this machine has no supervisor")}
	case s.Err != "" && m.Agent.Status.JobsWithheld() != "": // monit would start the jobs on an empty store
		return []Finding{good("not started while the store is not mounted")}
	case s.PortTaken:
		return []Finding{problem("end that process, unless it belongs to the stemcell; then 'systemctl restart monit'",
			"the supervisor monit does not answer: %s", s.Err)}
	case s.Err != "" && s.Unit != "inactive" && s.Unit != "failed" && justReady(m):
		return []Finding{note("wait a few seconds",
			"the supervisor monit does not answer yet: the agent has just started it")}
	case s.Err != "" && s.Unit != "failed" && busy:
		return []Finding{note("wait for the task", "the supervisor monit does not answer while a Director's task is running")}
	case s.Err != "":
		return []Finding{problem("start it: 'systemctl start monit'; 'journalctl -u monit' shows why it ended",
			"the supervisor monit does not answer: %s", s.Err)}
	}
	var failing, logs []string
	for _, p := range s.Services {
		if p.Monitored && p.State != "running" {
			failing, logs = append(failing, p.Name+" "+p.State), append(logs, p.Logs...)
		}
	}
	for _, p := range s.Services {
		if p.Stopped {
			do := fmt.Sprintf("resume it: 'kill -CONT %d', or end it: 'kill -KILL %d', after which it is started again",
				p.PID, p.PID)
			found = append(found, problem(do,
				"the process %d of %s is stopped by a signal, which the supervisor takes for running", p.PID, p.Name))
		}
	}
	if len(found) > 0 && len(failing) == 0 {
		return found
	}
	if len(failing) > 0 {
		if len(logs) == 0 {
			logs = []string{vcap.New(vcap.DefaultBase).JobLogs() + " for their logs"}
		}
		return append(found, warning("'agent jobs' shows why and the end of the log; see "+strings.Join(logs, ", "),
			"job processes are not running: %s", strings.Join(failing, ", ")))
	}
	return []Finding{good("%d processes", len(s.Services))}
}

// essential lists the units without which the Director does not see the machine.
var essential = []string{"bosh-agent.service", "monit.service", "systemd-networkd.service", "systemd-resolved.service"}

func units(m observe.Facts) (found []Finding) {
	if m.Units.Err != "" {
		return []Finding{warning("see 'systemctl --failed'", "systemd does not answer: %s", m.Units.Err)}
	}
	for _, name := range m.Units.Failed {
		severity := note
		if slices.Contains(essential, name) {
			severity = warning
		}
		found = append(found, severity("'systemctl status "+name+"' shows why", "%s has failed", name))
	}
	if len(found) == 0 {
		return []Finding{good("no unit has failed")}
	}
	return found
}

// driftShown limits the number of changes named in a finding.
const driftShown = 3

// drift reports how the machine deviates from the settings in force. It compares nothing until the agent serves,
// because the boot is still applying the settings.
func drift(m observe.Facts) []Finding {
	d, changes := m.Agent.Status, m.Drift.Changes
	switch {
	case d == nil || !d.Serving():
		return []Finding{note("", "not compared before the agent is ready")}
	case m.Drift.Err != "":
		return []Finding{note("see 'agent plan'", "cannot compare the machine with the settings: %s", m.Drift.Err)}
	case len(changes) == 0:
		return []Finding{good("the machine is as the settings want it")}
	}
	more := ""
	if len(changes) > driftShown {
		more = fmt.Sprintf("; and %d more", len(changes)-driftShown)
	}
	return []Finding{warning("'agent plan' shows all of it; to have it corrected, "+restartAgent,
		"the machine is not as the settings want it: a boot would make these changes: %s%s",
		strings.Join(changes[:min(len(changes), driftShown)], "; "), more)}
}
