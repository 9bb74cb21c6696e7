package monitfile

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// process is the head of the checks that the tables below add clauses to.
const process = "check process a with pidfile /run/a.pid\n"

func command(args ...string) *Command { return &Command{Args: args, Timeout: 30 * time.Second} }

func (c Command) as(user, group string) *Command {
	c.User, c.Group = user, group
	return &c
}

func (c Command) within(d time.Duration) *Command {
	c.Timeout = d
	return &c
}

// alert is a test with monit's defaults.
func alert(t Test) Test {
	t.Rate, t.Then, t.RecoveryRate = Rate{1, 1}, Action{Verb: Alert}, Rate{1, 1}
	if t.Kind != Changed {
		t.Recovery = Action{Verb: Alert}
	}
	return t
}

func (t Test) rate(count, cycles int) Test {
	t.Rate = Rate{count, cycles}
	return t
}

func (t Test) then(verb Verb) Test {
	t.Then = Action{Verb: verb}
	return t
}

func (t Test) exec(c *Command) Test {
	c.Timeout = 0
	t.Then = Action{Verb: Exec, Exec: c}
	return t
}

func (t Test) recovery(a Action, count, cycles int) Test {
	t.Recovery, t.RecoveryRate = a, Rate{count, cycles}
	return t
}

func resource(subject string, o Operator, limit float64) Test {
	return alert(Test{Kind: Resource, Subject: subject, Operator: o, Limit: limit})
}

func value(subject string, o Operator, limit float64) Test {
	t := resource(subject, o, limit)
	t.Kind = Value
	return t
}

func (t Test) percent() Test {
	t.Percent = true
	return t
}

func changed(subject string) Test { return alert(Test{Kind: Changed, Subject: subject}) }

func connection(e Endpoint) Test {
	if e.Timeout == 0 {
		e.Timeout = 5 * time.Second
	}
	return alert(Test{Kind: Connection, Connection: &e})
}

func restarts(n, cycles int) Test { return alert(Test{Kind: Restarts, Restarts: n, Cycles: cycles}) }

const mb = 1 << 20

// shapes are files and what they mean. A check without a name is process a with its pid file; lines are not compared.
var shapes = []struct {
	text string
	want []Check
}{
	{"", nil},
	{" \t\r\n\n", nil},
	{"# nothing but a comment, ä\xff", nil},

	// Kinds of services.
	{process, []Check{{}}},
	{"check process a with pidfile /run/a.pid # no newline", []Check{{}}},
	{"  check\tprocess a,\r\n\r\n  (with) pidfile\n\n\"/run/a.pid\";", []Check{{}}},
	{"CHECK PROCESS a WITH PIDFILE /run/a.pid", []Check{{}}},
	{"check a pidfile /run/a.pid", []Check{{}}},
	{"check process a path /run/a.pid", []Check{{}}},
	{"check process worker_3-x pidfile /a", []Check{{Type: Process, Name: "worker_3-x", Pidfile: "/a"}}},
	{"check process 3 pidfile /a", []Check{{Type: Process, Name: "3", Pidfile: "/a"}}},
	{"check process with with pidfile /a", []Check{{Type: Process, Name: "with", Pidfile: "/a"}}},
	{"check process group pidfile /a", []Check{{Type: Process, Name: "group", Pidfile: "/a"}}},
	{"check process \"a b\" pidfile \"/a b\\ c\\0x41\"", []Check{{Type: Process, Name: "a b", Pidfile: "/a b cA"}}},
	{"check process g matching g.daemon",
		[]Check{{Type: Process, Name: "g", Matching: regexp.MustCompile("g.daemon")}}},
	{"check process g matching \"g [a-z]+$\"",
		[]Check{{Type: Process, Name: "g", Matching: regexp.MustCompile("g [a-z]+$")}}},
	{"check process g matching /usr/bin/g",
		[]Check{{Type: Process, Name: "g", Matching: regexp.MustCompile("/usr/bin/g")}}},
	{"check file f with path /f", []Check{{Type: File, Name: "f", Path: "/f"}}},
	{"check filesystem f path /f", []Check{{Type: Filesystem, Name: "f", Path: "/f"}}},
	{"check device f with path /f", []Check{{Type: Filesystem, Name: "f", Path: "/f"}}},
	{"check directory f path /f", []Check{{Type: Directory, Name: "f", Path: "/f"}}},
	{"check fifo f path /f", []Check{{Type: Fifo, Name: "f", Path: "/f"}}},
	{"check host h with address 10.1.2.3 if failed port 80 then alert",
		[]Check{{Type: Host, Name: "h", Address: "10.1.2.3",
			Tests: []Test{connection(Endpoint{Host: "10.1.2.3", Port: 80})}}}},
	{"check system s", []Check{{Type: System, Name: "s"}}},
	{"check process x pidfile /x check process y\npidfile /y",
		[]Check{{Type: Process, Name: "x", Pidfile: "/x"}, {Type: Process, Name: "y", Pidfile: "/y"}}},

	// Programs.
	{process + `start program "/s" stop program  "/t"`, []Check{{Start: command("/s"), Stop: command("/t")}}},
	{process + `START "/s" STOP = "/t"`, []Check{{Start: command("/s"), Stop: command("/t")}}},
	{process + `start program="/s" stop program = "/t"`, []Check{{Start: command("/s"), Stop: command("/t")}}},
	{process + "start\nprogram\n\"/s\"", []Check{{Start: command("/s")}}},
	{process + `start program "/s" start program "/t"`, []Check{{Start: command("/t")}}},
	{process + `start program "/s  a,b;(c) #d` + "\n\t" + `e"`, []Check{{Start: command("/s", "a,b;(c)", "#d", "e")}}},
	{process + `start program "/s '/bin/ctl start' ''"`, []Check{{Start: command("/s", "/bin/ctl start", "")}}},
	{process + `start program "/s 'a\ b\tc\0x41\q\\n' \t x\ y"`,
		[]Check{{Start: command("/s", "a b\tcA\\q\\n", `\t`, `x\`, "y")}}},
	{process + `start program "/s 'b c'd e'f g'"`, []Check{{Start: command("/s", "b c", "d", "e'f", "g'")}}},
	{process + `start program "/s 'it's 'x"`, []Check{{Start: command("/s", "'it's", "'x")}}},
	{process + "start program \"/s 'a\nb'\"", []Check{{Start: command("/s", "a\nb")}}},
	{process + `start program "/s ` + strings.Repeat("x ", 62) + `"`,
		[]Check{{Start: command(append([]string{"/s"}, slices.Repeat([]string{"x"}, 62)...)...)}}},
	{process + `start program "/s" with timeout 180 seconds`, []Check{{Start: command("/s").within(3 * time.Minute)}}},
	{process + `stop program "/s" timeout 1 second`, []Check{{Stop: command("/s").within(time.Second)}}},
	{process + `stop program "/s" timeout 0 seconds`, []Check{{Stop: command("/s").within(0)}}},
	{process + `start program "/s" as uid nobody and gid root timeout 60 seconds`,
		[]Check{{Start: command("/s").as("nobody", "root").within(time.Minute)}}},
	{process + `start program "/s" gid 0 uid 1`, []Check{{Start: command("/s").as("1", "0")}}},
	{process + `start program "/s" as uid "root"`, []Check{{Start: command("/s").as("root", "")}}},

	// Other attributes.
	{process + "group vcap group b", []Check{{Groups: []string{"vcap", "b"}}}},
	{process + "group \"http\"", []Check{{Groups: []string{"http"}}}},
	{process + "depends on b,c\ncheck b pidfile /b check c pidfile /c", []Check{{DependsOn: []string{"b", "c"}},
		{Type: Process, Name: "b", Pidfile: "/b"}, {Type: Process, Name: "c", Pidfile: "/c"}}},
	{process + "DEPENDS b\n, \"c\"\ncheck b pidfile /b check c pidfile /c", []Check{{DependsOn: []string{"b", "c"}},
		{Type: Process, Name: "b", Pidfile: "/b"}, {Type: Process, Name: "c", Pidfile: "/c"}}},
	{process + "every 2 cycles", []Check{{Every: 2}}},
	{process + "mode passive", []Check{{Mode: Passive}}},
	{process + "mode manual mode active", []Check{{Mode: Active}}},

	// Resources.
	{process + "if totalmem > 500 Mb for 15 cycles then restart",
		only(resource("totalmem", Greater, 500*mb).rate(15, 15).then(Restart))},
	{process + "if totalmem > 80 % 15 cycles then restart",
		only(resource("totalmem", Greater, 80).percent().rate(15, 15).then(Restart))},
	{process + "if TotalMem > 80% for 3 times within 5 cycles then alert",
		only(resource("totalmem", Greater, 80).percent().rate(3, 5))},
	{process + "if mem is greater than 1.5 gigabytes then stop",
		only(resource("mem", Greater, 1.5*(1<<30)).then(Stop))},
	{process + "if memory usage < 10 percent then alert", only(resource("mem", Less, 10).percent())},
	{process + "if totalmem lt 7 kb then alert if totalmem gt 7 b then alert if totalmem less than 7 then alert",
		only(resource("totalmem", Less, 7<<10), resource("totalmem", Greater, 7), resource("totalmem", Less, 7))},
	{process + "if mem = 7 byte then alert if mem == 7 kilobyte then alert if mem eq 7 megabyte then alert",
		only(resource("mem", Equal, 7), resource("mem", Equal, 7<<10), resource("mem", Equal, 7*mb))},
	{process + "if mem equal 7 then alert if mem != 7 then alert if mem ne 8 then alert if mem notequal 9 then alert",
		only(resource("mem", Equal, 7), resource("mem", NotEqual, 7), resource("mem", NotEqual, 8),
			resource("mem", NotEqual, 9))},
	{process + "if cpu > 80% for 5 cycles then alert", only(resource("cpu", Greater, 80).percent().rate(5, 5))},
	{process + "if totalcpu usage > 90 percent then unmonitor",
		only(resource("totalcpu", Greater, 90).percent().then(Unmonitor))},
	{process + "if children > 250 64 cycles then restart",
		only(resource("children", Greater, 250).rate(64, 64).then(Restart))},
	{process + "if loadavg(5min) > 3.5 then alert", only(resource("loadavg(5)", Greater, 3.5))},
	{"check system s if loadavg(1) > 4 then alert if loadavg (15min) > 2 then alert if mem > 90% then alert",
		[]Check{{Type: System, Name: "s", Tests: []Test{resource("loadavg(1)", Greater, 4),
			resource("loadavg(15)", Greater, 2), resource("mem", Greater, 90).percent()}}}},
	{process + "if cpu > 80% and children > 5 then alert", only(resource("children", Greater, 5))},
	{process + "if cpu > 80% and totalmem > 50 MB for 5 cycles then alert",
		only(resource("totalmem", Greater, 50*mb).rate(5, 5))},

	// Connections.
	{process + "if failed port 80 then alert", only(connection(Endpoint{Host: "localhost", Port: 80}))},
	{process + "if failed host \"db.internal\" port 4222 type tcp then alert",
		only(connection(Endpoint{Host: "db.internal", Port: 4222}))},
	{process + "if failed host 127.0.0.1 port 91 protocol HTTP request \"/x\"\n" +
		"with timeout 9 seconds\nfor 6 cycles then stop",
		only(connection(Endpoint{Host: "127.0.0.1", Port: 91, HTTP: true, Request: "/x", Timeout: 9 * time.Second}).
			rate(6, 6).then(Stop))},
	{process + "if failed port 443 type tcpssl protocol http and request /x?y=z hostheader a.b then alert",
		only(connection(Endpoint{Host: "localhost", Port: 443, TLS: true, HTTP: true, Request: "/x?y=z",
			HostHeader: "a.b"}))},
	{process + "if failed port 80 proto http then alert",
		only(connection(Endpoint{Host: "localhost", Port: 80, HTTP: true, Request: "/"}))},
	{process + "if failed port 53 type UDP protocol default then alert",
		only(connection(Endpoint{Host: "localhost", Port: 53, UDP: true}))},
	{process + "if failed unixsocket /a.sock then restart", only(connection(Endpoint{Unix: "/a.sock"}).then(Restart))},
	{process + "if failed unix \"/a.sock\" type tcp protocol http with timeout 3 seconds 2 4 cycles then start",
		only(connection(Endpoint{Unix: "/a.sock", HTTP: true, Request: "/", Timeout: 3 * time.Second}).
			rate(2, 4).then(Start))},

	// Other tests.
	{process + "if 3 restarts within 5 cycles then timeout", only(restarts(3, 5).then(Unmonitor))},
	{process + "if 1 restart within 2 cycles then exec \"/x g  /c\"",
		only(restarts(1, 2).exec(command("/x", "g", "/c")))},
	{process + "if(5 restarts, 5 cycle) then stop;", only(restarts(5, 5).then(Stop))},
	{process + "if 70 restarts 80 cycles then alert", only(restarts(70, 80))},
	{process + "if does not exist then start\nstart program \"/s\"",
		[]Check{{Start: command("/s"), Tests: []Test{alert(Test{Kind: NotExist}).then(Start)}}}},
	{process + "if not exist for 3 cycles then restart\nelse if recovered for 2 cycles then exec \"/x\" uid 1 gid 0",
		only(alert(Test{Kind: NotExist}).rate(3, 3).then(Restart).
			recovery(Action{Exec, command("/x").as("1", "0").within(0)}, 2, 2))},
	{process + "if failed port 1 then alert else if passed then stop\n" +
		"if failed port 1 then alert else if succeeded 1 2 cycles then restart",
		only(connection(Endpoint{Host: "localhost", Port: 1}).recovery(Action{Verb: Stop}, 1, 1),
			connection(Endpoint{Host: "localhost", Port: 1}).recovery(Action{Verb: Restart}, 1, 2))},
	{process + "if changed pid then alert if changed ppid 2 cycles then restart",
		only(changed("pid"), changed("ppid").rate(2, 2).then(Restart))},
	{"check file f path /f if changed timestamp then exec \"/bin/sh -c 'kill -1 $(cat /p)'\"\n" +
		"if changed size then alert",
		[]Check{{Type: File, Name: "f", Path: "/f", Tests: []Test{
			changed("timestamp").exec(command("/bin/sh", "-c", "kill -1 $(cat /p)")), changed("size")}}}},
	{"check file f path /f if timestamp > 5 minutes then alert if timestamp < 30 then alert\n" +
		"if size > 2 GB then alert if size > 3 then alert",
		[]Check{{Type: File, Name: "f", Path: "/f", Tests: []Test{value("timestamp", Greater, 300),
			value("timestamp", Less, 30), value("size", Greater, 2<<30), value("size", Greater, 3)}}}},
	{"check directory f path /f if timestamp > 1 hour then alert check fifo g path /g if timestamp > 2 days then alert",
		[]Check{{Type: Directory, Name: "f", Path: "/f", Tests: []Test{value("timestamp", Greater, 3600)}},
			{Type: Fifo, Name: "g", Path: "/g", Tests: []Test{value("timestamp", Greater, 2*86400)}}}},
	{"check device f path /f if SPACE usage > 80% then alert if space > 2.5 gb then alert\n" +
		"if inode > 90 % then alert if inodes > 5 then alert",
		[]Check{{Type: Filesystem, Name: "f", Path: "/f", Tests: []Test{value("space", Greater, 80).percent(),
			value("space", Greater, 2.5*(1<<30)), value("inode", Greater, 90).percent(), value("inode", Greater, 5)}}}},
	{odd, oddChecks},
}

func only(tests ...Test) []Check { return []Check{{Tests: tests}} }

// odd has what is unusual in the files of releases.
const odd = `# Größe
check process alpha with pidfile "/var/vcap/sys/run/alpha/alpha.pid"
 group vcap
 start program "/var/vcap/packages/debugger alpha_ctl '/var/vcap/jobs/alpha/bin/ctl start'" with timeout 180 seconds
 stop  program  "/var/vcap/jobs/alpha/bin/ctl stop"
check process beta
  with pidfile /var/vcap/sys/run/beta/pid
  start program "/var/vcap/jobs/beta/bin/ctl start"
    as uid nobody and gid root timeout 60 seconds
  depends on alpha,gamma
  group vcap
  if totalmem > 80 % 15 cycles then restart
check process gamma matching gamma.daemon
  if 1 restart within 2 cycles then exec "/r gamma  /count"
  if failed unixsocket /g.sock then restart
  if failed host localhost port 4222 type tcp then alert
check file delta path /etc/cron.d/delta
	start program "/ctl install"
	stop program "/ctl remove"
check host zeta-health address localhost
  depends on alpha
  if failed host localhost port 8080 protocol http
     and request "/health"
     with timeout 20 seconds
  then alert
  group vcap`

var oddChecks = []Check{
	{Type: Process, Name: "alpha", Pidfile: "/var/vcap/sys/run/alpha/alpha.pid", Groups: []string{"vcap"},
		Start: command("/var/vcap/packages/debugger", "alpha_ctl", "/var/vcap/jobs/alpha/bin/ctl start").
			within(3 * time.Minute),
		Stop: command("/var/vcap/jobs/alpha/bin/ctl", "stop")},
	{Type: Process, Name: "beta", Pidfile: "/var/vcap/sys/run/beta/pid", Groups: []string{"vcap"},
		DependsOn: []string{"alpha", "gamma"},
		Start:     command("/var/vcap/jobs/beta/bin/ctl", "start").as("nobody", "root").within(time.Minute),
		Tests:     []Test{resource("totalmem", Greater, 80).percent().rate(15, 15).then(Restart)}},
	{Type: Process, Name: "gamma", Matching: regexp.MustCompile("gamma.daemon"), Tests: []Test{
		restarts(1, 2).exec(command("/r", "gamma", "/count")),
		connection(Endpoint{Unix: "/g.sock"}).then(Restart),
		connection(Endpoint{Host: "localhost", Port: 4222})}},
	{Type: File, Name: "delta", Path: "/etc/cron.d/delta",
		Start: command("/ctl", "install"), Stop: command("/ctl", "remove")},
	{Type: Host, Name: "zeta-health", Address: "localhost", DependsOn: []string{"alpha"}, Groups: []string{"vcap"},
		Tests: []Test{connection(Endpoint{Host: "localhost", Port: 8080, HTTP: true, Request: "/health",
			Timeout: 20 * time.Second})}},
}

func TestParse(t *testing.T) {
	for _, shape := range shapes {
		got, err := Parse("f", []byte(shape.text))
		if err != nil {
			t.Errorf("%s\n%v", shape.text, err)
			continue
		}
		for i := range got {
			if got[i].Source != "f" || got[i].Line < 1 {
				t.Errorf("%s\nbegins at %s:%d", shape.text, got[i].Source, got[i].Line)
			}
			got[i].Source, got[i].Line = "", 0
			for j := range got[i].Tests {
				got[i].Tests[j].Line = 0
			}
		}
		want := slices.Clone(shape.want)
		for i := range want {
			if want[i].Name == "" {
				want[i].Type, want[i].Name, want[i].Pidfile = Process, "a", "/run/a.pid"
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s\n got %s\nwant %s", shape.text, show(got), show(want))
		}
	}
}

// show prints what is behind the pointers of checks.
func show(checks []Check) string {
	var b strings.Builder
	for _, c := range checks {
		tests := c.Tests
		c.Tests = nil
		fmt.Fprintf(&b, "%+v start %+v stop %+v\n", c, c.Start, c.Stop)
		for _, t := range tests {
			fmt.Fprintf(&b, "\t%+v to %+v exec %+v recovery %+v\n", t, t.Connection, t.Then.Exec, t.Recovery.Exec)
		}
	}
	return b.String()
}

func TestLines(t *testing.T) {
	got, err := Parse("f", []byte("# one\n\ncheck process a pidfile /a\n  start program \"/x\n y\"\n"+
		"  if failed port 80\n then alert\n check\tb\npidfile /b"))
	if err != nil {
		t.Fatal(err)
	}
	if got[0].Line != 3 || got[0].Tests[0].Line != 6 || got[1].Line != 8 {
		t.Errorf("got %s", show(got))
	}
}

// long are messages that many mistakes have.
var long = strings.NewReplacer("CLAUSE", "expected start, stop, group, depends, every, mode, if or check",
	"TEST", "expected failed, changed, not exist, a number of restarts, or what to measure, such as totalmem")

// mistakes are files that are refused, with where and why.
var mistakes = []struct{ text, want string }{
	{"{ \"processes\": [] }", `1:1: expected check, found "{"`},
	{"\n\n  foo", `3:3: expected check, found "foo"`},
	{"\"check\" a pidfile /a", `1:1: expected check, found "check"`},
	{"\"\"", `1:1: expected check, found ""`},
	{"start program \"/x\"", `1:1: expected check, found "start"`},
	{"set daemon 10", `1:1: "set" belongs in the daemon's control file, not in a job's`},
	{process + "INCLUDE /etc/x",
		`2:1: service "a": "include" belongs in the daemon's control file, not in a job's`},
	{process + "alert root@localhost", `2:1: service "a": CLAUSE, found "alert"`},
	{process + "x", `2:1: service "a": CLAUSE, found "x"`},
	{process + strings.Repeat("x", 50), `2:1: service "a": CLAUSE, found "` +
		strings.Repeat("x", 40) + `"…`},
	{process + "\fgroup x", `2:1: service "a": CLAUSE, found "\f"`},

	{"check", `1:6: expected a kind of service, or the name of a process, found the end of the file`},
	{"check process", `1:14: expected the name of a service, found the end of the file`},
	{"check process \"\" pidfile /a", `1:15: expected the name of a service, found ""`},
	{"check process @ pidfile /a", `1:15: expected the name of a service, found "@"`},
	{"check process \"a\\nb\" pidfile /a",
		`1:15: expected the name of a service without control characters, found "a\nb"`},
	{"check process a", `1:16: service "a": expected pidfile, path or matching, found the end of the file`},
	{"check program a with path /bin/true", `1:15: service "program": expected pidfile, path or matching, found "a"`},
	{"check process a:b with pidfile /a", `1:16: service "a": expected pidfile, path or matching, found ":"`},
	{"check process a with pidfile a.pid", `1:30: service "a": expected an absolute path, found "a.pid"`},
	{"check process a with pidfile \"a.pid\"", `1:30: service "a": expected an absolute path, found "a.pid"`},
	{"check process a with pidfile \"/a\n.pid\"", `1:30: service "a": expected an absolute path, found "/a\n.pid"`},
	{"check process a with pidfile \"/a\\0x00\"", `1:30: service "a": the string contains a NUL byte`},
	{"check process a with pidfile \"/a.pid", `1:30: service "a": unterminated string: expected a closing "`},
	{"check process a with pidfile /a%b",
		`1:32: service "a": CLAUSE, found "%"`},
	{"check process a pidfile /a matching b",
		`1:28: service "a": CLAUSE, found "matching"`},
	{"check process a matching \"([\"",
		"1:26: service \"a\": expected a regular expression: error parsing regexp: missing closing ]: `[`"},
	{"check file f pidfile /f", `1:14: service "f": expected path, found "pidfile"`},
	{"check file f path f", `1:19: service "f": expected an absolute path, found "f"`},
	{"check host h address localhost group x",
		`1:1: service "h": expected a port test: nothing else can be checked of a host`},
	{"check host h pidfile /a", `1:14: service "h": expected address, found "pidfile"`},

	{process + "start program '/x'", `2:15: service "a": expected a program between double quotes, found "/x"`},
	{process + "start program /x", `2:15: service "a": expected a program between double quotes, found "/x"`},
	{process + "start program \" \n\"", `2:15: service "a": expected a program, found an empty command`},
	{process + "start program \"/x\n y",
		`2:15: service "a": unterminated program: expected a closing double quote`},
	{process + `start program "/x \"y"`, `2:21: service "a": CLAUSE, found "y"`},
	{process + `start program "/x 'a "b" c'"`, `2:23: service "a": CLAUSE, found "b"`},
	{process + "start program \"/x a\x00b\"", `2:19: service "a": the argument contains a NUL byte`},
	{process + "start program \"/x\n" + strings.Repeat("x ", 64) + `"`,
		`3:127: service "a": expected at most 64 arguments`},
	{process + `start program "/x" timeout 60`, `2:30: service "a": expected seconds, found the end of the file`},
	{process + `start program "/x" timeout 2 minutes`, `2:30: service "a": expected seconds, found "minutes"`},
	{process + `start program "/x" timeout 1.5 seconds`,
		`2:28: service "a": expected a number of seconds from 0 to 2147483647, found "1.5"`},
	{process + `start program "/x" timeout soon`, `2:28: service "a": expected a number of seconds, found "soon"`},
	{process + `start program "/x" timeout 60 seconds as uid root`, `2:42: service "a": CLAUSE, found "uid"`},
	{process + `start program "/x" as uid :`, `2:27: service "a": expected a user, found ":"`},
	{process + "group", `2:6: service "a": expected the name of a group, found the end of the file`},
	{process + "depends on", `2:11: service "a": expected the name of a service, found the end of the file`},
	{process + "depends on a b", `2:14: service "a": CLAUSE, found "b"`},
	{process + "every 2", `2:8: service "a": expected cycles, found the end of the file`},
	{process + "every \"0-5 * * * *\"", `2:7: service "a": expected a number of cycles, found "0-5 * * * *"`},
	{process + "mode fast", `2:6: service "a": expected active, passive or manual, found "fast"`},

	{process + "if foo > 3 then alert", `2:4: service "a": TEST, found "foo"`},
	{process + "if pid > 3 then alert", `2:4: service "a": TEST, found "pid"`},
	{process + "if totalmem >80 MB then alert",
		`2:13: service "a": expected an operator: >, <, =, !=, or a word for one, found ">80"`},
	{process + "if totalmem > 80MB then alert", `2:15: service "a": expected a number, found "80MB"`},
	{process + "if totalmem > 1.2.3 MB then alert", `2:15: service "a": expected a number, found "1.2.3"`},
	{process + "if totalmem > 80 tb then alert", `2:18: service "a": expected then, found "tb"`},
	{process + "if totalmem > 80% mb then alert", `2:19: service "a": expected then, found "mb"`},
	{process + "if cpu > 80 then alert", `2:13: service "a": expected %, found "then"`},
	{process + "if children > 5 % then alert", `2:17: service "a": expected then, found "%"`},
	{process + "if loadavg > 5 then alert", `2:12: service "a": expected 1, 5 or 15 minutes, found ">"`},
	{process + "if space > 3 % then alert", `2:4: service "a": a process cannot be tested for its space`},
	{process + "if changed timestamp then alert", `2:12: service "a": a process cannot be tested for its timestamp`},
	{process + "if changed checksum then alert",
		`2:12: service "a": expected pid, ppid, timestamp or size, found "checksum"`},
	{process + "if changed children then alert",
		`2:12: service "a": expected pid, ppid, timestamp or size, found "children"`},
	{process + "if changed ppid then alert else if recovered then alert", `2:28: service "a": CLAUSE, found "else"`},
	{"check file f path /f if failed port 80 then alert",
		`1:25: service "f": a file cannot be tested for its port or socket`},
	{"check system s if not exist then alert", `1:19: service "s": a system cannot be tested for its existence`},
	{process + "if not there then alert", `2:8: service "a": expected exist, found "there"`},
	{process + "if failed url http://x then alert",
		`2:11: service "a": expected host, port or unixsocket, found "url"`},
	{process + "if failed host ::1 port 80 then alert",
		`2:16: service "a": expected a host name or address, found ":"`},
	{process + "if failed host a then alert", `2:18: service "a": expected port, found "then"`},
	{process + "if failed port 80 host a then alert", `2:19: service "a": expected then, found "host"`},
	{process + "if failed port 0 then alert", `2:16: service "a": expected a port from 1 to 65535, found "0"`},
	{process + "if failed port 99999999999999999999 then alert",
		`2:16: service "a": expected a port from 1 to 65535, found "99999999999999999999"`},
	{process + "if failed port 80 type tcp4 then alert",
		`2:24: service "a": expected tcp, udp or tcpssl, found "tcp4"`},
	{process + "if failed port 25 protocol smtp then alert",
		`2:28: service "a": expected http or default, found "smtp"`},
	{process + "if failed port 80 timeout 0 seconds then alert",
		`2:27: service "a": expected a number of seconds from 1 to 2147483647, found "0"`},
	{process + "if failed port 80 2 cycles timeout 3 seconds then alert",
		`2:28: service "a": expected then, found "timeout"`},
	{process + "if failed port 80 for 65 cycles then alert",
		`2:23: service "a": expected a number of cycles from 1 to 64, found "65"`},
	{process + "if failed port 80 for 0 cycles then alert",
		`2:23: service "a": expected a number of cycles from 1 to 64, found "0"`},
	{process + "if failed port 80 for 4 times within 3 cycles then alert",
		`2:23: service "a": expected at most 3, the number of cycles, found "4"`},
	{process + "if failed port 80 for 3 then alert", `2:25: service "a": expected cycles, found "then"`},
	{process + "if failed port 80 then",
		`2:23: service "a": expected alert, restart, start, stop, unmonitor or exec, found the end of the file`},
	{process + "if failed port 80 then timeout",
		`2:24: service "a": expected alert, restart, start, stop, unmonitor or exec, found "timeout"`},
	{process + "if failed port 80 then exec /x",
		`2:29: service "a": expected a program between double quotes, found "/x"`},
	{process + "if failed port 80 then alert else alert", `2:35: service "a": expected if, found "alert"`},
	{process + "if failed port 80 then alert else if 3 cycles then alert",
		`2:38: service "a": expected recovered, passed or succeeded, found "3"`},
	{process + "if 6 restarts 5 cycles then stop",
		`2:15: service "a": expected at least as many cycles as restarts, found "5"`},
	{process + "if 0 restarts 5 cycles then stop",
		`2:4: service "a": expected a number of restarts from 1 to 2147483647, found "0"`},
	{process + "if 3 deaths 5 cycles then stop", `2:6: service "a": expected restarts, found "deaths"`},
	{process + "check file b", `2:13: service "b": expected path, found the end of the file`},
	{process + "check", `2:6: expected a kind of service, or the name of a process, found the end of the file`},
}

func TestMistakes(t *testing.T) {
	for _, m := range append(mistakes, struct{ text, want string }{strings.Repeat(" ", maxFile+1),
		"1:1: the file has 1048577 bytes: expected at most 1048576"}) {
		checks, err := Parse("f", []byte(m.text))
		var mistake *Error
		want := "f:" + long.Replace(m.want)
		if checks != nil || !errors.As(err, &mistake) || err.Error() != want {
			t.Errorf("%.200s\n got %v\nwant %s", m.text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, shape := range shapes {
		f.Add([]byte(shape.text))
	}
	for _, m := range mistakes {
		f.Add([]byte(m.text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		checks, err := Parse("f", text)
		var mistake *Error
		if err != nil && (checks != nil || !errors.As(err, &mistake) || mistake.Line < 1 || mistake.Column < 1 ||
			mistake.Line > 1+strings.Count(string(text), "\n") || mistake.Message == "") {
			t.Errorf("got %v, %v", checks, err)
		}
		for _, c := range checks {
			if c.Name == "" || c.Line < 1 || c.Start != nil && len(c.Start.Args) == 0 {
				t.Errorf("got %s", show(checks))
			}
		}
	})
}
