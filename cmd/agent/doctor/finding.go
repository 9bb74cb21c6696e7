package doctor

import (
	"fmt"
	"slices"
	"strings"

	"cambium/cmd/agent/cli"
	"cambium/cmd/agent/doctor/observe"
)

// Severity ranks a finding, from Problem down to OK.
type Severity string

// The severities, the worst first. A Problem keeps the Director from seeing or using the machine, now or after the next
// start; a Warning may do so. Unchecked means that only root can check. A Note is worth knowing if there is nothing
// worse.
const (
	Problem   Severity = "problem"
	Warning   Severity = "warning"
	Unchecked Severity = "unchecked"
	Note      Severity = "note"
	OK        Severity = "ok"
)

var ranks = map[Severity]int{Problem: 0, Warning: 1, Unchecked: 2, Note: 3, OK: 4}

// Finding is one result of a check.
type Finding struct {
	Severity Severity `json:"severity"`
	Check    string   `json:"check"`
	Checked  string   `json:"checked"`
	Found    string   `json:"found"`
	Do       string   `json:"do,omitempty"`
}

func problem(do, format string, args ...any) Finding {
	return Finding{Severity: Problem, Found: fmt.Sprintf(format, args...), Do: do}
}

func warning(do, format string, args ...any) Finding {
	return Finding{Severity: Warning, Found: fmt.Sprintf(format, args...), Do: do}
}

func note(do, format string, args ...any) Finding {
	return Finding{Severity: Note, Found: fmt.Sprintf(format, args...), Do: do}
}

func unchecked() Finding { return Finding{Severity: Unchecked, Found: cli.NotChecked} }

func good(format string, args ...any) Finding {
	return Finding{Severity: OK, Found: fmt.Sprintf(format, args...)}
}

// check is a row of the table: a name, what is checked, and the function that decides.
type check struct {
	name    string
	checked string
	decide  func(observe.Facts) []Finding
	// near marks a check that needs only the facts of observe.Nearby, and root one that only root can make.
	near, root bool
	// step is the boot step that sets up what is checked. Until it has succeeded, the step is the cause.
	step string
}

// Values of near and root.
const (
	far, near = false, true
	all, root = false, true
)

// checks is the table. A cause comes before its consequences: a full disk before damaged settings, a wrong clock before
// an expired certificate, a failed boot step before what it sets up, a dead gateway before a server that does not
// answer.
var checks = []check{
	{"disk space", "free bytes and inodes of every file system that the agent writes to", space, near, all, ""},
	{"duplicate address", "whether another machine answers ARP or neighbor discovery for an address of this one",
		duplicates, near, root, ""},
	{"clock", "this machine's clock against the Date of blobstore and metadata service, the validity of certificates, " +
		"and time synchronization", clock, near, all, ""},
	{"agent.json", "the stemcell's configuration", config, far, all, ""},
	{"settings files", "the files that keep the settings", settingsFiles, near, root, ""},
	{"settings", "the settings' source, age and cached copy", settingsFound, far, root, ""},
	{"agent", "the agent's process and unit", process, far, all, ""},
	{"boot", "boot steps that failed, are waiting or warned", boot, far, all, ""},
	{"addresses", "links, and the addresses that the settings name", addresses, far, all, "network"},
	{"gateway", "default routes, and whether their gateways answer ARP or neighbor discovery", gateway, near, root, ""},
	{"MTU", "the MTU of links, and whether large packets reach the bus", mtu, near, all, ""},
	{"certificate", "the agent's certificate: key, chain, name and validity", certificate, far, root, ""},
	{"bus", "for each bus URL: DNS, TCP, greeting, TLS, authorization and subscription", bus, far, root, "network"},
	{"DNS", "whether the DNS servers of the settings answer", nameServers, far, root, "network"},
	{"blobstore", "whether the blobstore answers, and accepts the user and password", blobs, far, root, "network"},
	{"firewall", "nftables chains of other programs that drop outgoing packets", firewallRules, far, root, ""},
	{"persistent disk", "the recorded persistent disk against the mount on the store", persistentDisk, near, root,
		"persistent-disk"},
	{"supervisor", "monit and the processes of the jobs", supervisor, near, root, "supervisor"},
	{"units", "failed systemd units", units, far, all, ""},
	{"drift", "what a boot would change in network, DNS, accounts, directories and host, by the settings in force",
		drift, far, root, ""},
}

// reported has the checks that need root, but for which the agent's status also has an answer, which everybody can
// read.
var reported = map[string]func(observe.Facts) []Finding{"bus": reportedBus, "persistent disk": reportedStore,
	"duplicate address": reportedDuplicate}

// runitCommands turns advice for systemd into advice for runit.
var runitCommands = strings.NewReplacer("systemctl restart --no-block bosh-agent", "sv restart agent",
	"systemctl start --no-block bosh-agent", "sv start agent", "systemctl kill -s CONT bosh-agent", "sv cont agent",
	"; systemd's watchdog kills and restarts an agent that stays stopped", "",
	"journalctl -u bosh-agent -n 50", "tail -n 50 /var/vcap/bosh/log/current",
	"journalctl -u bosh-agent", "less /var/vcap/bosh/log/current", "systemctl status bosh-agent", "sv status agent",
	"systemctl start monit", "sv start monit", "systemctl restart monit", "sv restart monit",
	"journalctl -u monit", "tail /var/vcap/monit/monit.log", "journalctl -k", "dmesg",
	"systemctl start chrony", "sv start chrony", "timedatectl", "date", "networkctl status", "ip address")

// ForThisMachine rewrites the commands in an advice for the machine's service manager.
func ForThisMachine(advice string) string {
	if observe.Runit() {
		return runitCommands.Replace(advice)
	}
	return advice
}

// DiagnoseNearby returns the problems and warnings in the facts of observe.Nearby, the worst first. Without root, some
// checks are skipped.
func DiagnoseNearby(m observe.Facts) (findings []Finding) {
	for _, f := range diagnose(m, near) {
		if f.Severity == Problem || f.Severity == Warning {
			findings = append(findings, f)
		}
	}
	return findings
}

// Diagnose interprets the facts. The worst findings come first, and among equal ones a likely cause comes before its
// consequences.
func Diagnose(m observe.Facts) []Finding { return diagnose(m, far) }

func diagnose(m observe.Facts, onlyNear bool) (findings []Finding) {
	for _, c := range checks {
		if onlyNear && !c.near {
			continue
		}
		found := []Finding{unchecked()}
		switch tell := reported[c.name]; {
		case m.Superuser || !c.root:
			found = c.decide(m)
		case tell != nil:
			found = append(tell(m), found...)
		}
		for _, f := range found {
			f.Check, f.Checked = c.name, c.checked
			if m.Runit {
				f.Do = runitCommands.Replace(f.Do)
			}
			if (f.Severity == Problem || f.Severity == Warning) && unmade(m, c.step) {
				f.Severity = Note
			}
			findings = append(findings, f)
		}
	}
	slices.SortStableFunc(findings, func(a, b Finding) int { return ranks[a.Severity] - ranks[b.Severity] })
	return findings
}
