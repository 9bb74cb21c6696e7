//go:build root

package supervisor

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/skiptest"

	"golang.org/x/sys/unix"
)

// newMonit is a world in which the real monit supervises. It listens on a socket of its own: somebody else could
// take a port before it does.
func newMonit(t testing.TB, cycle time.Duration, files map[string]string) *world {
	t.Helper()
	w := prepare(t, files)
	_, mailPort, _ := net.SplitHostPort(w.listen())
	w.url = "http://monit"
	w.http = &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(w.dir, "socket"))
		}}}
	w.write("monitrc", fmt.Sprintf(`set daemon %d
set httpd unixsocket %[2]s/socket
  allow cleartext %[2]s/user
set pidfile %[2]s/monit.pidfile
set statefile %[2]s/monit.state
set idfile %[2]s/monit.id
set mailserver 127.0.0.1 port %[3]s with timeout 15 seconds
set eventqueue basedir %[2]s/events slots 5000
set mail-format { from: monit@localhost
subject: Monit Alert
message: Service: $SERVICE
Event: $EVENT
Action: $ACTION
Date: $DATE
Description: $DESCRIPTION }
set alert agent@local
include %[2]s/*.monitrc
`, int(cycle.Seconds()), w.dir, mailPort), 0o600)
	monit := exec.Command("monit", "-I", "-c", filepath.Join(w.dir, "monitrc"))
	// 5.2.5 purges its environment, 5.33 hands it on.
	monit.Env = []string{"PATH=/bin:/usr/bin:/sbin:/usr/sbin"}
	monit.Stdout, monit.Stderr = t.Output(), t.Output()
	monit.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := monit.Start(); err != nil {
		t.Fatal(err)
	}
	w.daemon = monit.Process.Pid
	w.stop = func() {
		_ = monit.Process.Kill() // it may have ended
		_ = monit.Wait()         // killed
		w.stop = func() {}
	}
	eventually.Nil(t, "monit answers", func() error {
		answer, err := w.http.Get(w.url)
		if err != nil {
			return err
		}
		return answer.Body.Close()
	})
	return w
}

// needMonit skips a test where there is no monit to compare with.
func needMonit(t testing.TB) {
	t.Helper()
	skiptest.WithoutRoot(t, "for monit, whose files must belong to root")
	if _, err := exec.LookPath("monit"); err != nil {
		skiptest.Skip(t, "monit is not installed")
	}
}

// seen returns the state of a service as the agent reads it from the status document.
func (w *world) seen(service string) string {
	match := regexp.MustCompile(`(?s)<name>` + service + `</name>.*?<status>(\d+)</status>.*?<monitor>(\d)</monitor>`).
		FindStringSubmatch(w.get("/_status?format=xml"))
	switch {
	case match == nil:
		return "unknown"
	case match[2] == "0":
		return "not monitored"
	case match[2] == "2":
		return "initializing"
	case match[1] == "0":
		return "running"
	}
	return "failing"
}

func (w *world) awaitSeen(service, state string) {
	w.t.Helper()
	eventually.Nil(w.t, service+" "+state, func() error {
		if now := w.seen(service); now != state {
			return fmt.Errorf("it is %s; calls: %s", now, w.calls())
		}
		return nil
	})
}

// cycles waits for two more looks at the machine, which both supervisors have as a service.
func (w *world) cycles() {
	w.t.Helper()
	looked := func() int {
		match := regexp.MustCompile(`(?s)<service type="5">.*?<collected_sec>(\d+)<`).
			FindStringSubmatch(w.get("/_status?format=xml"))
		if match == nil {
			return 0
		}
		second, _ := strconv.Atoi(match[1])
		return second
	}
	begin := looked()
	eventually.True(w.t, "two cycles", func() bool { return looked() >= begin+3 })
}

// awaitCalls waits for at least so many calls of the control script.
func (w *world) awaitCalls(n int) {
	w.t.Helper()
	eventually.Nil(w.t, fmt.Sprintf("%d calls", n), func() error {
		if calls := w.calls(); calls == "" || strings.Count(calls, ",")+1 < n {
			return fmt.Errorf("calls: %s", calls)
		}
		return nil
	})
}

// reaction is a row: what happens to services, and what both supervisors do about it.
type reaction struct {
	name  string
	files map[string]string // besides the control script, or in its place
	// happens makes it happen, and returns when it has been reacted to.
	happens func(w *world)
	calls   int    // so many calls are compared; 0: all
	state   string // of service a, in the end
	want    string // the calls of both
	// monit describes how the real monit, which is newer than that of stemcells, differs; nil if it does not.
	monit *otherwise
}

// otherwise is a known difference, with the reason why it is not a fault of ours.
type otherwise struct {
	happens func(w *world)
	calls   int
	want    string
	why     string
}

// inFront is a control script whose process stays in front: it never returns to the supervisor.
const inFront = "#!/bin/sh\ndir=DIR\necho \"$1 $2\" >>$dir/calls\n" +
	"case $1 in start) echo $$ >$dir/$2.pid; exec sleep 1000 ;; *) kill $(cat $dir/$2.pid); rm -f $dir/$2.pid ;; esac\n"

// short is a check with little time for its programs.
func short(dir, name, more string) string {
	return strings.ReplaceAll(check(dir, name, more), name+"\"\n", name+"\" with timeout 2 seconds\n")
}

func reactions(t *testing.T) []reaction {
	one := func(more string) map[string]string {
		return map[string]string{"0000_a.monitrc": check("DIR", "a", more)}
	}
	script := func(start, stop string) map[string]string {
		return map[string]string{"0000_a.monitrc": short("DIR", "a", ""), "ctl": "#!/bin/sh\n" +
			"dir=DIR\necho \"$1 $2\" >>$dir/calls\n" +
			"front() { echo $$ >$dir/front.$$.pid; exec sleep 1000; }\n" +
			"case $1 in\nstart) " + start + " ;;\nstop) " + stop + " ;;\nesac\n"}
	}
	const running = "sleep 1000 & echo $! >$dir/$2.pid"
	settled := func(w *world) { w.awaitSeen("a", "running"); w.cycles() }
	thrice := func(w *world) { w.awaitCalls(3); w.awaitSeen("a", "failing") }
	return []reaction{
		{name: "killed", files: one(""), state: "running", want: "start a, start a", happens: func(w *world) {
			w.awaitSeen("a", "running")
			w.kill("a")
			w.awaitCalls(2)
			settled(w)
		}},
		{name: "pid file is stale", files: map[string]string{"0000_a.monitrc": check("DIR", "a", ""),
			"a.pid": strconv.Itoa(ended(t))}, state: "running", want: "start a", happens: settled},
		{name: "pid is another process's", files: map[string]string{"0000_a.monitrc": check("DIR", "a", ""),
			"a.pid": strconv.Itoa(living(t))}, state: "running", want: "", happens: settled},
		{name: "pid file is never written", files: script(":", ":"), calls: 3, state: "failing",
			want: "start a, start a, start a", happens: thrice},
		{name: "start fails", files: script("exit 1", ":"), calls: 3, state: "failing",
			want: "start a, start a, start a", happens: thrice},
		{name: "start hangs", files: script("front", ":"), calls: 3, state: "failing",
			want: "start a, start a, start a", happens: thrice},
		{name: "start stays in front", files: map[string]string{"0000_a.monitrc": short("DIR", "a", ""),
			"ctl": inFront}, state: "running", want: "start a", happens: settled, monit: &otherwise{
			happens: func(w *world) { w.awaitCalls(2) }, calls: 2, want: "start a, start a",
			why: "5.33 ends a start program that has not exited in time; 5.2.5 looks at the pid file alone"}},
		{name: "stop hangs", files: script(running, "front"), state: "not monitored", want: "start a, stop a",
			happens: func(w *world) {
				w.awaitSeen("a", "running")
				w.request("a", "stop")
				w.awaitSeen("a", "not monitored")
				w.cycles()
			}},
		{name: "dependency dies", files: map[string]string{"0000_b.monitrc": check("DIR", "b", "depends on a"),
			"0001_a.monitrc": check("DIR", "a", "")},
			state: "running", want: "start a, start b, stop b, start a, start b", happens: func(w *world) {
				w.awaitSeen("a", "running")
				w.awaitSeen("b", "running")
				w.kill("a")
				w.awaitCalls(5)
				w.awaitSeen("b", "running")
				settled(w)
			}},
		{name: "port is closed", calls: 3, files: map[string]string{"0000_a.monitrc": short("DIR", "a",
			fmt.Sprintf("  if failed host 127.0.0.1 port %d for 2 cycles then restart", closedPort(t)))},
			state: "failing", want: "start a, stop a, start a",
			happens: thrice},
		{name: "memory is above its limit", files: one("  if totalmem > 1 kB for 2 cycles then restart"), calls: 3,
			state: "failing", want: "start a, stop a, start a",
			happens: thrice},
		{name: "replaces itself", files: one(""), state: "running", want: "start a", happens: func(w *world) {
			w.awaitSeen("a", "running")
			old := w.pid("a")
			replace := exec.Command("/bin/sh", "-c", fmt.Sprintf(
				"sleep 1000 & echo $! >%[1]s/a.new; mv %[1]s/a.new %[1]s/a.pid; kill -9 %d", w.dir, old))
			if err := replace.Run(); err != nil {
				w.t.Fatal(err)
			}
			w.cycles()
			settled(w)
		}},
		{name: "not monitored and dies", files: one(""), state: "not monitored", want: "start a",
			happens: func(w *world) {
				w.awaitSeen("a", "running")
				w.request("a", "unmonitor")
				w.awaitSeen("a", "not monitored")
				w.kill("a")
				w.cycles()
			}},
	}
}

// closedPort is a port on which nobody listens and that nobody else gets.
func closedPort(t *testing.T) int {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) }) // nothing was sent
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return address.(*unix.SockaddrInet4).Port
}

// ended is the pid of a process that there was.
func ended(t *testing.T) int {
	program := exec.Command("/bin/true")
	if err := program.Run(); err != nil {
		t.Fatal(err)
	}
	return program.Process.Pid
}

// living is the pid of a process of the test.
func living(t testing.TB) int {
	program := exec.Command("sleep", "2000") // not to be swept up with what the scripts start
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = program.Process.Kill() // it may have ended
		_ = program.Wait()         // killed
	})
	return program.Process.Pid
}

// TestRootBesideMonit: the same files and events have the same effects under the real monit and under ours.
func TestRootBesideMonit(t *testing.T) {
	needMonit(t)
	sides := map[string]func(testing.TB, time.Duration, map[string]string) *world{"monit": newMonit, "ours": newWorld}
	// All at once: they mostly wait.
	var running sync.WaitGroup
	defer running.Wait()
	for _, r := range reactions(t) {
		for name, begin := range sides {
			running.Go(func() { t.Run(r.name+"/"+name, func(t *testing.T) { r.compare(t, begin, name == "monit") }) })
		}
	}
}

// compare lets it happen under one of both supervisors.
func (r reaction) compare(t *testing.T, begin func(testing.TB, time.Duration, map[string]string) *world, monit bool) {
	w := begin(t, time.Second, r.files)
	if o := r.monit; o != nil && monit {
		t.Log("known difference:", o.why)
		r.happens, r.calls, r.want, r.state = o.happens, o.calls, o.want, ""
	}
	r.happens(w)
	calls := w.calls()
	if parts := strings.Split(calls, ", "); r.calls > 0 {
		calls = strings.Join(parts[:min(r.calls, len(parts))], ", ")
	}
	if calls != r.want {
		t.Errorf("calls: got %q, want %q", calls, r.want)
	}
	if got := w.seen("a"); r.state != "" && got != r.state {
		t.Errorf("state: got %q, want %q", got, r.state)
	}
}

// dump writes all that a program inherits, a line for each, in an order of its own. Numbers that differ between any two
// processes are replaced by how they relate.
const dump = `#!/bin/bash
d=DIR
ls -l /proc/$$/fd >$d/open
{
tr '\0' '\n' </proc/$$/environ | grep -v ^MONIT_DATE= | sed 's/^/env /' | sort
echo "cwd $(readlink /proc/$$/cwd)"
echo "umask $(umask)"
sed 's/^/limit /' /proc/$$/limits
echo "oom_score_adj $(cat /proc/$$/oom_score_adj)"
stat=($(sed 's/.*) //' /proc/$$/stat))
echo "nice ${stat[16]}"
[ ${stat[3]} = $$ ] && echo 'leads a session' || echo 'leads no session'
[ ${stat[2]} = ${stat[3]} ] && echo 'in the group of the session' || echo 'in a group of its own'
[ -e /proc/${stat[3]} ] && echo 'the leader lives' || echo 'the leader has ended'
echo "terminal ${stat[4]}"
grep -E '^(Uid|Gid|Groups|Sig|ShdPnd|Cap|NoNewPrivs|Seccomp|Umask)' /proc/self/status |
	sed '/SigQ/d; s/^/status /'
sed -n 's/.* \([0-9]* -> \)/descriptor \1/p' $d/open | grep -v /dump
sed 's/^/cgroup /' /proc/$$/cgroup
for n in cgroup ipc mnt net pid user uts; do echo "namespace $n $(readlink /proc/$$/ns/$n)"; done
} >$d/inherited.new 2>&1
mv $d/inherited.new $d/inherited
sleep 1000 & echo $! >$d/a.pid
`

// newer are the lines in which monit 5.33 differs from 5.2.5, whose ways are ours.
var newer = regexp.MustCompile(strings.Join([]string{
	`^descriptor [012] ->`, // 5.33 reads what programs write; 5.2.5 gives them /dev/null
	// 5.33 forks once, 5.2.5 twice.
	`^leads (a|no) session`, `^in (the group of the session|a group of its own)`, `^the leader`,
	// What is not known is -1 in 5.33, and 0 in 5.2.5.
	`^env MONIT_PROCESS_(PID|MEMORY|CHILDREN|CPU_PERCENT)=(-1|-1\.0|0|0\.0)$`,
	// 5.2.5 sets SIGHUP back to its default, 5.33 does not.
	`^status SigIgn:`,
}, "|"))

// TestRootExecEnvironment: the program of a test finds the same under both, but for the words of a description.
func TestRootExecEnvironment(t *testing.T) {
	t.Parallel()
	needMonit(t)
	var found [2]string
	for i, begin := range []func(testing.TB, time.Duration, map[string]string) *world{newMonit, newWorld} {
		w := begin(t, time.Second, map[string]string{
			"0000_a.monitrc": check("DIR", "a", "  if totalmem > 1 kB then exec \"/bin/sh DIR/dump\"\n"),
			"dump": "tr '\\0' '\\n' </proc/$$/environ | grep -Ev '^MONIT_(DATE|DESCRIPTION|PROCESS_.*)=' | " +
				"sort >DIR/exec.new && mv DIR/exec.new DIR/exec\n",
		})
		eventually.Nil(t, "the program", func() error {
			text, err := os.ReadFile(filepath.Join(w.dir, "exec"))
			found[i] = string(text)
			return err
		})
	}
	if found[0] != found[1] {
		t.Errorf("under monit\n%s\nand under ours\n%s", found[0], found[1])
	}
}

// TestRootMonitProgram: the stemcell's own monit program talks to the supervisor. It reads the control files itself.
func TestRootMonitProgram(t *testing.T) {
	t.Parallel()
	needMonit(t)
	w := newWorld(t, long, nil)
	address, err := url.Parse(w.url)
	if err != nil {
		t.Fatal(err)
	}
	w.write("daemon.pid", strconv.Itoa(living(t)), 0o600)
	w.write("monitrc", fmt.Sprintf("set daemon 10\nset httpd port %[1]s and use address 127.0.0.1\n"+
		"  allow cleartext %[2]s/user\nset pidfile %[2]s/daemon.pid\nset statefile %[2]s/monit.state\n"+
		"set idfile %[2]s/monit.id\ninclude %[2]s/*.monitrc\n", address.Port(), w.dir), 0o600)
	monit := func(want int, words ...string) string {
		t.Helper()
		program := exec.Command("monit", append([]string{"-c", filepath.Join(w.dir, "monitrc")}, words...)...)
		text, err := program.CombinedOutput()
		if got := program.ProcessState.ExitCode(); got != want {
			t.Errorf("monit %v: got %d, %v, %s", words, got, err, text)
		}
		return string(text)
	}
	host, _ := os.Hostname()
	summary := func(lines ...string) {
		t.Helper()
		got := monit(0, "summary")
		_, got, _ = strings.Cut(got, "\n\n")
		if want := strings.Join(append(lines, fmt.Sprintf("%-35s running\n", "System 'system_"+host+"'")),
			"\n"); got != want {
			t.Errorf("summary: got\n%s\nwant\n%s", got, want)
		}
	}
	line := func(name, state string) string { return fmt.Sprintf("%-35s %s", "Process '"+name+"'", state) }
	monit(0, "summary") // the first one announces a new id
	summary()
	w.write("0000_b.monitrc", check(w.dir, "b", ""), 0o600)
	w.write("0001_a.monitrc", check(w.dir, "a", ""), 0o600)
	w.write("0002_other.monitrc", strings.Replace(check(w.dir, "other", ""), "group vcap", "", 1), 0o600)
	w.s.Reload()
	await := func(state string, names ...string) {
		t.Helper()
		for _, name := range names {
			w.await(name, state)
		}
	}
	await("running", "a", "b", "other")
	summary(line("other", "running"), line("a", "running"), line("b", "running"))
	monit(0, "unmonitor", "all")
	await("not monitored", "a", "b", "other")
	monit(0, "monitor", "all")
	w.s.StartCycle()
	await("running", "a", "b", "other", "system_"+host)
	monit(0, "-g", "vcap", "stop", "all")
	await("not monitored", "a", "b")
	summary(line("other", "running"), line("a", "not monitored"), line("b", "not monitored"))
	monit(0, "start", "a")
	await("running", "a")
	monit(0, "restart", "a")
	eventually.True(t, "a restart", func() bool { return strings.Count(w.calls(), "start a") == 3 })
	await("running", "a")
	if got := monit(1, "start", "none"); !strings.Contains(got, "none") || strings.Contains(got, "parse") {
		t.Errorf("an unknown service: got %q", got)
	}
	release := w.hold()
	w.write("ctl", "#!/bin/sh\nread x <$(dirname $0)/hold\nkill $(cat $(dirname $0)/$2.pid)\n", 0o755)
	monit(0, "stop", "a")
	if got := monit(1, "start", "a"); !strings.Contains(got, "Other action already in progress") {
		t.Errorf("while an action is pending: got %q", got)
	}
	summary(line("other", "running"), line("a", "running - stop pending"), line("b", "not monitored"))
	release()
	await("not monitored", "a")
}

// TestRootInheritance: a start program finds the same under both.
func TestRootInheritance(t *testing.T) {
	t.Parallel()
	needMonit(t)
	// Programs do not inherit what a supervisor inherited.
	stray, err := unix.Open(os.DevNull, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(stray) }) // nothing was written
	files := map[string]string{"dump": dump,
		"0000_a.monitrc": strings.Replace(check("DIR", "a", ""), "DIR/ctl start a", "/bin/bash DIR/dump", 1)}
	var found [2]map[string]bool
	for i, begin := range []func(testing.TB, time.Duration, map[string]string) *world{newMonit, newWorld} {
		w := begin(t, time.Second, files)
		w.awaitSeen("a", "running")
		text, err := os.ReadFile(filepath.Join(w.dir, "inherited"))
		if err != nil {
			t.Fatal(err)
		}
		found[i] = map[string]bool{}
		for line := range strings.Lines(string(text)) {
			found[i][strings.TrimSpace(line)] = true
		}
	}
	for line := range found[0] {
		if !found[1][line] && !newer.MatchString(line) {
			t.Errorf("only under monit: %s", line)
		}
	}
	for line := range found[1] {
		if !found[0][line] && !newer.MatchString(line) {
			t.Errorf("only under ours: %s", line)
		}
	}
}
