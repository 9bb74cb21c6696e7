package unit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// fakeSystemd answers like PID 1: with a job for each request, whose end is a signal.
type fakeSystemd struct {
	result    string // of every job
	active    string
	condition bool
	early     bool // the signal overtakes the reply, as it may
	silent    bool // no signal ever
	// dropIns are those of every unit, and stale is set if files have changed since systemd read them.
	dropIns []string
	stale   bool
}

func (s fakeSystemd) answer(p *peer, c net.Conn, m *dbus.Message) {
	const job = dbus.ObjectPath("/org/freedesktop/systemd1/job/7")
	member, _ := m.Headers[dbus.FieldMember].Value().(string)
	switch member {
	case "StartUnit", "StopUnit", "RestartUnit", "ReloadOrRestartUnit":
		unit, _ := m.Body[0].(string)
		if unit == "ghost.service" {
			p.fail(c, m, "org.freedesktop.systemd1.NoSuchUnit", "Unit ghost.service not found.")
			return
		}
		end := func() {
			p.signal(c, "JobRemoved", uint32(6), dbus.ObjectPath("/org/freedesktop/systemd1/job/6"), "other.service", "failed")
			p.signal(c, "JobRemoved", uint32(7), job, unit, s.result)
		}
		if s.early && !s.silent {
			end()
		}
		p.reply(c, m, job)
		if !s.early && !s.silent {
			end()
		}
	case "GetUnitByPID":
		p.fail(c, m, "org.freedesktop.systemd1.NoUnitForPID", "not a service")
	case "Get":
		of := map[string]any{"ActiveState": s.active, "ConditionResult": s.condition,
			"DropInPaths": s.dropIns, "NeedDaemonReload": s.stale}
		p.reply(c, m, dbus.MakeVariant(of[m.Body[1].(string)]))
	case "GetAll":
		p.reply(c, m, map[string]dbus.Variant{"LoadState": dbus.MakeVariant("loaded"),
			"ActiveState": dbus.MakeVariant(s.active),
			"SubState":    dbus.MakeVariant("running"), "MainPID": dbus.MakeVariant(uint32(42)),
			"Result": dbus.MakeVariant("exit-code")})
	default:
		p.reply(c, m)
	}
}

func TestSystemdJobs(t *testing.T) {
	for _, tc := range []struct {
		name string
		peer fakeSystemd
		call func(context.Context, *Systemd) error
		want func(error) bool
	}{
		{"started", fakeSystemd{result: "done", active: "active", condition: true}, func(ctx context.Context, s *Systemd) error { return s.Start(ctx, "monit") },
			func(err error) bool { return err == nil }},
		{"signal before reply", fakeSystemd{result: "done", active: "active", condition: true, early: true}, func(ctx context.Context, s *Systemd) error { return s.Start(ctx, "monit") },
			func(err error) bool { return err == nil }},
		{"start failed", fakeSystemd{result: "failed", active: "failed"}, func(ctx context.Context, s *Systemd) error { return s.Start(ctx, "monit") },
			func(err error) bool {
				var job *JobError
				return errors.As(err, &job) && job.Result == "failed" && job.State.Active == "failed" &&
					job.State.Result == "exit-code"
			}},
		{"condition does not hold", fakeSystemd{result: "done", active: "inactive"}, func(ctx context.Context, s *Systemd) error { return s.Start(ctx, "monit") },
			func(err error) bool { return errors.Is(err, ErrCondition) }},
		{"stopped", fakeSystemd{result: "done", active: "inactive"}, func(ctx context.Context, s *Systemd) error { return s.Stop(ctx, "monit") },
			func(err error) bool { return err == nil }},
		{"restart timed out", fakeSystemd{result: "timeout", active: "activating"}, func(ctx context.Context, s *Systemd) error { return s.Restart(ctx, "systemd-resolved") },
			func(err error) bool { var job *JobError; return errors.As(err, &job) && job.Result == "timeout" }},
		{"reloaded", fakeSystemd{result: "done"}, func(ctx context.Context, s *Systemd) error { return s.Reload(ctx, "x.service") },
			func(err error) bool { return err == nil }},
		{"no such unit", fakeSystemd{result: "done"}, func(ctx context.Context, s *Systemd) error { return s.Start(ctx, "ghost") },
			func(err error) bool { return errors.Is(err, ErrNotFound) }},
		{"killed", fakeSystemd{}, func(ctx context.Context, s *Systemd) error { return s.Kill(ctx, "monit") },
			func(err error) bool { return err == nil }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			listen(t, filepath.Join(root, "run/systemd/private"), tc.peer.answer)
			s := &Systemd{Root: root}
			t.Cleanup(s.Close)
			if err := tc.call(bounded(t), s); !tc.want(err) {
				t.Errorf("got error %v", err)
			}
		})
	}
}

func TestSystemdState(t *testing.T) {
	root := t.TempDir()
	listen(t, filepath.Join(root, "run/systemd/private"), fakeSystemd{active: "active", condition: true}.answer)
	s := &Systemd{Root: root}
	t.Cleanup(s.Close)
	got, err := s.State(bounded(t), "monit")
	want := State{Load: "loaded", Active: "active", Sub: "running", MainPID: 42, Result: "exit-code"}
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestSystemdHoldsTheFirstMessageBack(t *testing.T) {
	root := t.TempDir()
	p := listen(t, filepath.Join(root, "run/systemd/private"), fakeSystemd{active: "active", condition: true}.answer)
	p.mu.Lock()
	p.lateFirst = true
	p.mu.Unlock()
	s := &Systemd{Root: root}
	t.Cleanup(s.Close)
	if got, err := s.State(bounded(t), "monit"); err != nil || got.Active != "active" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestReloadUnits: a reload costs seconds of a boot, but without a necessary one systemd would start monit as before.
func TestReloadUnits(t *testing.T) {
	root := t.TempDir()
	written, removed := filepath.Join(root, "written.conf"), filepath.Join(root, "removed.conf")
	if err := os.WriteFile(written, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		peer   fakeSystemd
		dropIn string
		reload bool
	}{
		{"a unit that systemd has just read", fakeSystemd{dropIns: []string{"/etc/x.conf", written}}, written, false},
		{"a unit read before the drop-in", fakeSystemd{stale: true}, written, true},
		{"a drop-in that changed", fakeSystemd{dropIns: []string{written}, stale: true}, written, true},
		{"an old systemd, which lists directories only when it reloads", fakeSystemd{}, written, true},
		{"a unit that still uses what is removed", fakeSystemd{dropIns: []string{removed}}, removed, true},
		{"a unit without what is removed", fakeSystemd{dropIns: []string{written}}, removed, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			p := listen(t, filepath.Join(root, "run/systemd/private"), tc.peer.answer)
			s := &Systemd{Root: root}
			t.Cleanup(s.Close)
			if err := s.ReloadUnits(bounded(t), "monit", tc.dropIn); err != nil {
				t.Fatal(err)
			}
			if reloaded := strings.HasSuffix(p.members(), " Reload"); reloaded != tc.reload {
				t.Errorf("calls %s, want a reload %v", p.members(), tc.reload)
			}
		})
	}
}

func TestSystemdAbsent(t *testing.T) {
	s := &Systemd{Root: t.TempDir()}
	if err := s.Start(bounded(t), "monit"); !errors.Is(err, ErrAbsent) {
		t.Errorf("got %v, want ErrAbsent", err)
	}
	if Booted(s.Root) {
		t.Error("an empty root is said to run systemd")
	}
}

func TestSystemdCallEndsWithItsContext(t *testing.T) {
	root := t.TempDir()
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	p := listen(t, filepath.Join(root, "run/systemd/private"), func(p *peer, c net.Conn, m *dbus.Message) {
		fakeSystemd{silent: true}.answer(p, c, m)
		if m.Headers[dbus.FieldMember].Value() == "StartUnit" {
			cancel()
		}
	})
	s := &Systemd{Root: root}
	t.Cleanup(s.Close)
	if err := s.Start(ctx, "monit"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the end of the context", err)
	}
	if got := p.members(); got != "AddMatch GetUnitByPID StartUnit" {
		t.Errorf("got calls %q, want one StartUnit", got)
	}
}

func TestSystemdSilentHandshake(t *testing.T) {
	root := t.TempDir()
	for _, path := range []string{"run/systemd/private", "run/dbus/system_bus_socket"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := (&Systemd{Root: root}).Start(ctx, "monit"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
}

func TestSystemdConnectsAgainAfterReexec(t *testing.T) {
	for _, queued := range []bool{false, true} {
		t.Run(fmt.Sprintf("job queued %v", queued), func(t *testing.T) {
			root := t.TempDir()
			var asked atomic.Int32
			p := listen(t, filepath.Join(root, "run/systemd/private"), func(p *peer, c net.Conn, m *dbus.Message) {
				if m.Headers[dbus.FieldMember].Value() == "StartUnit" && asked.Add(1) == 1 {
					if queued {
						fakeSystemd{silent: true}.answer(p, c, m)
					}
					c.Close()
					return
				}
				fakeSystemd{result: "done", active: "active", condition: true}.answer(p, c, m)
			})
			s := &Systemd{Root: root}
			t.Cleanup(s.Close)
			if err := s.Start(bounded(t), "monit"); err != nil {
				t.Errorf("got %v, want success at the second try", err)
			}
			if got := p.members(); !strings.HasPrefix(got, "AddMatch GetUnitByPID StartUnit AddMatch StartUnit") {
				t.Errorf("got calls %q, want StartUnit twice", got)
			}
		})
	}
}

// TestSystemdSilentAfterHandshake: go-systemd calls AddMatch without a context.
func TestSystemdSilentAfterHandshake(t *testing.T) {
	root := t.TempDir()
	listen(t, filepath.Join(root, "run/systemd/private"), func(*peer, net.Conn, *dbus.Message) {})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := (&Systemd{Root: root}).Start(ctx, "monit"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
}

func TestSystemdOverTheBusWithoutThePrivateSocket(t *testing.T) {
	root := t.TempDir()
	p := listen(t, filepath.Join(root, "run/dbus/system_bus_socket"), func(p *peer, c net.Conn, m *dbus.Message) {
		if m.Headers[dbus.FieldMember].Value() == "Hello" {
			p.reply(c, m, ":1.1")
			return
		}
		fakeSystemd{result: "done", active: "active", condition: true}.answer(p, c, m)
	})
	s := &Systemd{Root: root}
	t.Cleanup(s.Close)
	if err := s.Start(bounded(t), "monit"); err != nil {
		t.Fatal(err)
	}
	if got, want := p.members(), "Hello AddMatch GetUnitByPID StartUnit Get"; got != want {
		t.Errorf("got calls %q, want %q", got, want)
	}
}

// TestStartIgnoresOrderingAfterOurOwnUnit: systemd would delay such a start until the agent is ready, while the agent
// waits for it.
func TestStartIgnoresOrderingAfterOurOwnUnit(t *testing.T) {
	for _, tc := range []struct {
		name, after, self, mode string
	}{
		{"ordered after our own unit", "bosh-agent.service", "activating", "ignore-dependencies"},
		{"ordered after our own unit, which is ready", "bosh-agent.service", "active", "replace"},
		{"ordered after another unit", "basic.target", "activating", "replace"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			modes := make(chan string, 1)
			const ourPath = dbus.ObjectPath("/org/freedesktop/systemd1/unit/bosh_2dagent_2eservice")
			listen(t, filepath.Join(root, "run/systemd/private"), func(p *peer, c net.Conn, m *dbus.Message) {
				switch m.Headers[dbus.FieldMember].Value() {
				case "StartUnit":
					mode, _ := m.Body[1].(string)
					modes <- mode
				case "GetUnitByPID":
					p.reply(c, m, ourPath)
					return
				case "Get":
					of := map[string]any{"After": []string{tc.after}, "ActiveState": "active", "LoadState": "loaded"}
					if m.Headers[dbus.FieldPath].Value() == ourPath {
						of["ActiveState"] = tc.self
					}
					p.reply(c, m, dbus.MakeVariant(of[m.Body[1].(string)]))
					return
				}
				fakeSystemd{result: "done"}.answer(p, c, m)
			})
			for _, self := range []string{"", "bosh-agent"} {
				s := &Systemd{Root: root, Self: self}
				t.Cleanup(s.Close)
				if err := s.Start(bounded(t), "monit"); err != nil {
					t.Fatal(err)
				}
				if mode := <-modes; mode != tc.mode {
					t.Errorf("started with %q, want %q", mode, tc.mode)
				}
				if !s.Running(bounded(t), "monit") {
					t.Error("an active unit does not run")
				}
			}
		})
	}
}

// TestSystemdConcurrentJobs: each call gets its own result, although all share one connection in the end.
func TestSystemdConcurrentJobs(t *testing.T) {
	root := t.TempDir()
	var last atomic.Uint32
	listen(t, filepath.Join(root, "run/systemd/private"), func(p *peer, c net.Conn, m *dbus.Message) {
		if m.Headers[dbus.FieldMember].Value() != "StopUnit" {
			fakeSystemd{active: "inactive"}.answer(p, c, m)
			return
		}
		id := last.Add(1)
		job := dbus.ObjectPath(fmt.Sprintf("/org/freedesktop/systemd1/job/%d", id))
		p.reply(c, m, job)
		unit, _ := m.Body[0].(string)
		p.signal(c, "JobRemoved", id, job, unit, strings.TrimSuffix(unit, ".service"))
	})
	s := &Systemd{Root: root}
	t.Cleanup(s.Close)
	ctx := bounded(t)
	var calls sync.WaitGroup
	for i := range 20 {
		calls.Go(func() {
			want := fmt.Sprintf("result-%d", i)
			var job *JobError
			if err := s.Stop(ctx, want); !errors.As(err, &job) || job.Result != want {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
	calls.Wait()
}

func TestStartIsLoggedInSystemctlsWords(t *testing.T) {
	root := t.TempDir()
	listen(t, filepath.Join(root, "run/systemd/private"),
		fakeSystemd{result: "done", active: "active", condition: true}.answer)
	var out strings.Builder
	log := logrus.New()
	log.SetOutput(&out)
	s := &Systemd{Root: root, Log: logrus.NewEntry(log)}
	t.Cleanup(s.Close)
	if err := s.Start(bounded(t), "monit"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "systemctl start monit") {
		t.Errorf("got log %q, want the words systemctl start monit", out.String())
	}
	// Of one that runs already, too: others wait for these words after a restart of the agent.
	out.Reset()
	if s.Started("monit"); !strings.Contains(out.String(), "systemctl start monit") {
		t.Errorf("got log %q, want the words systemctl start monit", out.String())
	}
	out.Reset()
	if (&Runit{Log: s.Log}).Started("monit"); !strings.Contains(out.String(), "sv start monit") {
		t.Errorf("got log %q, want the words sv start monit", out.String())
	}
}

func TestPowerOff(t *testing.T) {
	refuse := func(p *peer, c net.Conn, m *dbus.Message) {
		if m.Headers[dbus.FieldMember].Value() == "Hello" {
			p.reply(c, m, ":1.1")
			return
		}
		p.fail(c, m, "org.freedesktop.DBus.Error.ServiceUnknown", "The name is not activatable")
	}
	accept := func(p *peer, c net.Conn, m *dbus.Message) {
		if m.Headers[dbus.FieldMember].Value() == "Hello" {
			p.reply(c, m, ":1.1")
			return
		}
		fakeSystemd{result: "done"}.answer(p, c, m)
	}
	for _, tc := range []struct {
		name           string
		bus, private   func(*peer, net.Conn, *dbus.Message)
		wantBus        string
		wantPrivate    string
		wantTheKernels bool
	}{
		{"logind", accept, accept, "Hello PowerOff", "", false},
		{"systemd when there is no logind", refuse, accept, "Hello PowerOff", "AddMatch StartUnit", false},
		{"kernel when there is neither", nil, nil, "", "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			var bus, private *peer
			if tc.bus != nil {
				bus = listen(t, filepath.Join(root, "run/dbus/system_bus_socket"), tc.bus)
				private = listen(t, filepath.Join(root, "run/systemd/private"), tc.private)
			}
			asked := 0
			s := &Systemd{Root: root, reboot: func(cmd int) error {
				if cmd != unix.LINUX_REBOOT_CMD_POWER_OFF {
					t.Errorf("got command %#x", cmd)
				}
				asked++
				return nil
			}}
			t.Cleanup(s.Close)
			if err := s.PowerOff(bounded(t)); err != nil {
				t.Fatal(err)
			}
			if (asked == 1) != tc.wantTheKernels {
				t.Errorf("kernel asked %d times, want it %v", asked, tc.wantTheKernels)
			}
			if bus != nil && (bus.members() != tc.wantBus || private.members() != tc.wantPrivate) {
				t.Errorf("got calls %q and %q, want %q and %q", bus.members(), private.members(), tc.wantBus, tc.wantPrivate)
			}
		})
	}
}

func TestRunit(t *testing.T) {
	root := t.TempDir()
	record := filepath.Join(root, "record")
	program := filepath.Join(root, "sv")
	script := "#!/bin/sh\n[ \"$2\" = bad ] && { echo 'fail: bad: unable to change to service directory' >&2; exit 1; }\necho \"$@\" >>" + record + "\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	r := &Runit{Root: root, Program: program}
	ctx := bounded(t)
	// An earlier boot has left the FIFO; runsv reads from it a little later.
	ok := filepath.Join(root, "etc/sv/monit/supervise/ok")
	if err := errors.Join(os.MkdirAll(filepath.Dir(ok), 0o755), unix.Mkfifo(ok, 0o600)); err != nil {
		t.Fatal(err)
	}
	hurried, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := r.Setup(hurried, "monit"); err == nil {
		t.Error("a service that runsv does not have is set up")
	}
	time.AfterFunc(100*time.Millisecond, func() {
		if runsv, err := os.OpenFile(ok, os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
			t.Cleanup(func() { _ = runsv.Close() })
		}
	})
	for _, call := range []func() error{
		func() error { return r.Setup(ctx, "monit") },
		func() error { return r.Setup(ctx, "monit") },
		func() error { return r.Start(ctx, "monit") },
		func() error { return r.Kill(ctx, "monit") },
		func() error { return r.Reload(ctx, "monit") },
		func() error { return r.Stop(ctx, "monit") },
	} {
		if err := call(); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(record)
	if want := "start monit\nkill monit\nreload monit\nstop monit\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if target, err := os.Readlink(filepath.Join(root, "etc/service/monit")); err != nil || target != "/etc/sv/monit" {
		t.Errorf("got link to %q, %v", target, err)
	}
	if err := r.Start(ctx, "bad"); err == nil || !strings.Contains(err.Error(), "unable to change") {
		t.Errorf("got %v, want what sv said", err)
	}
	r.Program = filepath.Join(root, "no-such-program")
	if err := r.Start(ctx, "monit"); !errors.Is(err, ErrAbsent) {
		t.Errorf("got %v, want ErrAbsent", err)
	}
}

func TestRunitState(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "etc/service/monit/supervise")
	r := &Runit{Root: root}
	if s, err := r.State(t.Context(), "monit"); err != nil || s.Load != "not-found" {
		t.Errorf("got %+v, %v, want not-found", s, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"stat": "run\n", "pid": "42\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if s, err := r.State(t.Context(), "monit"); err != nil || !s.Running() || s.MainPID != 42 {
		t.Errorf("got %+v, %v, want it running as 42", s, err)
	}
}

func TestNotifier(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "3000000")
	t.Setenv("WATCHDOG_PID", "")
	n, err := TakeNotifier()
	if err != nil || n.Watchdog() != 3*time.Second {
		t.Fatalf("got %v, %v, want 3s", n.Watchdog(), err)
	}
	if v, there := os.LookupEnv("NOTIFY_SOCKET"); there {
		t.Errorf("NOTIFY_SOCKET is still %q: children would speak for us", v)
	}
	for _, tc := range []struct {
		send func() error
		want string
	}{
		{n.Ready, "READY=1"}, {n.Alive, "WATCHDOG=1"}, {n.Stopping, "STOPPING=1"},
		{func() error { return n.Status("disks: waiting\nREADY=1") }, "STATUS=disks: waiting; READY=1"},
	} {
		if err := tc.send(); err != nil {
			t.Fatal(err)
		}
		var b [256]byte
		count, err := l.Read(b[:])
		if err != nil || string(b[:count]) != tc.want {
			t.Errorf("got %q, %v, want %q", b[:count], err, tc.want)
		}
	}
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := n.StoreSocket("port", listener); err != nil {
		t.Fatal(err)
	}
	var text, rights [256]byte
	count, length, _, _, err := l.ReadMsgUnix(text[:], rights[:])
	if err != nil || string(text[:count]) != "FDSTORE=1\nFDNAME=port" {
		t.Fatalf("got %q, %v", text[:count], err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:length])
	if err != nil || len(messages) != 1 {
		t.Fatalf("got %d messages, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		t.Fatalf("got descriptors %v, %v", fds, err)
	}
	kept := os.NewFile(uintptr(fds[0]), "kept")
	defer kept.Close()
	if same, err := net.FileListener(kept); err != nil || same.Addr().String() != listener.Addr().String() {
		t.Errorf("kept %v, %v; want %v", same, err, listener.Addr())
	}
	// Closing it still ends a pending Accept.
	ended := make(chan error)
	go func() { _, err := listener.Accept(); ended <- err }()
	time.Sleep(50 * time.Millisecond)
	listener.Close()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("Accept outlives the closing of a kept socket")
	}
	if second, err := TakeNotifier(); err != nil || second.Ready() != nil || second.Watchdog() != 0 {
		t.Error("a process without systemd must stay silent")
	}
	t.Setenv("WATCHDOG_USEC", "soon")
	if _, err := TakeNotifier(); err == nil {
		t.Error("a broken WATCHDOG_USEC was accepted")
	}
	t.Setenv("WATCHDOG_USEC", "1000")
	t.Setenv("WATCHDOG_PID", "1")
	if other, err := TakeNotifier(); err != nil || other.Watchdog() != 0 {
		t.Errorf("got %v, %v: the watchdog of another process is not ours", other.Watchdog(), err)
	}
}
