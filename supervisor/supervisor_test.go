package supervisor

import (
	"bufio"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cambium/internal/command"
	"cambium/internal/eventually"
	"cambium/internal/pidfile"
	"cambium/supervisor/monitfile"

	"github.com/sirupsen/logrus"
)

func TestMain(m *testing.M) {
	command.DetachIfCalled()
	os.Exit(m.Run())
}

// world is a supervisor with jobs in a directory, whose mails and requests are real.
type world struct {
	t    testing.TB
	dir  string
	s    *Supervisor
	url  string
	http *http.Client
	stop func()
	// daemon is the pid of a supervisor that is a process of its own.
	daemon int
	// grace and log are passed to the supervisor.
	grace time.Duration
	log   io.Writer
	// mailTo is the address to which alerts are sent. If it is empty, they go to the world itself, which refuses mails
	// that contain the word in refuse.
	mailTo, refuse string

	mu    sync.Mutex
	mails []letter
}

// letter is a mail that has arrived.
type letter struct {
	text string
	at   time.Time
}

// controlScript starts and stops a process that writes its pid, and leaves a line for each call.
const controlScript = `#!/bin/sh
dir=$(dirname "$0")
echo "$1 $2" >>$dir/calls
case $1 in
start) sleep 1000 & echo $! >$dir/$2.pid ;;
stop) [ ! -e $dir/$2.pid ] || kill $(cat $dir/$2.pid); rm -f $dir/$2.pid ;;
esac
`

// check is a process under the control script.
func check(dir, name, more string) string {
	return fmt.Sprintf("check process %[1]s with pidfile %[2]s/%[1]s.pid\n  start program \"%[2]s/ctl start %[1]s\"\n"+
		"  stop program \"%[2]s/ctl stop %[1]s\"\n  group vcap\n%[3]s\n", name, dir, more)
}

func newWorld(t testing.TB, cycle time.Duration, files map[string]string) *world {
	t.Helper()
	w := prepare(t, files)
	w.run(cycle)
	return w
}

// prepare makes the directory, for a supervisor that is still to be started.
func prepare(t testing.TB, files map[string]string) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "supervisor")
	if err != nil {
		t.Fatal(err)
	}
	// A program that the supervisor started may still write to it, which t.TempDir does not tolerate.
	t.Cleanup(func() { eventually.Nil(t, "removed "+dir, func() error { return os.RemoveAll(dir) }) })
	w := &world{t: t, dir: dir, stop: func() {}, http: http.DefaultClient, grace: 200 * time.Millisecond,
		log: t.Output()}
	w.write("ctl", controlScript, 0o755)
	w.write("user", "vcap:secret", 0o600)
	for name, text := range files {
		w.write(name, strings.ReplaceAll(text, "DIR", w.dir), 0o600)
	}
	t.Cleanup(func() {
		w.halt()
		// What the jobs started is the test's to end.
		paths, _ := filepath.Glob(filepath.Join(w.dir, "*.pid"))
		for _, path := range paths {
			if pid, err := pidfile.Read(path); err == nil && pid > 1 && w.ours(pid) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	return w
}

// ours reports whether a process is one that the control script started.
func (w *world) ours(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.HasPrefix(string(line), "sleep\x001000")
}

func (w *world) write(name, text string, mode os.FileMode) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), mode); err != nil {
		w.t.Fatal(err)
	}
}

// hold makes the FIFO from which programs read a line before they go on; release writes one. The FIFO stays open both
// ways, so that neither side waits for the other to open it.
func (w *world) hold() (release func()) {
	w.t.Helper()
	path := filepath.Join(w.dir, "hold")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		w.t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = f.Close() }) // nothing to flush
	return func() {
		if _, err := f.WriteString("\n"); err != nil {
			w.t.Fatal(err)
		}
	}
}

// run starts the supervisor, which finds what it left before.
func (w *world) run(cycle time.Duration) {
	w.t.Helper()
	log := logrus.New()
	log.SetOutput(w.log)
	log.SetLevel(logrus.DebugLevel)
	if w.mailTo == "" {
		w.mailTo = w.listen()
	}
	s, err := New(Options{Patterns: []string{filepath.Join(w.dir, "*.monitrc")}, Cycle: cycle, Grace: w.grace,
		StateFile: filepath.Join(w.dir, "state"), UserFile: filepath.Join(w.dir, "user"), MailAddress: w.mailTo,
		Log: logrus.NewEntry(log)})
	if err != nil {
		w.t.Fatal(err)
	}
	server := httptest.NewServer(s.Handler())
	w.s, w.url = s, server.URL
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	var once sync.Once
	w.stop = func() { once.Do(func() { cancel(); <-done; server.Close() }) }
}

func (w *world) halt() { w.stop() }

// listen takes mails in.
func (w *world) listen() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go w.receive(conn)
		}
	}()
	return listener.Addr().String()
}

func (w *world) receive(conn net.Conn) {
	defer conn.Close()
	fmt.Fprint(conn, "220 test\r\n")
	in, data, text := bufio.NewScanner(conn), false, ""
	for in.Scan() {
		line := in.Text()
		switch {
		case data && line == ".":
			data = false
			if w.refuse != "" && strings.Contains(text, w.refuse) {
				text = ""
				fmt.Fprint(conn, "554 refused\r\n")
				continue
			}
			w.mu.Lock()
			w.mails = append(w.mails, letter{text, time.Now()})
			w.mu.Unlock()
			fmt.Fprint(conn, "250 OK\r\n")
		case data:
			text += line + "\n"
		case line == "DATA":
			data = true
			fmt.Fprint(conn, "354 go on\r\n")
		case line == "QUIT":
			fmt.Fprint(conn, "221 bye\r\n")
			return
		default:
			fmt.Fprint(conn, "250 OK\r\n")
		}
	}
}

// alerts are the mails so far, as "service: event: action".
func (w *world) alerts() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.mails {
		match := regexp.MustCompile(`(?s)Service: (.*?)\nEvent: (.*?)\nAction: (.*?)\n`).FindStringSubmatch(m.text)
		if match == nil {
			w.t.Errorf("unexpected mail %q", m.text)
			continue
		}
		all = append(all, strings.Join(match[1:], ": "))
	}
	return all
}

func (w *world) count(alert string) (n int) {
	for _, a := range w.alerts() {
		if a == alert {
			n++
		}
	}
	return n
}

// get asks until there is an answer: monit closes connections while it has too many.
func (w *world) get(path string) (text string) {
	w.t.Helper()
	request, err := http.NewRequest(http.MethodGet, w.url+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	request.SetBasicAuth("vcap", "secret")
	eventually.Nil(w.t, "an answer to GET "+path, func() error {
		response, err := w.http.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		text = string(body)
		return err
	})
	return text
}

// post asks for an action and returns the status of the answer.
func (w *world) post(service, action string) int {
	w.t.Helper()
	form := url.Values{"action": {action}, "securitytoken": {"x"}} // monit 5.33 wants it, and as a cookie
	request, err := http.NewRequest(http.MethodPost, w.url+"/"+service, strings.NewReader(form.Encode()))
	if err != nil {
		w.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Cookie", "securitytoken=x")
	request.SetBasicAuth("vcap", "secret")
	response, err := w.http.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	response.Body.Close()
	return response.StatusCode
}

// request asks for an action that must be taken.
func (w *world) request(service, action string) {
	w.t.Helper()
	if got := w.post(service, action); got != http.StatusOK {
		w.t.Fatalf("%s %s: got %d", action, service, got)
	}
}

// state returns the state of a service as the summary shows it.
func (w *world) state(service string) string {
	w.t.Helper()
	for line := range strings.Lines(w.get("/_status?format=text&level=summary")) {
		if _, rest, found := strings.Cut(line, " '"+service+"'"); found {
			return strings.TrimSpace(rest)
		}
	}
	return "unknown"
}

func (w *world) await(service, state string) {
	w.t.Helper()
	eventually.True(w.t, service+" "+state, func() bool { return w.state(service) == state })
}

func (w *world) pid(service string) int {
	pid, _ := pidfile.Read(filepath.Join(w.dir, service+".pid"))
	return pid
}

// calls are the calls of the control script so far.
func (w *world) calls() string {
	text, _ := os.ReadFile(filepath.Join(w.dir, "calls"))
	return strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", ", ")
}

func (w *world) kill(service string) (pid int) {
	w.t.Helper()
	// The script writes the pid of a process that may still be about to become the one it names.
	eventually.True(w.t, service+"'s process", func() bool {
		pid = w.pid(service)
		return pid > 1 && w.ours(pid)
	})
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		w.t.Fatal(err)
	}
	return pid
}

// long is a cycle that never comes: what happens in it happens by event.
const long = time.Hour

// TestDeathIsAnEvent: a process that ends is started again without a cycle, and one alert reports it.
func TestDeathIsAnEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{"0000_a.monitrc": check("DIR", "a", "")})
	w.await("a", "running")
	old := w.kill("a")
	eventually.True(t, "another process", func() bool { return w.pid("a") != old && pidfile.Alive(w.pid("a")) })
	w.await("a", "running")
	if got := w.calls(); got != "start a, start a" {
		t.Errorf("calls: got %q", got)
	}
	// Another one came before the first start.
	eventually.True(t, "alerts", func() bool { return w.count("a: Does not exist: restart") == 2 })
}

// TestReplacedProcess: a job that puts another process in place of the one that ended is left alone.
func TestReplacedProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{"0000_a.monitrc": check("DIR", "a", "")})
	w.await("a", "running")
	w.replace("a")
	eventually.True(t, "the alert", func() bool { return w.count("a: PID changed: alert") == 1 })
	if got := w.calls(); got != "start a" {
		t.Errorf("calls: got %q", got)
	}
	w.await("a", "running")
}

// replace has a job put another process in place of the one that runs, and waits until the supervisor has seen it.
func (w *world) replace(service string) (old, now int) {
	w.t.Helper()
	old = w.pid(service)
	file := filepath.Join(w.dir, service)
	if _, err := command.Detach(command.Detached{Args: []string{"/bin/sh", "-c", fmt.Sprintf(
		"sleep 1000 & echo $! >%[1]s.new; mv %[1]s.new %[1]s.pid; kill -9 %[2]d", file, old)},
		Env: []string{"PATH=/bin:/usr/bin"}, UID: os.Getuid(), GID: os.Getgid()}); err != nil {
		w.t.Fatal(err)
	}
	eventually.True(w.t, service+"'s new process to be seen", func() bool {
		now = w.pid(service)
		return now != old && strings.Contains(w.get("/_status2?format=xml"), fmt.Sprintf("<pid>%d</pid>", now))
	})
	return old, now
}

// TestOneAlertInACycle: what happens to a service again in the same cycle is not worth another alert; something else,
// and the same to another service, is.
func TestOneAlertInACycle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{"0000_a.monitrc": check("DIR", "a", ""),
		"0001_b.monitrc": check("DIR", "b", "")})
	w.await("a", "running")
	w.await("b", "running")
	w.replace("a")
	w.replace("a")
	w.replace("b")
	looked := func() string {
		return regexp.MustCompile(`<service name="a">.*?</collected_usec>`).FindString(w.get("/_status2?format=xml"))
	}
	before := looked()
	w.s.StartCycle()
	eventually.True(t, "another cycle", func() bool { return looked() != before })
	old, now := w.replace("a")
	last := fmt.Sprintf("PID changed from %d to %d", old, now)
	// Alerts come in the order of the events.
	eventually.True(t, "the last alert", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(w.mails, func(m letter) bool { return strings.Contains(m.text, last) })
	})
	for alert, want := range map[string]int{"a: PID changed: alert": 2, "b: PID changed: alert": 1,
		"a: Does not exist: restart": 1} { // this one before its first start
		if got := w.count(alert); got != want {
			t.Errorf("%s: got %d of %q, want %d", alert, got, w.alerts(), want)
		}
	}
}

// TestRemovedPidFileWaitsForACycle: a script that removes the pid file may be about to start another process.
func TestRemovedPidFileWaitsForACycle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{"0000_a.monitrc": check("DIR", "a", "")})
	w.await("a", "running")
	pid := w.pid("a")
	if err := os.Remove(filepath.Join(w.dir, "a.pid")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the end to be seen", func() bool {
		return !strings.Contains(w.get("/_status2?format=xml"),
			"<pid>")
	})
	if got := w.calls(); got != "start a" {
		t.Errorf("calls before the cycle: got %q", got)
	}
	w.s.StartCycle()
	eventually.True(t, "a start in the cycle", func() bool { return w.calls() == "start a, start a" })
}

// TestForeignPids: what a pid file names is never signaled, whatever it is.
func TestForeignPids(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{
		"one.pid": "1\n", "empty.pid": "\n", "garbage.pid": "x1",
		"0000_one.monitrc":     check("DIR", "one", ""),
		"0001_empty.monitrc":   check("DIR", "empty", ""),
		"0002_garbage.monitrc": check("DIR", "garbage", ""),
	})
	w.await("one", "running")
	w.await("empty", "running")
	w.await("garbage", "running")
	if got := w.calls(); strings.Contains(got, "start one") {
		t.Errorf("calls: got %q", got)
	}
	// The stop program of a CPI removes the file of pid 1.
	w.write("ctl", "#!/bin/sh\nrm -f $(dirname $0)/$2.pid\n", 0o755)
	if code := w.post("one", "stop"); code != http.StatusOK {
		t.Fatalf("stop: got %d", code)
	}
	w.await("one", "not monitored")
}

// TestDependencies: prerequisites start first, dependants stop first, and a death restarts what depends on it.
func TestDependencies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{
		"0000_a.monitrc": check("DIR", "a", "depends on b"),
		"0001_b.monitrc": check("DIR", "b", "depends on c"),
		"0002_c.monitrc": check("DIR", "c", ""),
	})
	w.await("a", "running")
	w.await("b", "running")
	if got, want := w.calls(), "start c, start b, start a"; got != want {
		t.Errorf("start: got %q, want %q", got, want)
	}
	w.kill("c")
	const again = "start c, start b, start a, stop a, stop b, start c, start b, start a"
	eventually.True(t, "restart of all", func() bool { return w.calls() == again })
	w.await("a", "running")
	w.post("c", "stop")
	w.await("c", "not monitored")
	if got, want := w.calls(), again+", stop a, stop b, stop c"; got != want {
		t.Errorf("stop: got %q, want %q", got, want)
	}
	for _, name := range []string{"a", "b"} {
		if got := w.state(name); got != "not monitored" {
			t.Errorf("%s: got %q", name, got)
		}
	}
	w.post("a", "monitor")
	w.await("c", "initializing")
	if got := w.calls(); !strings.HasSuffix(got, "stop c") {
		t.Errorf("monitor: got %q", got)
	}
	w.post("c", "unmonitor")
	w.await("a", "not monitored")
}

// TestUnmonitoredIsLeftAlone: neither its death nor a cycle has an effect, and a stop runs nothing if nothing runs.
func TestUnmonitoredIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 50*time.Millisecond, map[string]string{"0000_a.monitrc": check("DIR", "a", ""),
		"0001_b.monitrc": check("DIR", "b", "")})
	w.await("a", "running")
	w.await("b", "running")
	w.post("a", "unmonitor")
	w.await("a", "not monitored")
	w.kill("a")
	old := w.kill("b")
	eventually.True(t, "b again", func() bool { return w.pid("b") != old && w.state("b") == "running" })
	w.post("a", "stop")
	w.await("a", "not monitored")
	if got := w.calls(); strings.Count(got, " a") != 1 {
		t.Errorf("calls: got %q, want one of a", got)
	}
	// It stays so when the supervisor starts again.
	w.halt()
	w.run(50 * time.Millisecond)
	w.await("b", "running")
	if got := w.state("a"); got != "not monitored" {
		t.Errorf("after a restart of the supervisor: got %q", got)
	}
	if got := w.calls(); strings.Count(got, " a") != 1 {
		t.Errorf("calls after a restart of the supervisor: got %q", got)
	}
}

// TestTooManyRestarts: a process that always ends is given up, when monit would.
func TestTooManyRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 100*time.Millisecond, map[string]string{
		"crash":          "#!/bin/sh\necho start >>DIR/calls\nsh -c 'exit 0' & echo $! >DIR/a.pid\n",
		"0000_a.monitrc": "check process a with pidfile DIR/a.pid start program \"/bin/sh DIR/crash\" with timeout 1 seconds\n stop program \"/bin/true\" group vcap if 3 restarts within 5 cycles then timeout\n",
	})
	w.await("a", "not monitored")
	if got := strings.Count(w.calls(), "start"); got != 3 {
		t.Errorf("got %d starts, want 3", got)
	}
	eventually.True(t, "the alert", func() bool { return w.count("a: Timeout: unmonitor") == 1 })
}

// TestBadFile: one file that cannot be read takes no other down, and its job is seen to fail.
func TestBadFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{"0000_a.monitrc": check("DIR", "a", ""),
		"0001_bad.monitrc": "check process bad\n  with nonsense\n"})
	w.await("a", "running")
	if got := w.state("bad"); got != "Invalid type" {
		t.Errorf("got %q", got)
	}
	if got := w.get("/_status2?format=xml"); !strings.Contains(got, "0001_bad.monitrc:2:") {
		t.Errorf("the status does not say where: %s", got)
	}
	// The Director stops an instance before it brings a better file, and a fault would end that.
	w.request("bad", "stop")
	if got := w.state("bad"); got != "not monitored" || strings.Contains(w.get("/_status2?format=xml"), "status_message") {
		t.Errorf("after a stop: got %q", got)
	}
	w.request("bad", "start")
	if got := w.state("bad"); got != "Invalid type" {
		t.Errorf("after a start: got %q", got)
	}
	pid := w.pid("a")
	w.write("0001_bad.monitrc", check(w.dir, "bad", ""), 0o600)
	w.s.Reload()
	w.await("bad", "running")
	if now := w.pid("a"); now != pid {
		t.Errorf("a reload replaced process %d by %d", pid, now)
	}
	// It is watched again after the reload.
	old := w.kill("a")
	eventually.True(t, "a again", func() bool { return w.pid("a") != old && pidfile.Alive(w.pid("a")) })
}

// TestLatin1: the status documents are ISO-8859-1, whatever bytes a file holds, and a name in them can be asked for.
func TestLatin1(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 50*time.Millisecond, map[string]string{"0000_a.monitrc": check("DIR", "Größe€", "") +
		"check file gone path \"DIR/<\xe9t\xe9>\x01\"\n if does not exist then alert\n"})
	w.await("gone", "Does not exist")
	w.await("Größe€", "running")
	for _, path := range []string{"/_status2", "/_status"} {
		text := decoded(t, w.get(path+"?format=xml"))
		for _, want := range []string{"Größe€", "/<été>\uFFFD doesn't exist"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: got %q without %q", path, text, want)
			}
		}
	}
	w.request("Größe€", "stop")
	w.await("Größe€", "not monitored")
}

// decoded are the texts and the values of attributes of a document in ISO-8859-1.
func decoded(t *testing.T, document string) (text string) {
	t.Helper()
	decoder := xml.NewDecoder(strings.NewReader(document))
	decoder.CharsetReader = func(charset string, input io.Reader) (io.Reader, error) {
		if charset != "ISO-8859-1" {
			t.Errorf("got a document in %s", charset)
		}
		data, err := io.ReadAll(input)
		runes := make([]rune, len(data))
		for i, c := range data {
			runes[i] = rune(c)
		}
		return strings.NewReader(string(runes)), err
	}
	for {
		token, err := decoder.Token()
		if err == io.EOF {
			return text
		}
		if err != nil {
			t.Fatal(err)
		}
		switch v := token.(type) {
		case xml.CharData:
			text += string(v) + "\n"
		case xml.StartElement:
			for _, a := range v.Attr {
				text += a.Value + "\n"
			}
		}
	}
}

// TestPendingAction: a second request is refused while the first one is carried out.
func TestPendingAction(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{"0000_a.monitrc": check("DIR", "a", "")})
	w.await("a", "running")
	w.write("ctl", "#!/bin/sh\nread x <$(dirname $0)/hold\nkill $(cat $(dirname $0)/$2.pid)\n", 0o755)
	release := w.hold()
	if got := w.post("a", "stop"); got != http.StatusOK {
		t.Errorf("stop: got %d", got)
	}
	if got := w.post("a", "start"); got != http.StatusServiceUnavailable {
		t.Errorf("start in between: got %d", got)
	}
	if got := w.state("a"); got != "running - stop pending" {
		t.Errorf("state in between: got %q", got)
	}
	if got := w.post("none", "start"); got != http.StatusNotFound {
		t.Errorf("an unknown service: got %d", got)
	}
	release()
	w.await("a", "not monitored")
}

// TestEnvironment: programs find what monit gives them, and nothing else.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{
		"dump": "#!/bin/sh\nd=DIR\ntr '\\0' '\\n' </proc/$$/environ | grep -v ^MONIT_DATE | sort >$d/env\nreadlink /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 >$d/fds\n" +
			"ls /proc/$$/fd | tr '\\n' ' ' >$d/open\necho $(awk '{print $4, $6, $1, $5}' /proc/$$/stat) >$d/stat\ngrep Sig /proc/self/status >$d/signals\nsleep 1000 & echo $! >$d/a.pid\n",
		"0000_a.monitrc": strings.Replace(check("DIR", "a", ""), "DIR/ctl start a", "/bin/sh DIR/dump", 1),
	})
	w.await("a", "running")
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(w.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	host, _ := os.Hostname()
	want := "MONIT_DESCRIPTION=Started\nMONIT_EVENT=Started\nMONIT_HOST=" + host +
		"\nMONIT_PROCESS_CHILDREN=0\nMONIT_PROCESS_CPU_PERCENT=0.0\n" +
		"MONIT_PROCESS_MEMORY=0\nMONIT_PROCESS_PID=0\nMONIT_SERVICE=a\nPATH=/bin:/usr/bin:/sbin:/usr/sbin\n"
	if got := read("env"); got != want {
		t.Errorf("environment: got\n%s\nwant\n%s", got, want)
	}
	var parent, session, pid, pgrp int
	fmt.Sscan(read("stat"), &parent, &session, &pid, &pgrp)
	if session == pid || pgrp != session || parent == os.Getpid() {
		t.Errorf("process %d has parent %d (the supervisor is %d), session %d, group %d", pid, parent, os.Getpid(),
			session, pgrp)
	}
	// Others, such as those that glibc uses, are the test's own to ignore.
	const reset = 1<<(syscall.SIGHUP-1) | 1<<(syscall.SIGINT-1) | 1<<(syscall.SIGUSR1-1) | 1<<(syscall.SIGPIPE-1) |
		1<<(syscall.SIGTERM-1)
	var blocked, ignored uint64
	for line := range strings.Lines(read("signals")) {
		fmt.Sscanf(line, "SigBlk:\t%x", &blocked)
		fmt.Sscanf(line, "SigIgn:\t%x", &ignored)
	}
	if blocked != 0 || ignored&reset != 0 {
		t.Errorf("signals: got\n%s", read("signals"))
	}

}

// TestTotalMemory: the memory of a tree over several cycles.
func TestTotalMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 50*time.Millisecond, map[string]string{
		"0000_a.monitrc": check("DIR", "a",
			"  if totalmem > 1 kB for 3 cycles then exec \"/bin/sh -c 'echo over >>DIR/over; sleep 0.3'\""),
		"0001_b.monitrc": check("DIR", "b", "  if totalmem > 90 % for 2 cycles then restart"),
	})
	w.await("b", "running")
	w.await("a", "Resource limit matched")
	eventually.True(t, "the program", func() bool {
		text, _ := os.ReadFile(filepath.Join(w.dir, "over"))
		return strings.Count(string(text), "over") >= 2
	})
	if got := w.count("a: Resource limit matched: exec"); got != 1 {
		t.Errorf("got %d alerts, want 1", got)
	}
}

// TestConnections: port, HTTP and socket tests restart what does not answer.
func TestConnections(t *testing.T) {
	t.Parallel()
	healthy := sync.Mutex{}
	code := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		healthy.Lock()
		defer healthy.Unlock()
		rw.WriteHeader(code)
	}))
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	w := newWorld(t, 50*time.Millisecond, map[string]string{"0000_a.monitrc": check("DIR", "a",
		"  if failed host 127.0.0.1 port "+port+
			" protocol http request \"/health\" with timeout 5 seconds for 2 cycles then restart")})
	w.await("a", "running")
	if got := w.calls(); got != "start a" {
		t.Errorf("calls: got %q", got)
	}
	healthy.Lock()
	code = http.StatusServiceUnavailable
	healthy.Unlock()
	eventually.True(t, "a restart", func() bool { return strings.Contains(w.calls(), "stop a, start a") })
	healthy.Lock()
	code = http.StatusOK
	healthy.Unlock()
	w.await("a", "running")
	if w.count("a: Connection failed: restart") == 0 {
		t.Errorf("alerts: got %q", w.alerts())
	}
}

// TestFileService: a file that is missing has its programs run; its change runs a program.
func TestFileService(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 50*time.Millisecond, map[string]string{
		"make": "#!/bin/sh\necho x >DIR/thing\n", "watched": "x",
		"0000_a.monitrc": "check file thing path DIR/thing\n start program \"/bin/sh DIR/make\"\n stop program \"/bin/true\"\n group vcap\n" +
			"check file watched with path DIR/watched\n if changed timestamp then exec \"/bin/sh -c 'echo changed >>DIR/log'\"\n",
	})
	w.await("thing", "accessible")
	w.await("watched", "accessible")
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(w.dir, "watched"), later, later); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the program", func() bool {
		text, _ := os.ReadFile(filepath.Join(w.dir, "log"))
		return string(text) == "changed\n"
	})
}

// TestUnreapedProcess: a pid file that names a process which has ended, and whose parent does not care, is waited for
// without looking all the time.
func TestUnreapedProcess(t *testing.T) {
	t.Parallel()
	w := prepare(t, nil)
	child, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = child.Wait() }() // it has ended
	eventually.True(t, "the end", func() bool { return !pidfile.Alive(child.Pid) })
	w.write("a.pid", strconv.Itoa(child.Pid), 0o600)
	c, looks := &chain{}, 0
	s := &service{Check: monitfile.Check{Type: monitfile.Process, Name: "a", Pidfile: filepath.Join(w.dir, "a.pid")}}
	if c.until(t.Context(), s, 500*time.Millisecond, func() bool { looks++; return s.pid(nil) != 0 }) {
		t.Error("a process that has ended is said to run")
	}
	if looks > 5 {
		t.Errorf("looked %d times, and nothing changed", looks)
	}
}

// TestReloadDuringStart: a start program that takes its time is not run again because the files are read again.
func TestReloadDuringStart(t *testing.T) {
	t.Parallel()
	w := prepare(t, map[string]string{"0000_a.monitrc": check("DIR", "a", "")})
	release := w.hold()
	w.write("ctl", "#!/bin/sh\ndir=$(dirname $0)\necho \"$1 $2\" >>$dir/calls\nread x <$dir/hold\n"+
		"sleep 1000 & echo $! >$dir/$2.pid\n", 0o755)
	w.run(long)
	eventually.True(t, "the start", func() bool { return w.calls() == "start a" })
	w.write("0001_b.monitrc", "check file b path "+w.dir+"/ctl\n", 0o600)
	w.s.Reload()
	w.await("b", "accessible") // the first cycle after it
	release()
	w.await("a", "running")
	if got := w.calls(); got != "start a" {
		t.Errorf("calls: got %q", got)
	}
}

// TestReloadChangesAStartingService: neither its start program nor a request is forgotten if its file has changed.
func TestReloadChangesAStartingService(t *testing.T) {
	t.Parallel()
	w := prepare(t, map[string]string{"0000_a.monitrc": check("DIR", "a", "")})
	release := w.hold()
	w.write("ctl", "#!/bin/sh\ndir=$(dirname $0)\necho \"$1 $2\" >>$dir/calls\n"+
		"[ $1 = stop ] || read x <$dir/hold\n[ $1 = start ] || { kill $(cat $dir/$2.pid); exit; }\n"+
		"sleep 1000 & echo $! >$dir/$2.pid\n", 0o755)
	w.run(long)
	eventually.True(t, "the start", func() bool { return w.calls() == "start a" })
	w.request("a", "stop")
	w.write("0000_a.monitrc", "# moved\n"+check(w.dir, "a", "if totalmem > 1 GB then alert"), 0o600)
	w.write("0001_b.monitrc", "check file b path "+w.dir+"/ctl\n", 0o600)
	w.s.Reload()
	w.await("b", "accessible") // the first cycle after it
	w.await("a", "not monitored")
	w.request("a", "start")
	eventually.True(t, "another start", func() bool { return strings.Count(w.calls(), "start a") == 2 })
	w.write("0000_a.monitrc", check(w.dir, "a", "if totalmem > 2 GB then alert"), 0o600)
	w.write("0001_b.monitrc", "check file c path "+w.dir+"/ctl\n", 0o600)
	w.s.Reload()
	w.await("c", "accessible")
	release() // both start programs wait
	release()
	w.await("a", "running")
	if got := w.calls(); got != "start a, start a" {
		t.Errorf("calls: got %q", got)
	}
}

// TestPidFileHeldOpen: a daemon may keep its pid file open, and locked, so that nothing tells when it was written.
func TestPidFileHeldOpen(t *testing.T) {
	t.Parallel()
	w := prepare(t, map[string]string{
		"daemon": "#!/bin/sh\nexec 3>DIR/run/a.pid\nsleep 2\necho $$ | tee DIR/a.pid >&3\nexec sleep 1000\n",
		"0000_a.monitrc": "check process a with pidfile DIR/run/a.pid\n  start program \"/bin/sh DIR/daemon\" " +
			"with timeout 3600 seconds\n  stop program \"/bin/true\"\n",
	})
	// Nothing else happens in the directory.
	if err := os.Mkdir(filepath.Join(w.dir, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.run(long)
	w.await("a", "running")
}

// TestOneProgramAtATime: the program of a test may outlast cycles, and act on its own service meanwhile.
func TestOneProgramAtATime(t *testing.T) {
	t.Parallel()
	w := prepare(t, map[string]string{
		"0000_a.monitrc": check("DIR", "a", "  if totalmem > 1 kB then exec \"/bin/sh DIR/over\""),
		"over":           "#!/bin/sh\necho \"$MONIT_EVENT\" >>DIR/overs\nread x <DIR/hold\n",
	})
	release := w.hold()
	w.run(long)
	overs := func() string {
		text, _ := os.ReadFile(filepath.Join(w.dir, "overs"))
		return string(text)
	}
	eventually.True(t, "the program", func() bool { w.s.StartCycle(); return overs() != "" })
	for range 3 {
		looked := w.looked("a")
		eventually.True(t, "a cycle", func() bool { w.s.StartCycle(); return w.looked("a") != looked })
	}
	w.request("a", "unmonitor")
	w.await("a", "not monitored")
	w.request("a", "monitor")
	looked := w.looked("a")
	eventually.True(t, "a cycle", func() bool { w.s.StartCycle(); return w.looked("a") != looked })
	if got := overs(); got != "Resource limit matched\n" {
		t.Errorf("while the program runs: got %q", got)
	}
	release()
	eventually.True(t, "the program again", func() bool { w.s.StartCycle(); return strings.Count(overs(), "\n") == 2 })
	release() // for it to end
}

// looked returns the part of a service's status document that holds the time of the last look.
func (w *world) looked(service string) string {
	w.t.Helper()
	_, rest, _ := strings.Cut(w.get("/_status2?format=xml"), `<service name="`+service+`">`)
	return rest[:strings.Index(rest, "<status>")]
}

// TestCountersSurvive: what was counted before the supervisor was started again counts.
func TestCountersSurvive(t *testing.T) {
	t.Parallel()
	const state = `{"version":1,"services":{"a":{"monitored":true,"starts":2,"cycles":1,"restarts":7}}}`
	w := newWorld(t, 100*time.Millisecond, map[string]string{"state": state,
		"crash":          "#!/bin/sh\necho start >>DIR/calls\nsh -c 'exit 0' & echo $! >DIR/a.pid\n",
		"0000_a.monitrc": "check process a with pidfile DIR/a.pid start program \"/bin/sh DIR/crash\" with timeout 1 seconds\n stop program \"/bin/true\" group vcap if 3 restarts within 10 cycles then timeout\n",
	})
	w.await("a", "not monitored")
	if got := strings.Count(w.calls(), "start"); got != 1 {
		t.Errorf("got %d starts, want 1: two were counted before", got)
	}
	w.halt()
	if text, err := os.ReadFile(filepath.Join(w.dir, "state")); err != nil ||
		!strings.Contains(string(text), `"monitored":false`) || !strings.Contains(string(text), `"restarts":7`) {
		t.Errorf("the state: got %s, %v", text, err)
	}
}

// TestStartOfARunningService: nothing is executed, and what was stopped before stays stopped.
func TestStartOfARunningService(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 50*time.Millisecond, map[string]string{"0000_a.monitrc": check("DIR", "a", "depends on b"),
		"0001_b.monitrc": check("DIR", "b", "")})
	w.await("a", "running")
	w.request("b", "unmonitor")
	w.await("a", "not monitored")
	w.kill("b")
	w.request("a", "start")
	w.await("a", "running")
	if got := w.state("b"); got != "not monitored" {
		t.Errorf("what it depends on: got %q", got)
	}
	if got := w.calls(); got != "start b, start a" {
		t.Errorf("calls: got %q", got)
	}
}

// TestNameOfABadFile: a service may have the name of a job whose file is bad.
func TestNameOfABadFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{"0000_a.monitrc": "check nonsense", "0001_x.monitrc": check("DIR", "a", "")})
	w.await("a", "running")
	w.request("a", "stop")
	w.await("a", "not monitored")
	if got := w.calls(); got != "start a, stop a" {
		t.Errorf("calls: got %q", got)
	}
}

// TestFailingStart: a service that does not come up fails, and is not seen to start for ever.
func TestFailingStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 50*time.Millisecond, map[string]string{
		"0000_a.monitrc": strings.Replace(check("DIR", "a", ""), "start a\"", "none a\" with timeout 1 seconds", 1)})
	failing := regexp.MustCompile(`<service name="a">.*?<status>[1-9]\d*</status><status_hint>0</status_hint><monitor>1<`)
	eventually.True(t, "monitored, and failing", func() bool {
		return failing.MatchString(w.get("/_status2?format=xml"))
	})
}

// TestStartingIsNotAFault: the Director's stop fails if the status of a service has a message, and one that is being
// started for the first time has none.
func TestStartingIsNotAFault(t *testing.T) {
	t.Parallel()
	w := prepare(t, map[string]string{
		"0000_a.monitrc": strings.Replace(check("DIR", "a", ""), "start a\"", "none a\" with timeout 600 seconds", 1)})
	w.run(long)
	eventually.True(t, "the call", func() bool { return w.calls() == "none a" })
	if got := w.get("/_status2?format=xml"); !strings.Contains(got, "<monitor>2</monitor>") ||
		strings.Contains(got, "<status_message>") {
		t.Errorf("got %s", got)
	}
}

// TestEndReason: why a process ended is known, from the kernel or because the supervisor ended it.
func TestEndReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{"0000_a.monitrc": check("DIR", "a", "")})
	reason := func() string {
		match := regexp.MustCompile(`<end_reason>(.*)</end_reason>`).FindStringSubmatch(w.get("/_status2?format=xml"))
		if match == nil {
			return ""
		}
		return match[1]
	}
	w.await("a", "running")
	w.kill("a")
	eventually.True(t, "the end", func() bool { return reason() != "" })
	if got := reason(); got != "killed by SIGKILL" && got != "ended unexpectedly" { // the latter before Linux 6.15
		t.Errorf("got %q", got)
	}
	w.await("a", "running")
	w.request("a", "stop")
	w.await("a", "not monitored")
	if got := reason(); got != "stopped" {
		t.Errorf("after a stop: got %q", got)
	}
}

// TestSeveralServices: monit's program asks for an action on all services of a group at once.
func TestSeveralServices(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{"0000_a.monitrc": check("DIR", "a", ""),
		"0001_b.monitrc": check("DIR", "b", "")})
	w.await("a", "running")
	w.await("b", "running")
	ask := func(form string) (int, string) {
		request, err := http.NewRequest(http.MethodPost, w.url+"/_doaction", strings.NewReader(form))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.SetBasicAuth("vcap", "secret")
		response, err := w.http.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(text)
	}
	if code, text := ask("service=a&service=none&action=stop"); code != http.StatusNotFound ||
		!strings.Contains(text, `</h2>There is no service named none<p>`) {
		t.Errorf("got %d, %q", code, text)
	}
	if got := w.state("a"); got != "running" {
		t.Errorf("after a refused request: got %q", got)
	}
	if code, text := ask("service=a&action=stop&service=b"); code != http.StatusOK {
		t.Errorf("got %d, %q", code, text)
	}
	w.await("a", "not monitored")
	w.await("b", "not monitored")
}

// restart kills the processes of services n times, and returns what the supervisor and the test hold each time that all
// run again.
func (w *world) restart(services []string, n int) (held []resources) {
	w.t.Helper()
	for range n {
		old := map[string]int{}
		for _, name := range services {
			w.await(name, "running")
			old[name] = w.kill(name)
		}
		for _, name := range services {
			eventually.True(w.t, name+" again", func() bool {
				return w.pid(name) != old[name] && pidfile.Alive(w.pid(name))
			})
			w.await(name, "running")
		}
		w.mu.Lock()
		w.mails = nil
		w.mu.Unlock()
		held = append(held, hold(w.t))
	}
	return held
}

// resources counts everything that must not grow with the number of restarts.
type resources struct {
	goroutines, descriptors int
	heap                    uint64
}

func hold(t testing.TB) resources {
	t.Helper()
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return resources{runtime.NumGoroutine(), len(descriptors), memory.HeapAlloc}
}

// quick is a supervisor of ten services that restarts them within milliseconds.
func quick(t testing.TB) (w *world, services []string) {
	t.Helper()
	files := map[string]string{}
	for i := range 10 {
		name := fmt.Sprintf("s%d", i)
		services = append(services, name)
		files[name+".monitrc"] = check("DIR", name, "")
	}
	w = prepare(t, files)
	w.grace, w.log = 5*time.Millisecond, io.Discard
	w.run(50 * time.Millisecond)
	return w, services
}

// settled waits until goroutines and descriptors are no more than they were: some of the last restart may be about to
// end.
func (before resources) settled(t testing.TB) {
	t.Helper()
	eventually.Nil(t, "what was held before", func() error {
		if now := hold(t); now.goroutines > before.goroutines || now.descriptors > before.descriptors {
			return fmt.Errorf("%+v, before %+v", now, before)
		}
		return nil
	})
}

// TestRestartsLeakNothing: neither goroutines nor descriptors. It is not parallel: it counts those of the process.
func TestRestartsLeakNothing(t *testing.T) {
	w, services := quick(t)
	w.restart(services, 1)[0].settled(t)
	before := hold(t)
	w.restart(services, 5)
	before.settled(t)
}

// TestDamagedState: a document that cannot be read is kept aside, and all services are supervised.
func TestDamagedState(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{", "\x00\x00", `{"version":2,"services":{"a":{"monitored":false}}}`, "[]"} {
		w := newWorld(t, long, map[string]string{"0000_a.monitrc": check("DIR", "a", ""), "state": text})
		w.await("a", "running")
		if kept, err := os.ReadFile(filepath.Join(w.dir, "state.damaged")); err != nil || string(kept) != text {
			t.Errorf("state %q: kept aside is %q, %v", text, kept, err)
		}
	}
}

// TestOnlyTheAccountIsServed: nothing is told and nothing is done without the password.
func TestOnlyTheAccountIsServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, long, map[string]string{"0000_a.monitrc": check("DIR", "a", "")})
	w.await("a", "running")
	for _, account := range [][2]string{{}, {"vcap", ""}, {"vcap", "secre"}, {"vcap:secret", ""}, {"", "vcap:secret"}} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
			request, err := http.NewRequest(method, w.url+"/a", strings.NewReader("action=stop"))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			if account != [2]string{} {
				request.SetBasicAuth(account[0], account[1])
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s as %q: got %d", method, account, response.StatusCode)
			}
		}
	}
	if got := w.state("a"); got != "running" {
		t.Errorf("after that: got %q", got)
	}
}

// TestAlertsWaitForTheAgent: alerts that nobody takes are in the state, arrive once somebody does, and then no more.
func TestAlertsWaitForTheAgent(t *testing.T) {
	t.Parallel()
	w := prepare(t, map[string]string{"0000_bad.monitrc": "check nonsense"})
	stored := func() string {
		text, _ := os.ReadFile(filepath.Join(w.dir, "state"))
		return string(text)
	}
	log := logrus.New()
	log.SetOutput(w.log)
	runWith := func(mailAddress string, cycle time.Duration, until func() bool) {
		t.Helper()
		s, err := New(Options{Patterns: []string{filepath.Join(w.dir, "*.monitrc")}, Cycle: cycle,
			Grace: w.grace, StateFile: filepath.Join(w.dir, "state"), UserFile: filepath.Join(w.dir, "user"),
			MailAddress: mailAddress, Log: logrus.NewEntry(log)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.Run(ctx)
		}()
		defer func() { cancel(); <-done }()
		eventually.True(t, "the state of the alerts", until)
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := closed.Addr().String()
	closed.Close()
	runWith(nobody, 50*time.Millisecond, func() bool { return strings.Contains(stored(), "0000_bad.monitrc") })
	if err := os.Remove(filepath.Join(w.dir, "0000_bad.monitrc")); err != nil {
		t.Fatal(err)
	}
	// The agent answers only after the state of this run was written with the alert in it.
	agent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	written := func() time.Time {
		info, err := os.Stat(filepath.Join(w.dir, "state"))
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	before := written()
	go func() {
		for {
			conn, err := agent.Accept()
			if err != nil {
				return
			}
			for written().Equal(before) && t.Context().Err() == nil {
				time.Sleep(time.Millisecond)
			}
			w.receive(conn)
		}
	}()
	runWith(agent.Addr().String(), long, func() bool {
		return len(w.alerts()) == 1 &&
			!strings.Contains(stored(), "mails")
	})
	runWith(agent.Addr().String(), long, func() bool { return strings.Contains(stored(), "services") })
	if got := w.alerts(); len(got) != 1 || got[0] != "bad: Invalid type: alert" {
		t.Errorf("got %q, want one alert", got)
	}
}
