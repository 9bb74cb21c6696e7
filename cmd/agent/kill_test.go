package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
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
	"cambium/internal/testca"
	"cambium/internal/testnats"
)

// mortal is an agent as a process of its own, which can be killed and started again on what it
// left behind.
type mortal struct {
	t       *testing.T
	base    string
	process *exec.Cmd
	program string // the one in PATH if empty
	log     lockedLog
}

const mortalID = "mortal-1"

func newMortal(t *testing.T, d *testnats.Deployment, url string) *mortal {
	t.Helper()
	m := &mortal{t: t, base: t.TempDir()}
	m.json("source.json", map[string]any{
		"agent_id": mortalID, "mbus": url, "vm": map[string]any{"name": mortalID}, "networks": map[string]any{},
		"disks": map[string]any{"persistent": map[string]any{}},
		"blobstore": map[string]any{"provider": "local",
			"options": map[string]any{"blobstore_path": filepath.Join(m.base, "blobs")}},
		"env": map[string]any{"bosh": map[string]any{"mbus": map[string]any{"cert": certificate(d)}}},
	})
	m.json("agent.json", map[string]any{"Infrastructure": map[string]any{"Settings": map[string]any{
		"Sources": []any{map[string]any{"Type": "File", "SettingsPath": filepath.Join(m.base, "source.json")}}}}})
	// The errand of one job ends, that of the other does not.
	for job, script := range map[string]string{"quick": "echo done",
		"endless": "echo $$ > " + m.base + "/pid.new; mv " + m.base + "/pid.new " + m.base + "/pid; exec sleep 1000"} {
		m.file(filepath.Join("jobs", job, "bin", "run"), []byte("#!/bin/bash\n"+script+"\n"), 0o755)
	}
	m.json("bosh/spec.json", map[string]any{"rendered_templates_archive": map[string]any{"blobstore_id": "b",
		"sha1": "s"}, "job": map[string]any{"name": "g", "templates": []any{
		map[string]any{"name": "quick", "version": "1"}, map[string]any{"name": "endless", "version": "1"}}}})
	t.Cleanup(func() {
		m.kill()
		if pid, err := strconv.Atoi(strings.TrimSpace(m.read("pid"))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // the errand outlived its agent
		}
	})
	return m
}

func certificate(d *testnats.Deployment) map[string]any {
	pair := d.Client(testca.AgentName(mortalID))
	return map[string]any{"ca": string(d.CA.PEM), "certificate": string(pair.Certificate),
		"private_key": string(pair.PrivateKey)}
}

func (m *mortal) file(name string, content []byte, mode os.FileMode) {
	m.t.Helper()
	path := filepath.Join(m.base, name)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, content, mode)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *mortal) json(name string, v any) {
	m.t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		m.t.Fatal(err)
	}
	m.file(name, data, 0o600)
}

// read returns a file's content, and nothing where there is none.
func (m *mortal) read(name string) string {
	data, err := os.ReadFile(filepath.Join(m.base, name))
	if err != nil {
		return ""
	}
	return string(data)
}

func (m *mortal) start() {
	m.t.Helper()
	m.process = exec.Command(cmp.Or(m.program, "agent"), "-P", "dummy", "-C", filepath.Join(m.base, "agent.json"), "-M",
		"dummy-nats", "-b", m.base, "-no-alerts")
	m.process.Stderr = &m.log
	m.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.process.Start(); err != nil {
		m.t.Fatal(err)
	}
}

func (m *mortal) kill() {
	if m.process != nil {
		_ = m.process.Process.Kill()
		_ = m.process.Wait()
		m.process = nil
	}
}

// restart kills the agent with SIGKILL and starts it again.
func (m *mortal) restart() {
	m.t.Helper()
	m.kill()
	m.start()
}

// answers waits until the agent does. A request without a listener is lost, so it asks again.
func answers(t *testing.T, r *testnats.Director) {
	t.Helper()
	eventually.True(t, "the agent answers", func() bool {
		subject, replies := r.Send(mortalID, "ping")
		defer r.Forget(subject)
		select {
		case reply := <-replies:
			return string(reply) == `{"value":"pong"}`
		case <-time.After(500 * time.Millisecond):
			return false
		}
	})
}

var runningTask = regexp.MustCompile(`^\{"value":\{"agent_task_id":"([^"]+)","state":"running"\}\}$`)

// begin starts a task.
func begin(t *testing.T, r *testnats.Director, method string, arguments ...any) (id string) {
	t.Helper()
	reply := r.Call(mortalID, method, arguments...)
	found := runningTask.FindStringSubmatch(reply)
	if found == nil {
		t.Fatalf("%s: %s", method, reply)
	}
	return found[1]
}

// TestKilledMidTask kills the agent's process while tasks run: after the restart one that had
// ended answers as before, and one that had not says why it failed. A second restart changes
// neither.
func TestKilledMidTask(t *testing.T) {
	d := testnats.Start(t, nil, mortalID)
	m := newMortal(t, d, d.URL().Reveal())
	m.start()
	r := d.Director()
	answers(t, r)
	ended := begin(t, r, "run_errand", "quick")
	var result string
	eventually.True(t, "the errand ends", func() bool {
		result = r.Call(mortalID, "get_task", ended)
		return !runningTask.MatchString(result)
	})
	if want := `{"value":{"stdout":"done\n","stderr":"","exit_code":0}}`; result != want {
		t.Fatalf("got %s, want %s", result, want)
	}
	interrupted := begin(t, r, "run_errand", "endless")
	queued := begin(t, r, "run_errand", "quick")
	eventually.True(t, "the errand runs", func() bool { return m.read("pid") != "" })
	for range 2 {
		m.restart()
		answers(t, r)
		if got := r.Call(mortalID, "get_task", ended); got != result {
			t.Errorf("the task that had ended: got %s, want %s", got, result)
		}
		for _, id := range []string{interrupted, queued} {
			want := fmt.Sprintf(`{"exception":{"message":"Action Failed get_task: Task %s result: the agent restarted while the task was running"}}`, id)
			if got := r.Call(mortalID, "get_task", id); got != want {
				t.Errorf("the task that had not: got %s, want %s", got, want)
			}
		}
	}
	// The agent works on.
	if got := r.Task(mortalID, "run_errand", "quick"); got != result {
		t.Errorf("afterwards: got %s, want %s", got, result)
	}
}

// TestKilledWhileRotating kills the agent in the middle of update_settings: before the new
// identity worked, so that the old one is in force and the task has failed; and after it was
// persisted but before the task ended, so that the same task says "ok" under the new identity.
func TestKilledWhileRotating(t *testing.T) {
	old := testnats.Start(t, nil, mortalID)
	next := testnats.Start(t, nil) // does not know the agent yet
	way := newFreezer(t, fmt.Sprintf("127.0.0.1:%d", old.Port()))
	m := newMortal(t, old, "nats://"+way.listener.Addr().String())
	m.start()
	r := old.Director()
	answers(t, r)
	update := map[string]any{"mbus": map[string]any{"urls": []string{next.URL().Reveal()}, "cert": certificate(next)}}

	early := begin(t, r, "update_settings", update)
	eventually.True(t, "the new server was asked", func() bool {
		seen, err := next.Server.Varz(nil)
		return err == nil && seen.TotalConnections > 0
	})
	m.restart()
	answers(t, r)
	want := fmt.Sprintf(`{"exception":{"message":"Action Failed get_task: Task %s result: the agent restarted while the task was running"}}`, early)
	if got := r.Call(mortalID, "get_task", early); got != want {
		t.Errorf("killed before the new identity worked: got %s, want %s", got, want)
	}

	// A network that swallows everything keeps the old connection from being closed in good
	// order, and that keeps the task from ending.
	late := begin(t, r, "update_settings", update)
	way.freeze()
	next.SetUsers(testnats.Agent(testca.AgentName(mortalID), mortalID))
	eventually.True(t, "the update is persisted", func() bool {
		return strings.Contains(m.read("bosh/update_settings.json"), next.URL().Reveal())
	})
	m.restart()
	s := next.Director()
	answers(t, s)
	if got, want := s.Call(mortalID, "get_task", late), `{"value":"ok"}`; got != want {
		t.Errorf("killed after the update was persisted: got %s, want %s", got, want)
	}
}

// freezer forwards bytes until it is frozen, and then drops them.
type freezer struct {
	listener net.Listener
	mu       sync.Mutex
	frozen   bool
	open     []net.Conn
}

func newFreezer(t *testing.T, target string) *freezer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &freezer{listener: listener}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", target)
			if err != nil {
				_ = near.Close()
				continue
			}
			f.mu.Lock()
			f.open = append(f.open, near, far)
			f.mu.Unlock()
			group.Go(func() { f.pass(near, far) })
			group.Go(func() { f.pass(far, near) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		f.mu.Lock()
		for _, conn := range f.open {
			_ = conn.Close()
		}
		f.mu.Unlock()
		group.Wait()
	})
	return f
}

func (f *freezer) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frozen = true
}

func (f *freezer) pass(to io.WriteCloser, from io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		f.mu.Lock()
		frozen := f.frozen
		f.mu.Unlock()
		switch {
		case frozen && err == nil:
			continue
		case err != nil:
			_ = to.Close()
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// TestProgramReplacedDuringTheBoot: the files that identify an agent to jobs do not outlive its program, also if that is
// replaced before the agent has written them.
func TestProgramReplacedDuringTheBoot(t *testing.T) {
	d := testnats.Start(t, nil, mortalID)
	m := newMortal(t, d, d.URL().Reveal())
	own, err := os.ReadFile(ownProgram)
	if err != nil {
		t.Fatal(err)
	}
	m.file("bin/agent", own, 0o755)
	m.program = filepath.Join(m.base, "bin", "agent")
	source, late := filepath.Join(m.base, "source.json"), filepath.Join(m.base, "late.json")
	if err := os.Rename(source, late); err != nil {
		t.Fatal(err)
	}
	logged := func(text string) {
		t.Helper()
		eventually.True(t, text, func() bool { return strings.Contains(m.log.String(), text) })
	}
	m.start()
	logged("agent starting")
	if err := os.Remove(m.program); err != nil {
		t.Fatal(err)
	}
	logged("the agent's program was replaced")
	if err := os.Rename(late, source); err != nil {
		t.Fatal(err)
	}
	logged("agent is ready")
	for _, name := range []string{"agent_version", "agent_supervisor"} {
		if got := m.read(filepath.Join("instance", name)); got != "" {
			t.Errorf("instance/%s says %q of a program that was replaced", name, got)
		}
	}
}
