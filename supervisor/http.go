package supervisor

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"cambium/supervisor/monitfile"
)

// maxForm bounds the body of a request. The agent, scripts and monit's own program send less.
const maxForm = 4096

// Handler returns a handler for monit's HTTP interface.
func (s *Supervisor) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.allowed(r) {
			w.Header().Set("WWW-Authenticate", `Basic realm="monit"`)
			refuse(w, http.StatusUnauthorized, "You are not authorized to access monit")
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		name := strings.TrimPrefix(r.URL.Path, "/")
		switch {
		case r.Method == http.MethodPost && name == "_doaction": // the form of current versions of monit's program
			action := r.PostFormValue("action") // reads the form
			s.request(w, r.PostForm["service"], action)
		case r.Method == http.MethodPost && (name == "_summary" || name == "_status"):
			w.Header().Set("Content-Type", "text/plain")
			fmt.Fprint(w, s.text(name == "_summary", r.PostFormValue("service")))
		case r.Method == http.MethodPost:
			s.request(w, []string{name}, r.PostFormValue("action"))
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			refuse(w, http.StatusMethodNotAllowed, "Only GET, HEAD and POST are served")
		case name == "_ping":
			fmt.Fprintln(w, "pong")
		case (name == "_status" || name == "_status2") && r.FormValue("format") == "xml":
			w.Header().Set("Content-Type", "text/xml")
			fmt.Fprint(w, s.document(name == "_status2", r.FormValue("level") != "summary"))
		case name == "_status" || name == "_status2":
			w.Header().Set("Content-Type", "text/plain")
			fmt.Fprint(w, s.text(r.FormValue("level") == "summary", r.FormValue("service")))
		default:
			refuse(w, http.StatusNotFound, "There is no service or page named "+name)
		}
	})
}

// allowed reports whether the request has the right credentials. It reads the file each time, because the agent may
// replace it.
func (s *Supervisor) allowed(r *http.Request) bool {
	want, err := os.ReadFile(s.UserFile)
	user, password, given := r.BasicAuth()
	if err != nil || !given {
		return false
	}
	a, b := sha256.Sum256([]byte(strings.TrimSpace(string(want)))), sha256.Sum256([]byte(user+":"+password))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

var verbs = map[string]monitfile.Verb{"start": monitfile.Start, "stop": monitfile.Stop, "restart": monitfile.Restart,
	"monitor": monitfile.Monitor, "unmonitor": monitfile.Unmonitor}

// request schedules an action for the named services, or for none if one of them cannot do it. The chains carry it out
// later; the answer does not wait.
func (s *Supervisor) request(w http.ResponseWriter, names []string, action string) {
	verb, known := verbs[action]
	if !known {
		refuse(w, http.StatusBadRequest, "Invalid action "+action)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var asked []*service
	for _, name := range names {
		at := slices.IndexFunc(s.services, func(v *service) bool {
			// Current versions of monit's program call the machine by its name alone.
			return v.Name == name || v.Type == monitfile.System && v.Name == "system_"+name
		})
		switch rejected := s.rejectionOf(name); {
		case at < 0 && rejected != nil:
			rejected.off = verb == monitfile.Stop || verb == monitfile.Unmonitor
		case at < 0:
			refuse(w, http.StatusNotFound, "There is no service named "+name)
			return
		case s.services[at].pending != monitfile.Ignore && verb != monitfile.Unmonitor:
			refuse(w, http.StatusServiceUnavailable, "Other action already in progress -- please try again later")
			return
		default:
			asked = append(asked, s.services[at])
		}
	}
	for _, v := range asked {
		if v.pending == monitfile.Ignore {
			v.pending = verb
		} else {
			v.next = verb // after a start that may take minutes, for which a drain does not wait
		}
		token(v.kick)
	}
}

// rejectionOf returns the rejected control file of a job, or nil. The caller holds the mutex.
func (s *Supervisor) rejectionOf(job string) *rejection {
	for path, r := range s.rejected {
		if jobOf(path) == job {
			return r
		}
	}
	return nil
}

// refuse answers with an error page like monit's. monit's program shows the text after the heading.
func refuse(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(code)
	fmt.Fprintf(w, "<html><head><title>%[1]d %[2]s</title></head><body><h2>%[2]s</h2>%[3]s<p></body></html>\r\n", code,
		http.StatusText(code), latin1(reason))
}

// latin1 escapes text for a document in ISO-8859-1: markup and characters outside ASCII become character references. A
// byte that is not UTF-8 is taken for ISO-8859-1, as readers of monit's documents do.
func latin1(text string) string {
	var runes []rune
	for rest := text; rest != ""; {
		r, size := utf8.DecodeRuneInString(rest)
		if size == 1 {
			r = rune(rest[0])
		}
		runes, rest = append(runes, r), rest[size:]
	}
	var escaped, b strings.Builder
	_ = xml.EscapeText(&escaped, []byte(string(runes))) // a Builder does not fail
	for _, r := range escaped.String() {
		if r < 0x80 {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, "&#%d;", r)
		}
	}
	return b.String()
}

// document returns the status as XML, in one of monit's two formats.
func (s *Supervisor) document(second, full bool) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	b.WriteString(`<?xml version="1.0" encoding="ISO-8859-1"?>`)
	id := fmt.Sprintf("%x", sha256.Sum256([]byte(s.host)))[:32]
	uptime := int(time.Since(s.began).Seconds())
	if second {
		fmt.Fprintf(&b, `<monit id="%s" incarnation="%d" version="%s"><server>`, id, s.incarnation.Unix(), Version)
	} else {
		fmt.Fprintf(&b, `<monit><server><id>%s</id><incarnation>%d</incarnation><version>%s</version>`, id,
			s.incarnation.Unix(), Version)
	}
	fmt.Fprintf(&b, "<uptime>%d</uptime><poll>%d</poll><startdelay>0</startdelay><localhostname>%s</localhostname>"+
		"<controlfile>%s</controlfile></server>", uptime, int(s.Cycle.Seconds()), latin1(s.host),
		latin1(strings.Join(s.Patterns, " ")))
	if second {
		b.WriteString("<services>")
	}
	groups := map[string][]string{}
	for _, v := range s.services {
		v.document(&b, second, full)
		for _, g := range v.Groups {
			groups[g] = append(groups[g], v.Name)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(s.rejected)) {
		s.rejectedService(path).document(&b, second, full)
		groups[group] = append(groups[group], jobOf(path))
	}
	if second {
		b.WriteString("</services><servicegroups>")
		for _, g := range slices.Sorted(maps.Keys(groups)) {
			fmt.Fprintf(&b, `<servicegroup name="%s">`, latin1(g))
			for _, name := range groups[g] {
				fmt.Fprintf(&b, "<service>%s</service>", latin1(name))
			}
			b.WriteString("</servicegroup>")
		}
		b.WriteString("</servicegroups>")
	}
	b.WriteString("</monit>")
	return b.String()
}

// rejectedService returns a failed service for a control file that cannot be used, so that every client sees that the
// job fails.
func (s *Supervisor) rejectedService(path string) *service {
	v := &service{Check: monitfile.Check{Type: monitfile.Process, Name: jobOf(path), Groups: []string{group}}}
	if r := s.rejected[path]; !r.off {
		v.monitor, v.errors, v.message = On, eventInvalid, r.Error()
	}
	return v
}

// document writes one service of the document. The caller holds the mutex.
func (v *service) document(b *strings.Builder, second, full bool) {
	if second {
		fmt.Fprintf(b, `<service name="%s"><type>%d</type>`, latin1(v.Name), v.Type)
	} else {
		fmt.Fprintf(b, `<service type="%d"><name>%s</name>`, v.Type, latin1(v.Name))
	}
	fmt.Fprintf(b, "<collected_sec>%d</collected_sec><collected_usec>%d</collected_usec><status>%d</status>"+
		"<status_hint>0</status_hint><monitor>%d</monitor><monitormode>%d</monitormode><pendingaction>%d</pendingaction>",
		v.looked.Unix(), v.looked.Nanosecond()/1000, v.errors, v.monitor, v.Mode, v.pending)
	// A stop by the Director ends at a message. What has yet to be seen for the first time is being started.
	if v.errors != 0 && v.monitor != Initializing {
		fmt.Fprintf(b, "<status_message>%s</status_message>", latin1(v.message))
	}
	if p := v.process; full && p.pid != 0 {
		memory := machineMemory() / 1024
		fmt.Fprintf(b, "<pid>%d</pid><ppid>%d</ppid><uptime>%d</uptime><children>%d</children>"+
			"<memory><percent>%.1f</percent><percenttotal>%.1f</percenttotal><kilobyte>%d</kilobyte><kilobytetotal>%d</kilobytetotal></memory>"+
			"<cpu><percent>%.1f</percent><percenttotal>%.1f</percenttotal></cpu>", p.pid, p.parent, uptime(p),
			p.children,
			float64(p.kilobytes)/memory*100, float64(p.totalKB)/memory*100, p.kilobytes, p.totalKB, p.cpu, p.totalCPU)
	}
	if full {
		for _, c := range v.connected {
			v.connection(b, c)
		}
	}
	if v.Type == monitfile.Process && second { // not in monit's documents: for 'agent jobs'
		fmt.Fprintf(b, "<restarts>%d</restarts>", v.restarts)
		if !v.lastEnd.IsZero() {
			fmt.Fprintf(b, "<ended>%d</ended><end_reason>%s</end_reason>", v.lastEnd.Unix(), latin1(v.endReason))
		}
	}
	b.WriteString("</service>")
}

func (v *service) connection(b *strings.Builder, c connected) {
	response := -1.0
	if c.ok {
		response = c.took.Seconds()
	}
	protocol := "DEFAULT"
	if c.endpoint.HTTP {
		protocol = "HTTP"
	}
	if c.endpoint.Unix != "" {
		fmt.Fprintf(b, "<unix><path>%s</path><protocol>%s</protocol><responsetime>%.3f</responsetime></unix>",
			latin1(c.endpoint.Unix), protocol, response)
		return
	}
	network := "TCP"
	if c.endpoint.UDP {
		network = "UDP"
	}
	fmt.Fprintf(
		b,
		"<port><hostname>%s</hostname><portnumber>%d</portnumber><request>%s</request><protocol>%s</protocol>"+
			"<type>%s</type><responsetime>%.3f</responsetime></port>",
		latin1(c.endpoint.Host),
		c.endpoint.Port,
		latin1(c.endpoint.Request),
		protocol,
		network,
		response,
	)
}

func uptime(p process) int {
	if p.started.IsZero() {
		return 0
	}
	return max(0, int(time.Since(p.started).Seconds()))
}

var typeNames = [...]string{"Filesystem", "Directory", "File", "Process", "Remote Host", "System", "Fifo"}

// fine has the state of a service without errors in the summary, by type.
var fine = [...]string{"accessible", "accessible", "accessible", "running", "online with all services", "running",
	"accessible"}

// condition returns the state of a service as in monit's summary.
func (v *service) condition() string {
	text := fine[v.Type]
	switch {
	case v.monitor == Off:
		text = "not monitored"
	case v.monitor == Initializing && v.errors == 0:
		text = "initializing"
	case v.errors != 0:
		for bit := event(1); bit != 0; bit <<= 1 {
			if names, known := eventNames[bit]; known && v.errors&bit != 0 {
				text = names[0]
				break
			}
		}
	}
	if v.pending != monitfile.Ignore {
		text += " - " + v.pending.String() + " pending"
	}
	return text
}

// text returns the status as text: the summary, or the details of all services or of one.
func (s *Supervisor) text(summary bool, only string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "The Monit daemon %s uptime: %s\n\n", Version, span(time.Since(s.began)))
	all := slices.Clone(s.services)
	for _, path := range slices.Sorted(maps.Keys(s.rejected)) {
		all = append(all, s.rejectedService(path))
	}
	for _, v := range all {
		if only != "" && v.Name != only {
			continue
		}
		title := fmt.Sprintf("%s '%s'", typeNames[v.Type], v.Name)
		if summary {
			fmt.Fprintf(&b, "%-35s %s\n", title, v.condition())
			continue
		}
		b.WriteString(title + "\n")
		v.details(func(name, value string) { fmt.Fprintf(&b, "  %-33s %s\n", name, value) })
		b.WriteString("\n")
	}
	return b.String()
}

func (v *service) details(line func(name, value string)) {
	line("status", v.condition())
	line("monitoring status", [...]string{"not monitored", "monitored", "initializing"}[v.monitor])
	if v.errors != 0 {
		line("error", v.message)
	}
	if p := v.process; p.pid != 0 {
		memory := machineMemory() / 1024
		line("pid", fmt.Sprint(p.pid))
		line("parent pid", fmt.Sprint(p.parent))
		line("uptime", span(time.Duration(uptime(p))*time.Second))
		line("children", fmt.Sprint(p.children))
		line("memory kilobytes", fmt.Sprint(p.kilobytes))
		line("memory kilobytes total", fmt.Sprint(p.totalKB))
		line("memory percent", fmt.Sprintf("%.1f%%", float64(p.kilobytes)/memory*100))
		line("memory percent total", fmt.Sprintf("%.1f%%", float64(p.totalKB)/memory*100))
		line("cpu percent", fmt.Sprintf("%.1f%%", p.cpu))
		line("cpu percent total", fmt.Sprintf("%.1f%%", p.totalCPU))
	}
	for _, c := range v.connected {
		result := "failed"
		if c.ok {
			result = fmt.Sprintf("%.3fs", c.took.Seconds())
		}
		line("port response time", result+" to "+where(c.endpoint))
	}
	if v.Type == monitfile.System {
		line("cpus", fmt.Sprint(runtime.NumCPU()))
	}
	line("data collected", v.looked.Format(time.ANSIC))
}

// span formats a duration as monit does: days, hours and minutes.
func span(d time.Duration) string {
	minutes := int(d.Minutes())
	var parts []string
	if days := minutes / (24 * 60); days > 0 {
		parts = append(parts, fmt.Sprintf("%dd", days))
	}
	if hours := minutes / 60 % 24; hours > 0 || len(parts) > 0 {
		parts = append(parts, fmt.Sprintf("%dh", hours))
	}
	return strings.Join(append(parts, fmt.Sprintf("%dm", minutes%60)), " ")
}
