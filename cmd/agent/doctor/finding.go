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
	decide  func(observe.Machine) []Finding
}

// checks is the table. Causes stand before what they cause: a full disk before damaged settings, a wrong
// clock before an expired certificate, a dead gateway before a server that does not answer.
var checks = []check{
	{"privileges", "whether this command runs as root", privileges},
	{"disk space", "free bytes and inodes of every file system that the agent writes to", space},
	{"clock", "this machine's clock against the Date of blobstore and metadata service, the validity of certificates, and time synchronization", clock},
	{"agent.json", "the stemcell's configuration", config},
	{"settings", "the settings' source, age, cached copy and the files that keep them", settingsFound},
	{"addresses", "links, and the addresses that the settings name", addresses},
	{"gateway", "default routes, and whether their gateways answer ARP or neighbor discovery", gateway},
	{"MTU", "the MTU of links, and whether large packets reach the bus", mtu},
	{"certificate", "the agent's certificate: key, chain, name and validity", certificate},
	{"bus", "for each bus URL DNS, TCP, greeting, TLS, authorization and subscription", bus},
	{"firewall", "chains of others in nftables that drop outgoing packets", firewallRules},
	{"persistent disk", "the recorded persistent disk against the mount on the store", persistentDisk},
	{"agent", "the agent's process and unit", process},
	{"boot", "boot steps that failed, wait or warned", boot},
	{"supervisor", "monit and the processes of jobs", supervisor},
	{"units", "units of systemd that have failed", units},
	{"networkd files", ".network files of others that match the machine's links", foreignFiles},
	{"leftovers", "what another agent or tool has left behind", leftovers},
}

// Diagnose decides what the observations mean: the worst first, and among those of one severity the
// likely cause before its consequences.
func Diagnose(m observe.Machine) (findings []Finding) {
	for _, c := range checks {
		for _, f := range c.decide(m) {
			f.Check, f.Checked = c.name, c.checked
			findings = append(findings, f)
		}
	}
	slices.SortStableFunc(findings, func(a, b Finding) int { return ranks[a.Severity] - ranks[b.Severity] })
	return findings
}
