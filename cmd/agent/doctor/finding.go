package doctor

import (
	"fmt"
	"slices"

	"cambium/cmd/agent/doctor/observe"
)

// Severity is how bad a finding is.
type Severity string

// The severities, the worst first. A problem keeps the Director from seeing or using the machine, or
// will do so at the next start; a warning may; a note is worth knowing when there is nothing else.
const (
	Problem Severity = "problem"
	Warning Severity = "warning"
	Note    Severity = "note"
	OK      Severity = "ok"
)

var ranks = map[Severity]int{Problem: 0, Warning: 1, Note: 2, OK: 3}

// Finding is one answer to the question what is wrong with this machine.
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

func good(format string, args ...any) Finding {
	return Finding{Severity: OK, Found: fmt.Sprintf(format, args...)}
}

// check is a row of the table: a name, what is looked at, and the decision about it.
type check struct {
	name    string
	checked string
	decide  func(observe.Facts) []Finding
	// near is how far observe.Near suffices for the decision.
	near nearness
}

type nearness int

const (
	needsOthers nearness = iota
	nearForRoot
	nearForAll
)

// checks is the table. Causes stand before what they cause: a full disk before damaged settings, a wrong
// clock before an expired certificate, a dead gateway before a server that does not answer.
var checks = []check{
	{"privileges", "whether this command runs as root", privileges, needsOthers},
	{"disk space", "free bytes and inodes of every file system that the agent writes to", space, nearForAll},
	{"clock", "this machine's clock against the Date of blobstore and metadata service, the validity of certificates, and time synchronization", clock, nearForAll},
	{"agent.json", "the stemcell's configuration", config, needsOthers},
	{"settings files", "the files that keep the settings", settingsFiles, nearForRoot},
	{"settings", "the settings' source, age and cached copy", settingsFound, needsOthers},
	{"addresses", "links, and the addresses that the settings name", addresses, needsOthers},
	{"gateway", "default routes, and whether their gateways answer ARP or neighbor discovery", gateway, nearForRoot},
	{"MTU", "the MTU of links, and whether large packets reach the bus", mtu, nearForAll},
	{"certificate", "the agent's certificate: key, chain, name and validity", certificate, needsOthers},
	{"bus", "for each bus URL DNS, TCP, greeting, TLS, authorization and subscription", bus, needsOthers},
	{"firewall", "chains of others in nftables that drop outgoing packets", firewallRules, needsOthers},
	{"persistent disk", "the recorded persistent disk against the mount on the store", persistentDisk, nearForRoot},
	{"agent", "the agent's process and unit", process, needsOthers},
	{"boot", "boot steps that failed, wait or warned", boot, needsOthers},
	{"supervisor", "monit and the processes of jobs", supervisor, nearForRoot},
	{"units", "units of systemd that have failed", units, needsOthers},
	{"networkd files", ".network files of others that match the machine's links", foreignFiles, needsOthers},
	{"leftovers", "what another agent or tool has left behind", leftovers, needsOthers},
}

// Glance decides from what observe.Near found, without asking other machines: only problems and warnings, the worst
// first. Without root some checks are omitted.
func Glance(m observe.Facts) (findings []Finding) {
	least := nearForAll
	if m.Superuser {
		least = nearForRoot
	}
	for _, f := range diagnose(m, least) {
		if f.Severity == Problem || f.Severity == Warning {
			findings = append(findings, f)
		}
	}
	return findings
}

// Diagnose decides what the observations mean: the worst first, and among those of one severity the
// likely cause before its consequences.
func Diagnose(m observe.Facts) []Finding { return diagnose(m, needsOthers) }

func diagnose(m observe.Facts, least nearness) (findings []Finding) {
	for _, c := range checks {
		if c.near < least {
			continue
		}
		for _, f := range c.decide(m) {
			f.Check, f.Checked = c.name, c.checked
			findings = append(findings, f)
		}
	}
	slices.SortStableFunc(findings, func(a, b Finding) int { return ranks[a.Severity] - ranks[b.Severity] })
	return findings
}
