package monitcli

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/internal/vcap"
	"cambium/jobs/monit"
	"cambium/supervisor"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// daemon answers as monit 5.2.5 does.
type daemon struct{ actions []string }

const summaryText = "The Monit daemon 5.2.5 uptime: 2h 3m\n\nProcess 'a'                         running\n"

// refuse answers with a page of monit's.
func refuse(w http.ResponseWriter, code int, reason string) {
	w.WriteHeader(code)
	fmt.Fprintf(w, "<html><head><title>x</title></head><body bgcolor=#FFFFFF><h2>%s</h2>%s<p><hr><a href='http://monit/'>"+
		"<font size=-1>monit 5.2.5</font></a></body></html>\r\n", http.StatusText(code), reason)
}

func (d *daemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, password, _ := r.BasicAuth()
	name := strings.TrimPrefix(r.URL.Path, "/")
	switch {
	case user != "vcap" || password != "secret":
		refuse(w, http.StatusUnauthorized, "You are not authorized")
	case r.URL.String() == "/_status?format=text&level=summary":
		fmt.Fprint(w, summaryText)
	case r.URL.String() == "/_status?format=text":
		fmt.Fprint(w, "all \x1b[0;92mdetails\x1b[0m\n")
	case r.URL.String() == "/_status2?format=xml":
		fmt.Fprint(w, `<?xml version="1.0" encoding="ISO-8859-1"?><monit incarnation="1" version="5.2.5"><services>
<service name="a"><type>3</type></service><service name="busy"><type>3</type></service>
<service name="b c"><type>2</type></service></services><servicegroups>
<servicegroup name="vcap"><service>a</service><service>b c</service></servicegroup></servicegroups></monit>`)
	case r.Method != http.MethodPost:
		refuse(w, http.StatusNotFound, "not found")
	case name == "busy":
		refuse(w, http.StatusServiceUnavailable, "Other action already in progress -- please try again later")
	case name == "a" || name == "b c":
		d.actions = append(d.actions, r.PostFormValue("action")+" "+name)
	default:
		refuse(w, http.StatusNotFound, "There is no service by that name")
	}
}

// newProgram is the program with a daemon and directories of the test. call runs it.
func newProgram(t *testing.T) (p program, d *daemon, call func(args ...string) (code int, stdout, stderr string)) {
	d = &daemon{}
	server := httptest.NewServer(d)
	t.Cleanup(server.Close)
	dirs := vcap.New(t.TempDir())
	write(t, dirs.MonitUser(), "vcap:secret")
	client := &monit.Client{URL: server.URL, UserFile: dirs.MonitUser(), Owner: uint32(os.Getuid())}
	p = program{client: client, dirs: dirs, kill: unix.Kill, pidFile: filepath.Join(dirs.Base(), "monit.pid")}
	return p, d, p.caller(t)
}

func (p program) caller(t *testing.T) func(args ...string) (code int, stdout, stderr string) {
	return func(args ...string) (int, string, string) {
		var out, failure bytes.Buffer
		p.stdout, p.stderr = &out, &failure
		code := p.run(t.Context(), args)
		return code, out.String(), failure.String()
	}
}

func write(t *testing.T, path, text string) {
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestCommands(t *testing.T) {
	const pending = "monit answered 503 Service Unavailable: " +
		"Other action already in progress -- please try again later\n"
	for _, test := range []struct {
		args           string
		code           int
		stdout, stderr string
		actions        []string
	}{
		{args: "summary", stdout: summaryText},
		{args: "-c /etc/monitrc summary", stdout: summaryText},
		{args: "status -v", stdout: "all details\n"},
		{args: "start a", actions: []string{"start a"}},
		{args: "stop a", actions: []string{"stop a"}},
		{args: "restart a", actions: []string{"restart a"}},
		{args: "monitor a", actions: []string{"monitor a"}},
		{args: "unmonitor a", actions: []string{"unmonitor a"}},
		{args: "start all -g vcap", actions: []string{"start a", "start b c"}},
		{args: "-g vcap stop all", actions: []string{"stop a", "stop b c"}},
		{args: "stop all", code: 1, actions: []string{"stop a", "stop b c"}, stderr: "monit: stop busy: " + pending},
		{args: "start all -g other", code: 1, stderr: "monit: there is no service in group \"other\"\n"},
		{args: "start busy", code: 1, stderr: "monit: " + pending},
		{args: "start x", code: 1, stderr: "monit: monit answered 404 Not Found: There is no service by that name\n"},
		{args: "start", code: 1, stderr: "monit: give the name of one service, or all, after start\n"},
		{args: "begin a", code: 1, stderr: "monit: unknown command \"begin\"; -h shows the usage\n"},
		{args: "-x", code: 1, stderr: "monit: flag provided but not defined: -x; -h shows the usage\n"},
		{args: "-V", stdout: "This is Monit version 5.2.5\nprovided by the agent's supervisor\n"},
		{args: "-h", stdout: usage},
	} {
		t.Run(test.args, func(t *testing.T) {
			_, d, call := newProgram(t)
			code, stdout, stderr := call(strings.Fields(test.args)...)
			if code != test.code || stdout != test.stdout || stderr != test.stderr {
				t.Errorf("got %d, %q, %q", code, stdout, stderr)
			}
			if !slices.Equal(d.actions, test.actions) {
				t.Errorf("monit was asked for %q, want %q", d.actions, test.actions)
			}
		})
	}
}

// TestWithTheSupervisor: the two speak with each other, also before there is a job. Nothing carries out the actions.
func TestWithTheSupervisor(t *testing.T) {
	p, _, _ := newProgram(t)
	serve := func() func(args ...string) (code int, stdout, stderr string) {
		log := logrus.New()
		log.SetOutput(t.Output())
		s, err := supervisor.New(supervisor.Options{Patterns: []string{p.dirs.MonitFiles()}, Cycle: 10 * time.Second,
			StateFile: p.dirs.SupervisorState(), UserFile: p.dirs.MonitUser(), Log: logrus.NewEntry(log)})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(s.Handler())
		t.Cleanup(server.Close)
		p.client.URL = server.URL
		return p.caller(t)
	}
	call := serve()
	code, stdout, stderr := call("summary")
	if code != 0 || !strings.HasPrefix(stdout, "The Monit daemon 5.2.5 uptime: ") {
		t.Errorf("without jobs: got %d, %q, %q", code, stdout, stderr)
	}
	write(t, filepath.Join(p.dirs.MonitJobs(), "0000_a.monitrc"),
		"check process a pidfile /nowhere/a.pid group vcap\ncheck process b pidfile /nowhere/b.pid")
	call = serve()
	if code, _, stderr := call("start", "all", "-g", "vcap"); code != 0 {
		t.Errorf("start: got %d, %q", code, stderr)
	}
	if code, _, stderr := call("start", "a"); code != 1 || !strings.Contains(stderr, "Other action already") {
		t.Errorf("a second start: got %d, %q", code, stderr)
	}
	code, stdout, stderr = call("summary")
	if lines := strings.Split(stdout, "\n"); code != 0 || !slices.ContainsFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, "Process 'a'") && strings.HasSuffix(line, " - start pending")
	}) || !slices.ContainsFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, "Process 'b'") && strings.HasSuffix(line, " initializing")
	}) {
		t.Errorf("got %d, %q, %q", code, stdout, stderr)
	}
}

func TestWrongAccount(t *testing.T) {
	p, d, call := newProgram(t)
	write(t, p.dirs.MonitUser(), "vcap:other")
	for _, command := range []string{"summary", "start a", "start all"} {
		code, _, stderr := call(strings.Fields(command)...)
		if code != 1 || !strings.Contains(stderr, "401 Unauthorized: You are not authorized") {
			t.Errorf("%s: got %d, %q", command, code, stderr)
		}
	}
	if len(d.actions) > 0 {
		t.Errorf("monit was asked for %q", d.actions)
	}
}

// TestSignals takes the place of the daemon: the signals arrive here.
func TestSignals(t *testing.T) {
	p, _, call := newProgram(t)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGHUP, unix.SIGTERM, unix.SIGUSR1)
	defer signal.Stop(signals)
	write(t, p.pidFile, fmt.Sprintf("%d\n", os.Getpid()))
	for args, want := range map[string]struct {
		signal os.Signal
		stdout string
	}{
		"reload":      {unix.SIGHUP, "Reinitializing monit daemon\n"},
		"reload name": {unix.SIGHUP, "Reinitializing monit daemon\n"},
		"quit":        {unix.SIGTERM, fmt.Sprintf("monit daemon with pid [%d] killed\n", os.Getpid())},
		"validate":    {unix.SIGUSR1, fmt.Sprintf("monit daemon at %d awakened\n", os.Getpid())},
		"":            {unix.SIGUSR1, fmt.Sprintf("monit daemon at %d awakened\n", os.Getpid())},
	} {
		code, stdout, stderr := call(strings.Fields(args)...)
		if code != 0 {
			t.Fatalf("%s: got %d, %q", args, code, stderr)
		}
		if got := <-signals; got != want.signal || stdout != want.stdout {
			t.Errorf("%s: got %v, %q", args, got, stdout)
		}
	}
	p.kill = func(pid int, _ unix.Signal) error { // those would be signals to init, to the group, or to all processes
		t.Errorf("process %d got a signal", pid)
		return nil
	}
	call = p.caller(t)
	for _, wrong := range []string{"", "1", "0", "-1", "x"} {
		write(t, p.pidFile, wrong)
		if code, stdout, stderr := call("quit"); code != 1 || stdout != "" ||
			!strings.HasPrefix(stderr, "monit: the daemon is not running: "+p.pidFile) {
			t.Errorf("pid %q: got %d, %q, %q", wrong, code, stdout, stderr)
		}
	}
	if err := os.Remove(p.pidFile); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := call("reload"); code != 1 || !strings.Contains(stderr, "no such file") {
		t.Errorf("got %d, %q", code, stderr)
	}
}

func TestSyntax(t *testing.T) {
	p, _, call := newProgram(t)
	ok := "Control file syntax OK\n"
	if code, stdout, stderr := call("-t"); code != 0 || stdout != ok {
		t.Errorf("without files: got %d, %q, %q", code, stdout, stderr)
	}
	a, b := filepath.Join(p.dirs.MonitJobs(), "0000_a.monitrc"), filepath.Join(p.dirs.MonitJobs(), "0001_b.monitrc")
	write(t, a, "check process a with pidfile /a\n depends on b")
	write(t, b, "check process b with pidfile /b")
	for _, args := range [][]string{{"-t"}, {"-c", p.dirs.StemcellFile("monitrc"), "-t"}, {"-t", "-c", b}} {
		if code, stdout, stderr := call(args...); code != 0 || stdout != ok {
			t.Errorf("%v: got %d, %q, %q", args, code, stdout, stderr)
		}
	}
	write(t, b, "check process b with\n pidfile b")
	want := "monit: " + a + `:1: service "a": depends on "b", which no valid file defines` + "\nmonit: " +
		b + `:2:10: service "b": expected an absolute path, found "b"` + "\n"
	if code, stdout, stderr := call("-t"); code != 1 || stdout != "" || stderr != want {
		t.Errorf("got %d, %q, %q, want %q", code, stdout, stderr, want)
	}
	if code, _, stderr := call("-t", "-c", "/does/not/exist"); code != 1 || !strings.Contains(stderr, "no such file") {
		t.Errorf("got %d, %q", code, stderr)
	}
}

// TestStemcellsMonit: of the places, the first counts that is there and is not this program.
func TestStemcellsMonit(t *testing.T) {
	p, _, _ := newProgram(t)
	var executed []string
	p.execute = func(path string, args, _ []string) error {
		executed = append([]string{path}, args...)
		return unix.ENOEXEC
	}
	link, stemcells := filepath.Join(p.dirs.Base(), "link"), filepath.Join(p.dirs.Base(), "stemcells")
	if err := os.Symlink("/proc/self/exe", link); err != nil {
		t.Fatal(err)
	}
	p.stemcell = []string{filepath.Join(p.dirs.Base(), "gone"), link, stemcells}
	call := p.caller(t)
	if code, _, stderr := call("-I"); code != 1 || executed != nil || !strings.Contains(stderr, "no monit of its own") {
		t.Errorf("without another: got %d, %q, executed %q", code, stderr, executed)
	}
	write(t, stemcells, "")
	code, _, stderr := call("-d", "10", "-I", "-c", "/x")
	if code != 1 || !strings.Contains(stderr, "exec format error") {
		t.Errorf("got %d, %q", code, stderr)
	}
	if want := []string{stemcells, "monit", "-d", "10", "-I", "-c", "/x"}; !slices.Equal(executed, want) {
		t.Errorf("executed %q, want %q", executed, want)
	}
}
