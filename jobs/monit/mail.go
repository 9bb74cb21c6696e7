package monit

import (
	"strings"
	"time"
)

// Alert is an alert mail from monit.
type Alert struct {
	ID          string
	Service     string
	Event       string
	Action      string
	Description string
	// Date is zero if the mail has no valid date.
	Date time.Time
}

// ParseAlert parses a mail in the format that a stemcell configures. If a line occurs several times, the last one
// counts, because a message could contain one. It returns false for a mail without such lines.
func ParseAlert(mail string) (Alert, bool) {
	var a Alert
	for line := range strings.Lines(mail) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		switch strings.ToLower(key) {
		case "message-id":
			a.ID = strings.Trim(value, "<>")
		case "service":
			a.Service = value
		case "event":
			a.Event = value
		case "action":
			a.Action = value
		case "description":
			a.Description = value
		case "date":
			a.Date = parseDate(value)
		}
	}
	return a, a.Service != "" || a.Event != ""
}

// parseDate parses a date of monit. Current versions write no zone, which means the local one.
func parseDate(text string) time.Time {
	for _, layout := range []string{"Mon, 2 Jan 2006 15:04:05 -0700", "Mon, 2 Jan 2006 15:04:05", time.RFC1123} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t
		}
	}
	return time.Time{}
}

// Severities of the Health Monitor. SeverityIgnored is for events that report no problem.
const (
	SeverityIgnored  = -1
	SeverityAlert    = 1
	SeverityCritical = 2
	SeverityError    = 3
	SeverityWarning  = 4
)

var severities = map[string]int{
	"action done": SeverityIgnored, "exists": SeverityIgnored, "content match": SeverityIgnored,
	"timeout recovery": SeverityIgnored, "monit instance changed": SeverityIgnored,

	"connection failed": SeverityAlert, "execution failed": SeverityAlert,
	"monit instance failed": SeverityAlert, "does not exist": SeverityAlert,

	"checksum failed": SeverityCritical, "icmp failed": SeverityCritical, "pid failed": SeverityCritical,
	"ppid failed": SeverityCritical, "uid failed": SeverityCritical, "timeout": SeverityCritical,

	"connection changed": SeverityError, "content failed": SeverityError, "content doesn't match": SeverityError,
	"data access error": SeverityError, "filesystem flags failed": SeverityError, "gid failed": SeverityError,
	"heartbeat failed": SeverityError, "invalid type": SeverityError, "permission failed": SeverityError,
	"resource limit matched": SeverityError, "size failed": SeverityError, "size changed": SeverityError,
	"timestamp failed": SeverityError,

	"checksum changed": SeverityWarning, "data access changed": SeverityWarning, "execution changed": SeverityWarning,
	"filesystem flags changed": SeverityWarning, "gid changed": SeverityWarning, "heartbeat changed": SeverityWarning,
	"icmp changed": SeverityWarning, "type changed": SeverityWarning, "existence changed": SeverityWarning,
	"permission changed": SeverityWarning, "pid changed": SeverityWarning, "ppid changed": SeverityWarning,
	"resource limit changed": SeverityWarning, "timeout changed": SeverityWarning,
	"timestamp changed": SeverityWarning, "uid changed": SeverityWarning,
}

// Severity returns the severity of the event. An unknown event is critical, because monit sent a mail about it.
func (a Alert) Severity() int {
	event := strings.ToLower(strings.TrimSpace(a.Event))
	if s, ok := severities[event]; ok {
		return s
	}
	if strings.HasSuffix(event, " succeeded") || strings.HasSuffix(event, " not changed") {
		return SeverityIgnored
	}
	return SeverityCritical
}

// Missing reports whether the alert reports a missing process.
func (a Alert) Missing() bool { return strings.EqualFold(strings.TrimSpace(a.Event), "does not exist") }

// Title returns the title of the alert. ips, which should be sorted, say where it happened.
func (a Alert) Title(ips []string) string {
	where := a.Service
	if len(ips) > 0 {
		where += " (" + strings.Join(ips, ", ") + ")"
	}
	return where + " - " + a.Event + " - " + a.Action
}
