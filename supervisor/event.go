package supervisor

import "cambium/supervisor/monitfile"

// event is a set of problems. The bits are those of monit's status documents.
type event uint32

const (
	eventResource   event = 0x2
	eventTimeout    event = 0x4
	eventTimestamp  event = 0x8
	eventSize       event = 0x10
	eventConnection event = 0x20
	eventNonexist   event = 0x200
	eventInvalid    event = 0x400
	eventData       event = 0x800
	eventExec       event = 0x1000
	eventPid        event = 0x40000
	eventPpid       event = 0x80000
)

// eventNames has the names of events in monit's alerts and summary: failed, recovered, changed. The Health Monitor
// grades alerts by them, and scripts search for them.
var eventNames = map[event][3]string{
	eventResource:   {"Resource limit matched", "Resource limit succeeded", "Resource limit changed"},
	eventTimeout:    {"Timeout", "Timeout recovery", "Timeout changed"},
	eventTimestamp:  {"Timestamp failed", "Timestamp succeeded", "Timestamp changed"},
	eventSize:       {"Size failed", "Size succeeded", "Size changed"},
	eventConnection: {"Connection failed", "Connection succeeded", "Connection changed"},
	eventNonexist:   {"Does not exist", "Exists", "Existence changed"},
	eventInvalid:    {"Invalid type", "Type succeeded", "Type changed"},
	eventData:       {"Data access error", "Data access succeeded", "Data access changed"},
	eventExec:       {"Execution failed", "Execution succeeded", "Execution changed"},
	eventPid:        {"PID failed", "PID succeeded", "PID changed"},
	eventPpid:       {"PPID failed", "PPID succeeded", "PPID changed"},
}

// outcome is the result of one check.
type outcome int

const (
	passed outcome = iota
	failed
	changed // the value differs from that of the last check; this is an event each time
)

// rule says when a test is an event, and which actions follow.
type rule struct {
	event          event
	rate, recovery monitfile.Rate
	then, after    monitfile.Action
}

var once = monitfile.Rate{Count: 1, Cycles: 1}

// ruleOf returns the rule of a test in a control file.
func ruleOf(e event, t monitfile.Test) rule {
	return rule{e, t.Rate, t.RecoveryRate, t.Then, t.Recovery}
}

// defaultRule returns the rule for an event without a test in the control file: the given verb at the first failure,
// and an alert on recovery.
func defaultRule(e event, then monitfile.Verb) rule {
	return rule{e, once, once, monitfile.Action{Verb: then}, monitfile.Action{Verb: monitfile.Alert}}
}

// history records the results of a test in the last 64 cycles.
type history struct {
	failures, looks uint64 // a bit for each check; the lowest is the last
	failed          bool
}

// add records the outcome of a check. change reports that the state of the test has changed and an alert is due. act
// reports that the action of the test is due, which is also the case whenever a failed test fails again.
func (h *history) add(found outcome, r rule) (change, act bool) {
	if found == changed {
		return true, true
	}
	h.looks = h.looks<<1 | 1
	h.failures <<= 1
	rate, seen := r.recovery, h.looks&^h.failures
	if found == failed {
		h.failures |= 1
		rate, seen = r.rate, h.failures
	}
	if count(seen, rate.Cycles) >= rate.Count && h.failed != (found == failed) {
		h.failed = found == failed
		return true, true
	}
	return false, h.failed && found == failed
}

// count returns the number of bits set among the lowest n.
func count(bits uint64, n int) (set int) {
	for i := range min(n, 64) {
		set += int(bits >> i & 1)
	}
	return set
}
