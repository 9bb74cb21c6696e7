package mbus

import (
	"fmt"
	"net"
	"strings"
)

// Auditor records requests to the agent: method, caller and outcome. Record must not block.
type Auditor interface{ Record(Event) }

// Event is one audited request.
type Event struct {
	Name       string
	Failed     bool
	extensions []extension
}

type extension struct{ key, value string }

// NATSEvent describes a request that came over NATS. server is its host:port.
func NATSEvent(method, replyTo string, reply Reply, server, hostname string) Event {
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		host, port = server, ""
	}
	e := Event{
		Name:       clip(method),
		extensions: []extension{{"duser", clip(replyTo)}, {"src", host}, {"spt", port}, {"shost", hostname}},
	}
	text, failed := reply.ExceptionText()
	if reply.Silent() {
		text, failed = "not answered", true
	}
	if failed {
		e.Failed = true
		e.extensions = append(e.extensions, extension{"cs1", clip(text)}, extension{"cs1Label", "statusReason"})
	}
	return e
}

// HTTPRequest describes an HTTPS request for the audit log.
type HTTPRequest struct {
	Path, User, Method, Source, Port, Hostname string
	Headers                                    string // a summary without credentials
	Status                                     int
	Reason                                     string
}

// HTTPSEvent describes a request that came over HTTPS.
func HTTPSEvent(r HTTPRequest) Event {
	e := Event{Name: clip(r.Path), Failed: r.Status >= 400, extensions: []extension{
		{
			"duser",
			clip(r.User),
		}, {"requestMethod", clip(r.Method)}, {"src", r.Source}, {"spt", r.Port}, {"shost", r.Hostname},
		{"cs1", clip(r.Headers)}, {"cs1Label", "httpHeaders"}, {"cs2", "basic"}, {"cs2Label", "authType"},
		{"cs3", fmt.Sprint(r.Status)}, {"cs3Label", "responseStatus"},
	}}
	if r.Reason != "" {
		e.extensions = append(e.extensions, extension{"cs4", clip(r.Reason)}, extension{"cs4Label", "statusReason"})
	}
	return e
}

var (
	headerEscapes    = strings.NewReplacer(`\`, `\\`, `|`, `\|`, "\n", " ", "\r", " ")
	extensionEscapes = strings.NewReplacer(`\`, `\\`, `=`, `\=`, "\n", `\n`, "\r", `\r`)
)

// maxAuditValue bounds the length of one value.
const maxAuditValue = 1024

// String formats the event as a line of the Common Event Format.
func (e Event) String() string {
	severity := 1
	if e.Failed {
		severity = 7
	}
	var b strings.Builder
	fmt.Fprintf(&b, "CEF:0|CloudFoundry|BOSH|1|agent_api|%s|%d|", headerEscapes.Replace(e.Name), severity)
	for i, x := range e.extensions {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(x.key + "=" + extensionEscapes.Replace(x.value))
	}
	return b.String()
}

func clip(s string) string {
	if len(s) <= maxAuditValue {
		return s
	}
	return strings.ToValidUTF8(s[:maxAuditValue], "") + "..." // a copy, which does not keep s
}
