package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cambium/agent/action"
	"cambium/internal/eventually"
	"cambium/internal/testca"
	"cambium/internal/testnats"
)

const pong = `{"value":"pong"}`

// counting is a row that counts its runs.
func counting(lane action.Lane, mode action.Mode, runs *atomic.Int64) action.Row {
	return action.Row{Lane: lane, Mode: mode,
		Bind: action.None(func(context.Context) (int64, error) { return runs.Add(1), nil })}
}

func TestGateOnTheWire(t *testing.T) {
	w := newWorld(t, nil)
	w.dispatcher.SetStep("network: waits for eth0")
	want := `{"exception":{"message":"restarting agent: network: waits for eth0"}}`
	start := time.Now()
	if got := w.director.Call(agentID, "ping"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if took := time.Since(start); took < pingHold || took > pingHold+5*time.Second {
		t.Errorf("the ping was held for %v, want %v", took, pingHold)
	}
	if _, got := w.post(`{"method":"ping"}`); got != want {
		t.Errorf("https: got %s, want %s", got, want)
	}
	_, state := w.director.Send(agentID, "get_state")
	_, ping := w.director.Send(agentID, "ping")
	check(t, w.director.Conn.Flush())
	eventually.True(t, "held", func() bool {
		w.dispatcher.mu.Lock()
		defer w.dispatcher.mu.Unlock()
		return len(w.dispatcher.held) == 1 && w.dispatcher.pings == 1
	})
	w.ready()
	if got := testnats.Receive(t, ping); got != pong {
		t.Errorf("got %s, want %s", got, pong)
	}
	golden(t, "get_state.golden.json", testnats.Receive(t, state))
}

// A slow get_state, a long migration and a full lane of synchronous calls do not delay ping,
// get_task and cancel_task.
func TestNothingBlocksTheFastLane(t *testing.T) {
	hold := make(chan struct{})
	block := func(context.Context) (string, error) { <-hold; return "done", nil }
	w := newWorld(t, action.Table{
		"slow":  {Lane: action.Overlap, Bind: action.None(block)},
		"start": {Lane: action.Instance, Bind: action.None(block)},
	}).ready()
	w.machine.migrate, w.machine.slow = make(chan struct{}), hold
	id := handle.FindStringSubmatch(w.director.Call(agentID, "migrate_disk"))[1]
	for range 2 * overlapWidth {
		w.director.Send(agentID, "slow")
		w.director.Send(agentID, "start")
	}
	for range 2 * fastWidth {
		w.director.Send(agentID, "get_state", "full")
	}
	for range 100 {
		if got := w.director.Call(agentID, "ping"); got != pong {
			t.Fatalf("got %s", got)
		}
		if got, want := w.director.Call(agentID, "get_task", id),
			fmt.Sprintf(`{"value":{"agent_task_id":%q,"state":"running"}}`, id); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	if got := w.director.Call(agentID, "cancel_task", id); got != `{"value":"canceled"}` {
		t.Errorf("got %s", got)
	}
	want := fmt.Sprintf(`{"exception":{"message":"Action Failed get_task: Task %s result: task was canceled"}}`, id)
	eventually.True(t, "canceled", func() bool { return w.director.Call(agentID, "get_task", id) == want })
	close(hold)
}

// A supervisor that does not answer makes the state unknown, in time for `bosh vms`.
func TestStateOfASickSupervisor(t *testing.T) {
	w := newWorld(t, nil).ready()
	hold := make(chan struct{})
	defer close(hold)
	w.machine.slow = hold
	start := time.Now()
	got := w.director.Call(agentID, "get_state")
	if !strings.Contains(got, `"job_state":"unknown"`) || time.Since(start) > 20*time.Second {
		t.Errorf("got %s after %v", got, time.Since(start))
	}
}

func TestTasksRunInOrderOneAtATime(t *testing.T) {
	var mu sync.Mutex
	var order []string
	running := 0
	row := func(mode action.Mode) action.Row {
		return action.Row{Mode: mode, Lane: action.Instance,
			Bind: action.One(func(_ context.Context, name string) (string, error) {
				mu.Lock()
				running++
				if running > 1 {
					t.Error("two at a time")
				}
				order = append(order, name)
				mu.Unlock()
				time.Sleep(time.Millisecond)
				mu.Lock()
				running--
				mu.Unlock()
				return name, nil
			})}
	}
	w := newWorld(t, action.Table{"apply": row(action.Async), "start": row(action.Sync)}).ready()
	var replies []<-chan []byte
	var want []string
	for i := range 200 {
		method := "apply"
		if i%5 == 0 {
			method = "start"
		}
		name := fmt.Sprint(i)
		want = append(want, name)
		_, r := w.director.Send(agentID, method, name)
		replies = append(replies, r)
	}
	for _, r := range replies {
		testnats.Receive(t, r)
	}
	w.director.Task(agentID, "apply", "last")
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(order[:len(order)-1], " "); got != strings.Join(want, " ") {
		t.Errorf("got %s, want arrival order", got)
	}
}

func TestPanicsAreExceptions(t *testing.T) {
	boom := func(context.Context) (string, error) { panic(errors.New("secret detail")) }
	w := newWorld(t, action.Table{
		"inline": {Lane: action.Immediate, Bind: action.None(boom)},
		"sync":   {Lane: action.Overlap, Bind: action.None(boom)},
		"task":   {Lane: action.Instance, Mode: action.Async, Bind: action.None(boom)},
		"bind":   {Lane: action.Immediate, Bind: func([]json.RawMessage) (action.Run, error) { panic("secret detail") }},
	}).ready()
	for _, method := range []string{"inline", "sync", "task", "bind"} {
		got := w.director.Task(agentID, method)
		if !strings.Contains(got, "internal error ") || !strings.Contains(got, ", see the agent's log") ||
			strings.Contains(got, "secret") {
			t.Errorf("%s: got %s", method, got)
		}
	}
	if got := w.director.Call(agentID, "ping"); got != pong {
		t.Errorf("afterwards: %s", got)
	}
}

func TestCanceledWhileQueued(t *testing.T) {
	hold := make(chan struct{})
	var runs atomic.Int64
	drain := counting(action.Instance, action.Async, &runs)
	drain.Cancelable, drain.Canceled = true, func(context.Context) (any, error) { return 0, nil }
	errand := counting(action.Instance, action.Async, &runs)
	errand.Cancelable = true
	w := newWorld(t, action.Table{
		"apply": {Lane: action.Instance, Mode: action.Async,
			Bind: action.None(func(context.Context) (string, error) { <-hold; return "applied", nil })},
		"drain": drain, "run_errand": errand,
	}).ready()
	apply := handle.FindStringSubmatch(w.director.Call(agentID, "apply"))[1]
	first := handle.FindStringSubmatch(w.director.Call(agentID, "drain"))[1]
	second := handle.FindStringSubmatch(w.director.Call(agentID, "run_errand"))[1]
	for _, id := range []string{first, second} {
		if got := w.director.Call(agentID, "cancel_task", id); got != `{"value":"canceled"}` {
			t.Errorf("got %s", got)
		}
	}
	if got := w.director.Call(agentID, "cancel_task", apply); !strings.Contains(got, "canceling apply is not supported") {
		t.Errorf("got %s", got)
	}
	close(hold)
	for id, want := range map[string]string{
		apply: `{"value":"applied"}`, first: `{"value":0}`,
		second: fmt.Sprintf(`{"exception":{"message":"Action Failed get_task: Task %s result: task was canceled"}}`, second),
	} {
		eventually.True(t, want, func() bool { return w.director.Call(agentID, "get_task", id) == want })
	}
	if runs.Load() != 0 {
		t.Errorf("%d canceled tasks ran", runs.Load())
	}
	if got := w.director.Call(agentID, "cancel_task", apply); got != `{"value":"canceled"}` {
		t.Errorf("canceling an ended task: %s", got)
	}
}

// A request that is sent twice over one connection is two requests: the CLI's are the same bytes by design.
func TestARepeatedRequestIsServedAgain(t *testing.T) {
	var runs atomic.Int64
	w := newWorld(t, action.Table{"apply": counting(action.Instance, action.Async, &runs),
		"start": counting(action.Instance, action.Sync, &runs)}).ready()
	for _, method := range []string{"apply", "start", "ping"} {
		subject, replies := w.director.Inbox(agentID)
		envelope := testnats.Envelope(method, subject)
		for range 3 {
			check(t, w.director.Conn.Publish("agent."+agentID, envelope))
		}
		for range 3 {
			testnats.Receive(t, replies)
		}
	}
	eventually.True(t, "apply and start have run three times each", func() bool { return runs.Load() == 6 })
}

// What the Director does with every new VM: the bootstrap identity is replaced by a permanent one
// while tasks run, and they go on.
func TestUpdateSettingsRotatesTheIdentity(t *testing.T) {
	w := newWorld(t, nil).ready()
	bootstrap, permanent := testca.AgentName(agentID), agentID+".permanent.agent.bosh-internal"
	pair := w.deployment.Client(permanent)
	cert := map[string]any{"ca": string(w.deployment.CA.PEM), "certificate": string(pair.Certificate),
		"private_key": string(pair.PrivateKey)}
	before := w.current.Effective().Bus

	// An identity that is invalid: nothing changes.
	got := w.director.Task(agentID, "update_settings",
		map[string]any{"mbus": map[string]any{"cert": map[string]any{"ca": "x", "certificate": "y", "private_key": "z"}}})
	if !strings.Contains(got, "result: update settings: ") || !w.current.Effective().Bus.Equal(before) {
		t.Errorf("got %s, and the settings changed: %v", got, !w.current.Effective().Bus.Equal(before))
	}
	id := handle.FindStringSubmatch(w.director.Call(agentID, "update_settings",
		map[string]any{"mbus": map[string]any{"cert": cert}, "trusted_certs": "PEM"}))[1]
	running := fmt.Sprintf(`{"value":{"agent_task_id":%q,"state":"running"}}`, id)
	for range 20 {
		if got := w.director.Call(agentID, "get_task", id); got != running {
			t.Fatalf("got %s before the identity works", got)
		}
	}
	if !w.current.Effective().Bus.Equal(before) {
		t.Error("settings were persisted before the identity works")
	}
	w.deployment.SetUsers(testnats.Agent(bootstrap, agentID), testnats.Agent(permanent, agentID))
	eventually.True(t, "the new identity", func() bool {
		return w.director.Call(agentID, "get_task", id) == `{"value":"ok"}`
	})
	if got := w.current.Effective().Bus.Cert.Certificate; got != string(pair.Certificate) {
		t.Error("the new identity was not persisted")
	}
	w.deployment.SetUsers(testnats.Agent(permanent, agentID)) // the Director deletes the old one
	if got := w.director.Call(agentID, "get_task", id); got != `{"value":"ok"}` {
		t.Errorf("the same task under the new identity: %s", got)
	}
	if w.nats.LastError() != nil || !w.nats.Connected() {
		t.Errorf("the old identity's end was noticed: %v", w.nats.LastError())
	}
}

// A restart in the middle of update_settings: "ok" exactly if the new settings are in force.
func TestUpdateSettingsResumes(t *testing.T) {
	w := newWorld(t, nil)
	row := w.table["update_settings"]
	note := func(update string) json.RawMessage {
		t.Helper()
		var checkpoint json.RawMessage
		ctx := action.WithCall(t.Context(), action.Call{SaveCheckpoint: func(n json.RawMessage) error {
			checkpoint = n
			return errors.New("the agent dies here")
		}})
		run, err := row.Bind(rawArguments(update))
		check(t, err)
		if _, err := run(ctx); err == nil {
			t.Fatal("it went on")
		}
		return checkpoint
	}
	first := note(`{"trusted_certs":"secret one"}`)
	if strings.Contains(string(first), "secret") {
		t.Errorf("the checkpoint holds the arguments: %s", first)
	}
	if _, err := row.Resume(t.Context(), first); err == nil {
		t.Error("nothing was persisted, and it says ok")
	}
	w.ready()
	if got := w.director.Task(agentID, "update_settings",
		map[string]any{"trusted_certs": "secret one"}); got != `{"value":"ok"}` {
		t.Fatal(got)
	}
	if got, err := row.Resume(t.Context(), first); got != "ok" || err != nil {
		t.Errorf("got %v, %v; want ok", got, err)
	}
	if _, err := row.Resume(t.Context(), nil); err == nil {
		t.Error("no checkpoint, and it says ok")
	}
}

// Every one of ten thousand requests is served, and every task that was started runs. Those that find the queue full
// are refused at once.
func TestTenThousandInFlight(t *testing.T) {
	const n = 10000
	var runs atomic.Int64
	hold := make(chan struct{})
	w := newWorld(t, action.Table{
		"block": {Lane: action.Instance, Mode: action.Async,
			Bind: action.None(func(context.Context) (string, error) { <-hold; return "", nil })},
		"apply":               counting(action.Instance, action.Async, &runs),
		"remove_dynamic_disk": counting(action.Instance, action.Sync, &runs),
	}).ready()
	w.director.Call(agentID, "block")
	var states, tasks []<-chan []byte
	for i := range n {
		method, replies := "get_state", &states
		if i%20 == 0 {
			method, replies = "apply", &tasks
		}
		subject, ch := w.director.Inbox(agentID)
		check(t, w.director.Conn.Publish("agent."+agentID, testnats.Envelope(method, subject)))
		*replies = append(*replies, ch)
	}
	for range 10 {
		if got := w.director.Call(agentID, "ping"); got != pong {
			t.Fatalf("got %s", got)
		}
	}
	for w.dispatcher.lanes[action.Instance].submit(func() {}) {
		continue // fills the queue
	}
	for _, method := range []string{"apply", "remove_dynamic_disk"} {
		want := fmt.Sprintf(`{"exception":{"message":"Action Failed %s: busy: 10000 requests are queued"}}`, method)
		if got := w.director.Call(agentID, method); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	close(hold)
	for _, r := range states {
		testnats.Receive(t, r)
	}
	for _, r := range tasks {
		if got := testnats.Receive(t, r); !handle.MatchString(got) {
			t.Fatalf("got %s", got)
		}
	}
	if got := w.director.Task(agentID, "apply"); got != fmt.Sprintf(`{"value":%d}`, len(tasks)+1) {
		t.Errorf("%d tasks were begun, and then got %s", len(tasks), got)
	}
}

func TestSecretsStayOutOfTheRecord(t *testing.T) {
	w := newWorld(t, nil).ready()
	w.director.Task(agentID, "update_settings", map[string]any{"trusted_certs": "canary-1",
		"blobstores": []any{map[string]any{"provider": "dav", "options": map[string]any{"password": "canary-2"}}}})
	w.director.Task(agentID, "upload_blob", map[string]any{"blob_id": "b",
		"checksum": "2aae6c35c94fcfb415dbe95f408b9ce91ee846ed", "payload": "aGVsbG8gd29ybGQ="})
	w.director.Task(agentID, "add_persistent_disk", "disk-1",
		map[string]any{"path": "/dev/sdc", "iscsi_settings": map[string]any{"password": "canary-3"}})
	record := read(t, w.dirs.Bosh()+"/tasks")
	for _, canary := range []string{"canary", "aGVsbG8", "/dev/sdc"} {
		if strings.Contains(record, canary) {
			t.Errorf("the task record holds %q", canary)
		}
	}
	if !strings.Contains(record, "update_settings") {
		t.Error("the record does not know the task")
	}
}
