package monitfile

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

// maxFile bounds the size of a control file in bytes. Those of releases have a few kilobytes.
const maxFile = 1 << 20

// monit's defaults.
const (
	programTimeout = 30 * time.Second
	networkTimeout = 5 * time.Second
)

// maxRate is the number of cycles for which monit remembers the results of a test.
const maxRate = 64

// types maps keywords to kinds of services. device is the older word for filesystem.
var types = map[string]Type{
	"process": Process, "file": File, "filesystem": Filesystem, "device": Filesystem, "directory": Directory,
	"fifo": Fifo, "host": Host, "system": System,
}

// typeNames has the keywords of the kinds, for errors.
var typeNames = [...]string{"filesystem", "directory", "file", "process", "host", "system", "fifo"}

// subject describes a quantity that a test can measure.
type subject struct {
	kind    TestKind
	of      []Type
	changed bool // "if changed" can test it
	percent bool // the value may be a percentage, and must be one if there are no units
	units   map[string]float64
}

// Units and their factors. Without a unit, a value is in bytes or seconds.
var (
	sizes = map[string]float64{
		"b": 1, "byte": 1, "bytes": 1, "kb": 1 << 10, "kilobyte": 1 << 10, "kilobytes": 1 << 10,
		"mb": 1 << 20, "megabyte": 1 << 20, "megabytes": 1 << 20,
		"gb": 1 << 30, "gigabyte": 1 << 30, "gigabytes": 1 << 30,
	}
	times = map[string]float64{
		"second": 1, "seconds": 1, "minute": 60, "minutes": 60,
		"hour": 3600, "hours": 3600, "day": 86400, "days": 86400,
	}
)

var subjects = map[string]subject{
	"totalmem":  {kind: Resource, of: []Type{Process}, percent: true, units: sizes},
	"mem":       {kind: Resource, of: []Type{Process, System}, percent: true, units: sizes},
	"totalcpu":  {kind: Resource, of: []Type{Process}, percent: true},
	"cpu":       {kind: Resource, of: []Type{Process}, percent: true},
	"children":  {kind: Resource, of: []Type{Process}},
	"loadavg":   {kind: Resource, of: []Type{Process, System}},
	"timestamp": {kind: Value, of: []Type{File, Directory, Fifo}, changed: true, units: times},
	"size":      {kind: Value, of: []Type{File}, changed: true, units: sizes},
	"space":     {kind: Value, of: []Type{Filesystem}, percent: true, units: sizes},
	"inode":     {kind: Value, of: []Type{Filesystem}, percent: true, units: map[string]float64{}},
	"pid":       {kind: Changed, of: []Type{Process}, changed: true},
	"ppid":      {kind: Changed, of: []Type{Process}, changed: true},
}

// aliases maps other names of subjects.
var aliases = map[string]string{"memory": "mem", "totalmemory": "totalmem", "child": "children", "inodes": "inode"}

var operators = map[string]Operator{
	">": Greater, "gt": Greater, "greater": Greater, "<": Less, "lt": Less, "less": Less,
	"=": Equal, "==": Equal, "eq": Equal, "equal": Equal, "!=": NotEqual, "ne": NotEqual, "notequal": NotEqual,
}

// Parse parses the checks of a file. If there is anything that it does not understand, it returns an *Error and no
// checks.
func Parse(source string, text []byte) ([]Check, error) {
	s := &scanner{source: source, rest: string(text), line: 1, column: 1}
	if len(text) > maxFile {
		s.fail(s.here(), "the file has %d bytes: expected at most %d", len(text), maxFile)
	}
	var checks []Check
	for !s.peek().isEnd() {
		at := s.peek()
		if _, ok := s.take("check"); ok {
			checks = append(checks, s.check(at))
		} else {
			s.notAClause("check")
		}
	}
	if s.err != nil {
		return nil, s.err
	}
	return checks, nil
}

// notAClause fails, because the next token begins no clause.
func (s *scanner) notAClause(expected string) {
	t := s.peek()
	if word := t.lower(); word == "set" || word == "include" {
		s.fail(t, "%q belongs in the daemon's control file, not in a job's", word)
		return
	}
	s.unexpected(t, expected)
}

// check parses a check after the word check.
func (s *scanner) check(at token) Check {
	s.service = ""
	c := Check{Type: Process, Source: s.source, Line: at.line}
	c.Name = s.name("a kind of service, or the name of a process")
	if kind, ok := types[strings.ToLower(c.Name)]; ok {
		c.Type, c.Name = kind, s.name("the name of a service")
	}
	s.service = c.Name
	s.object(&c)
	for s.peek().lower() != "check" && !s.peek().isEnd() {
		s.clause(&c)
	}
	isConnection := func(t Test) bool { return t.Kind == Connection }
	if c.Type == Host && !slices.ContainsFunc(c.Tests, isConnection) {
		s.fail(at, "expected a port test: nothing else can be checked of a host")
	}
	return c
}

// object parses the pid file, path or address of a check.
func (s *scanner) object(c *Check) {
	switch c.Type {
	case System:
	case Host:
		s.expect("address", "address")
		c.Address = s.word("a host name or address")
	case Process:
		switch s.expect("pidfile, path or matching", "pidfile", "path", "matching") {
		case "pidfile", "path":
			c.Pidfile = s.path()
		case "matching":
			t := s.peek()
			pattern := s.word("a regular expression")
			expression, err := regexp.Compile(pattern)
			if err != nil {
				s.fail(t, "expected a regular expression: %s", err)
			}
			c.Matching = expression
		}
	default:
		s.expect("path", "path")
		c.Path = s.path()
	}
}

// clause parses one attribute or test of a check.
func (s *scanner) clause(c *Check) {
	keyword, _ := s.take("start", "stop", "group", "depends", "depend", "every", "mode", "if")
	switch keyword {
	case "start":
		c.Start = s.command(true)
	case "stop":
		c.Stop = s.command(true)
	case "group":
		c.Groups = append(c.Groups, s.name("the name of a group"))
	case "depends", "depend":
		t := s.raw()
		if t.lower() == "on" {
			t = s.raw()
		}
		c.DependsOn = append(c.DependsOn, s.nameOf(t, "the name of a service"))
		for s.space() {
			c.DependsOn = append(c.DependsOn, s.name("the name of a service"))
		}
	case "every":
		c.Every = s.number("a number of cycles", 1, math.MaxInt32)
		s.expect("cycles", "cycle", "cycles")
	case "mode":
		modes := map[string]Mode{"active": Active, "passive": Passive, "manual": Manual}
		c.Mode = modes[s.expect("active, passive or manual", "active", "passive", "manual")]
	case "if":
		c.Tests = append(c.Tests, s.test(c))
	default:
		s.notAClause("start, stop, group, depends, every, mode, if or check")
	}
}

// command parses a program with its user and, if timed, its time-out.
func (s *scanner) command(timed bool) *Command {
	c := &Command{Args: s.arguments()}
	for {
		option, ok := s.take("uid", "gid")
		if !ok {
			break
		}
		if option == "uid" {
			c.User = s.word("a user")
		} else {
			c.Group = s.word("a group")
		}
	}
	if timed {
		c.Timeout = s.timeout(programTimeout, 0)
	}
	return c
}

// timeout parses an optional time-out in seconds, and returns otherwise if there is none.
func (s *scanner) timeout(otherwise time.Duration, least int) time.Duration {
	if _, ok := s.take("timeout"); !ok {
		return otherwise
	}
	n := s.number("a number of seconds", least, math.MaxInt32)
	s.expect("seconds", "second", "seconds")
	return time.Duration(n) * time.Second
}

// test parses a test after the word if.
func (s *scanner) test(c *Check) Test {
	first := s.peek()
	t := Test{Line: first.line, Rate: Rate{1, 1}, Recovery: Action{Verb: Alert}, RecoveryRate: Rate{1, 1}}
	if _, isNumber := first.number(); isNumber {
		s.restarts(&t)
		return t
	}
	switch first.lower() {
	case "failed":
		s.next()
		s.only(c, first, "port or socket", Process, Host)
		t.Connection = s.endpoint(c)
	case "not":
		s.next()
		s.expect("exist", "exist", "exists")
		s.only(c, first, "existence", Process, File, Filesystem, Directory, Fifo)
		t.Kind = NotExist
	case "changed":
		s.next()
		t.Kind, t.Recovery = Changed, Action{}
		at := s.peek()
		name, what, _ := s.subject()
		if !what.changed {
			s.unexpected(at, "pid, ppid, timestamp or size")
		}
		s.only(c, at, name, what.of...)
		t.Subject = name
	default:
		s.measure(c, &t)
	}
	t.Rate = s.rate()
	s.expect("then", "then")
	t.Then = s.action()
	if t.Kind == Changed {
		return t
	}
	if _, ok := s.take("else"); ok {
		s.expect("if", "if")
		s.expect("recovered, passed or succeeded", "recovered", "passed", "succeeded")
		t.RecoveryRate = s.rate()
		s.expect("then", "then")
		t.Recovery = s.action()
	}
	return t
}

// only fails unless the service is one of the given kinds.
func (s *scanner) only(c *Check, at token, what string, of ...Type) {
	if !slices.Contains(of, c.Type) {
		s.fail(at, "a %s cannot be tested for its %s", typeNames[c.Type], what)
	}
}

// restarts parses "N restarts within M cycles".
func (s *scanner) restarts(t *Test) {
	t.Kind = Restarts
	t.Restarts = s.number("a number of restarts", 1, math.MaxInt32)
	s.expect("restarts", "restart", "restarts")
	at := s.peek()
	t.Cycles = s.number("a number of cycles", 1, math.MaxInt32)
	if t.Restarts > t.Cycles {
		s.fail(at, "expected at least as many cycles as restarts, %s", at.found())
	}
	s.expect("cycles", "cycle", "cycles")
	s.expect("then", "then")
	if _, ok := s.take("timeout"); ok {
		t.Then = Action{Verb: Unmonitor}
		return
	}
	t.Then = s.action()
}

// endpoint parses a connection test after "if failed".
func (s *scanner) endpoint(c *Check) *Endpoint {
	e := &Endpoint{}
	switch keyword := s.expect("host, port or unixsocket", "host", "port", "unixsocket", "unix"); keyword {
	case "unixsocket", "unix":
		e.Unix = s.path()
	default:
		e.Host = "localhost"
		if c.Type == Host {
			e.Host = c.Address
		}
		if keyword == "host" {
			e.Host = s.word("a host name or address")
			s.expect("port", "port")
		}
		e.Port = s.number("a port", 1, math.MaxUint16)
	}
	if _, ok := s.take("type"); ok {
		kind := s.expect("tcp, udp or tcpssl", "tcp", "udp", "tcpssl")
		e.UDP, e.TLS = kind == "udp", kind == "tcpssl"
	}
	if _, ok := s.take("protocol", "proto"); ok {
		e.HTTP = s.expect("http or default", "http", "default") == "http"
	}
	if e.HTTP {
		e.Request = "/"
		if _, ok := s.take("request"); ok {
			e.Request = s.word("the path of a request")
		}
		if _, ok := s.take("hostheader"); ok {
			e.HostHeader = s.word("a host name")
		}
	}
	e.Timeout = s.timeout(networkTimeout, 1)
	return e
}

// subject parses the name of a measured quantity.
func (s *scanner) subject() (name string, what subject, found bool) {
	name = s.peek().lower()
	if other, ok := aliases[name]; ok {
		name = other
	}
	if what, found = subjects[name]; found {
		s.next()
	}
	return name, what, found
}

// measure parses "SUBJECT OPERATOR VALUE". If a test names several resources, monit compares only the last one.
func (s *scanner) measure(c *Check, t *Test) {
	for {
		at := s.peek()
		name, what, found := s.subject()
		if !found || what.kind == Changed {
			s.unexpected(at, "failed, changed, not exist, a number of restarts, or what to measure, such as totalmem")
			return
		}
		s.only(c, at, name, what.of...)
		t.Kind, t.Subject = what.kind, name
		if name == "loadavg" {
			minutes := s.expect("1, 5 or 15 minutes", "1min", "5min", "15min", "1", "5", "15")
			t.Subject += "(" + strings.TrimSuffix(minutes, "min") + ")"
		}
		s.limit(what, t)
		if next := subjects[s.peek().lower()]; what.kind != Resource || next.kind != Resource || next.of == nil {
			return
		}
	}
}

// limit parses an operator and a value.
func (s *scanner) limit(what subject, t *Test) {
	operator, known := operators[s.peek().lower()]
	if !known {
		s.unexpected(s.peek(), "an operator: >, <, =, !=, or a word for one")
		return
	}
	s.next()
	t.Operator = operator
	value := s.next()
	limit, isNumber := value.number()
	if !isNumber {
		s.unexpected(value, "a number")
		return
	}
	t.Limit, t.Percent = limit, false
	if what.percent {
		_, t.Percent = s.take("%", "percent")
	}
	if unit, found := what.units[s.peek().lower()]; found && !t.Percent {
		t.Limit *= unit
		s.next()
	}
	if what.percent && what.units == nil && !t.Percent {
		s.unexpected(s.peek(), "%")
	}
}

// rate parses an optional "[N] M cycles".
func (s *scanner) rate() Rate {
	first := s.peek()
	if _, isNumber := first.number(); !isNumber {
		return Rate{1, 1}
	}
	n := s.number("a number of cycles", 1, maxRate)
	r := Rate{n, n}
	if _, isNumber := s.peek().number(); isNumber {
		if r.Cycles = s.number("a number of cycles", 1, maxRate); r.Count > r.Cycles {
			s.fail(first, "expected at most %d, the number of cycles, %s", r.Cycles, first.found())
		}
	}
	s.expect("cycles", "cycle", "cycles")
	return r
}

// action parses the action of a test.
func (s *scanner) action() Action {
	word := s.expect("alert, restart, start, stop, unmonitor or exec",
		"alert", "restart", "start", "stop", "unmonitor", "exec")
	a := Action{Verb: Verb(max(0, slices.Index(verbs[:], word)))}
	if a.Verb == Exec {
		a.Exec = s.command(false)
	}
	return a
}
