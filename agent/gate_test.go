package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/agent/action"
	"cambium/agent/task"
	"cambium/mbus"
)

func quiet() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

// answered collects replies in order.
type answered struct {
	mu   sync.Mutex
	list []string
}

func (a *answered) reply(name string) func(mbus.Reply) {
	return func(r mbus.Reply) {
		a.mu.Lock()
		defer a.mu.Unlock()
		text := string(r.Encode(0))
		if r.Silent() {
			text = "silence"
		}
		a.list = append(a.list, name+" "+text)
	}
}

func (a *answered) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.list
	a.list = nil
	return list
}

func expect(t *testing.T, a *answered, want ...string) {
	t.Helper()
	synctest.Wait()
	got := a.take()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %q, want %q", got, want)
	}
}

func memory(t *testing.T) *task.Tasks {
	t.Helper()
	tasks, err := task.Open(t.Context(), task.Options{Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	return tasks
}

func rawArguments(values ...string) (list []json.RawMessage) {
	for _, v := range values {
		list = append(list, json.RawMessage(v))
	}
	return list
}

// Garbage of pings and polls is collected at the cost of the latency of all answers.
func TestPingAllocatesNothing(t *testing.T) {
	d := NewDispatcher(t.Context(), quiet())
	d.OpenGate(pingTable(), memory(t))
	request, reply := mbus.Request{Method: "ping", ReplyTo: "r"}, func(mbus.Reply) {}
	if n := testing.AllocsPerRun(1000, func() { d.Handle(t.Context(), request, reply) }); n != 0 {
		t.Errorf("%v allocations for a ping, want none", n)
	}
}

func pingTable() action.Table { return action.Table{"ping": action.Actions(action.Deps{})["ping"]} }

func ask(d *Dispatcher, a *answered, method string) {
	d.Handle(context.Background(), mbus.Request{Method: method}, a.reply(method))
}

func TestPingBeforeReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(t.Context(), quiet())
		var a answered
		d.SetStep("ephemeral disk: waits for /dev/sdb: x509: bad")
		ask(d, &a, "ping")
		time.Sleep(899 * time.Millisecond)
		expect(t, &a)
		time.Sleep(time.Millisecond)
		expect(t, &a, `ping {"exception":{"message":"restarting agent: ephemeral disk: waits for /dev/sdb: x509 bad"}}`)

		ask(d, &a, "ping")
		time.Sleep(500 * time.Millisecond)
		d.OpenGate(pingTable(), memory(t))
		expect(t, &a, `ping {"value":"pong"}`)
		ask(d, &a, "ping")
		expect(t, &a, `ping {"value":"pong"}`)
		if !d.isReady() {
			t.Error("not ready")
		}
		d.FailBoot("too late", true)
		ask(d, &a, "ping")
		expect(t, &a, `ping {"value":"pong"}`)
	})
}

func TestVerdictOfTheFirstBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(t.Context(), quiet())
		var a answered
		ask(d, &a, "ping")
		ask(d, &a, "get_state")
		synctest.Wait()
		d.FailBoot("ephemeral disk: refused: it holds data", true)
		synctest.Wait()
		got := strings.Join(a.take(), "\n")
		for _, want := range []string{`ping {"exception":{"message":"ephemeral disk: refused: it holds data"}}`,
			"get_state silence"} {
			if !strings.Contains(got, want) {
				t.Errorf("got %q, want %q in it", got, want)
			}
		}
		ask(d, &a, "ping")
		ask(d, &a, "list_disk")
		expect(t, &a, `ping {"exception":{"message":"ephemeral disk: refused: it holds data"}}`, "list_disk silence")
		// The next attempt may succeed.
		d.WithdrawVerdict()
		d.SetStep("ephemeral disk")
		ask(d, &a, "ping")
		time.Sleep(time.Second)
		expect(t, &a, `ping {"exception":{"message":"restarting agent: ephemeral disk"}}`)
		d.OpenGate(pingTable(), memory(t))
		ask(d, &a, "ping")
		expect(t, &a, `ping {"value":"pong"}`)
	})
}

func TestLaterBootsFailSilently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(t.Context(), quiet())
		var a answered
		ask(d, &a, "ping")
		synctest.Wait()
		d.FailBoot("disk lost", false)
		expect(t, &a, "ping silence")
		ask(d, &a, "ping")
		ask(d, &a, "get_state")
		expect(t, &a, "ping silence", "get_state silence")
		// The boot is retried, which is not announced until it succeeds.
		for range 2 {
			d.WithdrawVerdict()
			d.SetStep("ephemeral disk")
			ask(d, &a, "ping")
			ask(d, &a, "get_state")
			time.Sleep(time.Second)
			expect(t, &a, "ping silence", "get_state silence")
			d.FailBoot("disk lost", false)
		}
		if d.isReady() {
			t.Error("ready")
		}
		d.WithdrawVerdict()
		d.OpenGate(pingTable(), memory(t))
		ask(d, &a, "ping")
		expect(t, &a, `ping {"value":"pong"}`)
	})
}

func TestRequestsBeforeReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(t.Context(), quiet())
		var a answered
		table := pingTable()
		for _, name := range []string{"start", "stop"} {
			table[name] = action.Row{Lane: action.Instance,
				Bind: action.None(func(context.Context) (string, error) { return name + "ed", nil })}
		}
		ask(d, &a, "get_state") // will be dropped: its caller gives up after 45 s
		ask(d, &a, "sync_dns")
		time.Sleep(10 * time.Second)
		expect(t, &a, "sync_dns silence")
		time.Sleep(34 * time.Second)
		gone, disconnect := context.WithCancel(context.Background())
		d.Handle(gone, mbus.Request{Method: "start", KeepsWaiting: true}, a.reply("gone"))
		ask(d, &a, "stop")
		ask(d, &a, "start")
		var unknown answered // by itself: only what changes the instance is answered in order
		ask(d, &unknown, "hop")
		time.Sleep(time.Second)
		expect(t, &a, "get_state silence")
		disconnect()
		d.OpenGate(table, memory(t))
		expect(t, &a, "gone silence", `stop {"value":"stoped"}`, `start {"value":"started"}`)
		expect(t, &unknown, `hop {"exception":{"message":"unknown message hop"}}`)
	})
}

func TestHeldRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(t.Context(), quiet())
		var a answered
		for range maxHeld + 5 {
			ask(d, &a, "get_state")
			ask(d, &a, "ping")
		}
		synctest.Wait()
		if got := len(a.take()); got != 10 {
			t.Errorf("%d were turned away, want 10", got)
		}
		d.FailBoot("", false)
	})
}

func TestInterruptedTasks(t *testing.T) {
	path := t.TempDir() + "/tasks"
	tasks, err := task.Open(t.Context(), task.Options{Path: path, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	lost, resumed := tasks.Begin("apply", false), tasks.Begin("update_settings", false)
	if err := resumed.SaveCheckpoint([]byte(`{"n":1}`)); err != nil {
		t.Fatal(err)
	}
	lost.Persist()

	tasks, err = task.Open(t.Context(), task.Options{Path: path, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	table := action.Actions(action.Deps{Tasks: tasks})
	row := table["update_settings"]
	row.Resume = func(_ context.Context, note json.RawMessage) (any, error) { return "ok" + string(note), nil }
	table["update_settings"] = row
	d := NewDispatcher(t.Context(), quiet())
	d.OpenGate(table, tasks)
	d.Wait()
	for id, want := range map[string]string{
		resumed.ID: `{"value":"ok{\"n\":1}"}`,
		lost.ID: fmt.Sprintf(`{"exception":{"message":"Action Failed get_task: Task %s result: `+
			`the agent restarted while the task was running"}}`, lost.ID),
	} {
		var got string
		d.Handle(t.Context(), mbus.Request{Method: "get_task", Arguments: rawArguments(fmt.Sprintf("%q", id))},
			func(r mbus.Reply) { got = string(r.Encode(0)) })
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestLaneOrderAndBusy(t *testing.T) {
	var group sync.WaitGroup
	l := &lane{width: 1, group: &group}
	release := make(chan struct{})
	var ran []int
	submit := func(i int) bool {
		return l.submit(func() {
			<-release
			ran = append(ran, i)
		})
	}
	for i := range 1 + queueLength {
		if !submit(i) {
			t.Fatalf("work %d was refused", i)
		}
	}
	if submit(-1) {
		t.Error("a full queue took work")
	}
	close(release)
	group.Wait()
	for i, n := range ran {
		if n != i {
			t.Fatalf("work %d ran at place %d", n, i)
		}
	}
	if len(ran) != 1+queueLength {
		t.Errorf("%d ran, want %d", len(ran), 1+queueLength)
	}
	if !submit(0) {
		t.Error("an empty lane refused work")
	}
	group.Wait()
}

// Without early pings a ping meets silence until the agent is ready, also where there is a verdict; then a pong.
func TestPingsWithoutEarlyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a answered
		early := false
		d := NewDispatcher(t.Context(), quiet())
		d.EarlyPings = func() bool { return early }
		ping := func() { d.Handle(t.Context(), mbus.Request{Method: "ping"}, a.reply("ping")) }
		ping()
		expect(t, &a, "ping silence")
		d.FailBoot("no disk", true)
		ping()
		expect(t, &a, "ping silence")
		early = true
		ping()
		expect(t, &a, `ping {"exception":{"message":"no disk"}}`)
		early = false
		tasks, err := task.Open(t.Context(), task.Options{Log: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		d.OpenGate(action.Actions(action.Deps{Tasks: tasks}), tasks)
		ping()
		expect(t, &a, `ping {"value":"pong"}`)
	})
}
