package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cambium/agent/action"
	"cambium/internal/blob"
	"cambium/jobs/logs"
	"cambium/mbus"
	"cambium/settings"
)

// hanging is a blobstore that does not answer, and logs whose upload does not end.
type hanging struct{}

func (hanging) Open(ctx context.Context, _ blob.Ref) (io.ReadCloser, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func (hanging) Check(logs.Selection) error { return nil }

func (hanging) Collect(ctx context.Context, _ logs.Selection, _ io.Writer) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (h hanging) Bundle(ctx context.Context, s logs.Selection, _ string) (logs.Bundle, error) {
	return logs.Bundle{}, h.Collect(ctx, s, nil)
}

// sshTable has actions that share lanes with ssh; nothing that they need from other machines answers.
func sshTable(t *testing.T) action.Table {
	m := &machine{}
	return action.Actions(action.Deps{
		DNS:  &action.DNS{Blobs: hanging{}, Hosts: m, Records: filepath.Join(t.TempDir(), "records.json")},
		Logs: hanging{},
		SSH: &action.SSH{Users: users{m}, HostKey: func(context.Context) (string, error) { return "ssh-rsa x", nil },
			Networks: func() map[string]settings.Network { return nil }},
	})
}

func send(d *Dispatcher, a *answered, method string, arguments ...string) {
	d.Handle(context.Background(), mbus.Request{Method: method, Protocol: 3, ReplyTo: "r",
		Arguments: rawArguments(arguments...)}, a.reply(method))
}

const sshCleaned = `ssh {"value":{"command":"cleanup","status":"success"}}`

// A blobstore that does not answer keeps DNS records away, not `bosh ssh`: the records are given up when the Director
// has, those that wait for their turn as well.
func TestSSHWhileTheBlobstoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(t.Context(), quiet())
		d.OpenGate(sshTable(t), memory(t))
		var a answered
		for version := range 100 {
			send(d, &a, "sync_dns", `"id"`, `"da39a3ee5e6b4b0d3255bfef95601890afd80709"`, fmt.Sprint(version))
		}
		send(d, &a, "ssh", `"cleanup"`, `{"user_regex":"^bosh_x"}`)
		synctest.Wait()
		if early := a.take(); len(early) != 0 {
			t.Fatalf("answered at once: %q", early)
		}
		time.Sleep(action.DNSReplyTimeout + time.Millisecond)
		synctest.Wait()
		count := map[string]int{}
		for _, reply := range a.take() {
			count[reply]++
		}
		late := `sync_dns {"exception":{"message":"Action Failed sync_dns: sync dns: it has not ended within 10s"}}`
		want := map[string]int{sshCleaned: 1, late: overlapWidth, "sync_dns silence": 100 - overlapWidth}
		if fmt.Sprint(count) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", count, want)
		}
	})
}

// Logs that are moved, however many and however slowly, do not keep ssh waiting at all.
func TestSSHWhileLogsAreMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		d := NewDispatcher(ctx, quiet())
		d.OpenGate(sshTable(t), memory(t))
		var a, moved answered
		for range 2 * transferWidth {
			send(d, &moved, "bundle_logs", `{"owning_user":"","log_type":"job","filters":[]}`)
		}
		send(d, &a, "ssh", `"cleanup"`, `{"user_regex":"^bosh_x"}`)
		expect(t, &a, sshCleaned)
		time.Sleep(action.BundleReplyTimeout + time.Millisecond)
		synctest.Wait()
		if n := len(moved.take()); n != 2*transferWidth {
			t.Errorf("%d requests have left their lane after ten minutes, want all", n)
		}
		stop()
		d.Wait()
	})
}

// What shares a lane with ssh is over when a caller of ssh gives up at the latest.
func TestNothingInTheLaneOfSSHLasts(t *testing.T) {
	table := action.Actions(action.Deps{})
	for method, row := range table {
		if row.Lane != table["ssh"].Lane {
			continue
		}
		if row.Mode != action.Sync || row.EndsWithCaller || row.EffectiveReplyTimeout() > action.DefaultReplyTimeout {
			t.Errorf("%s may take longer than a caller of ssh waits", method)
		}
	}
}

// A call that changes the instance goes on when its caller has given up: half a start is worse than a late one.
func TestCallsOfTheInstanceLaneGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(t.Context(), quiet())
		start := func(ctx context.Context) (string, error) {
			select {
			case <-time.After(time.Hour):
				return "started", nil
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		}
		d.OpenGate(action.Table{"start": {Lane: action.Instance, Bind: action.None(start)}}, memory(t))
		var a answered
		send(d, &a, "start")
		time.Sleep(time.Hour)
		expect(t, &a, `start {"value":"started"}`)
	})
}

// A caller over HTTPS waits for its turn as long as it takes; its call begins with the whole time.
func TestCallersThatWaitHaveTheWholeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(t.Context(), quiet())
		slow := func(ctx context.Context) (string, error) {
			select {
			case <-time.After(action.DefaultReplyTimeout - time.Second):
				return "done", nil
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		}
		d.OpenGate(action.Table{"slow": {Lane: action.Overlap, Bind: action.None(slow)}}, memory(t))
		var a answered
		for range 2 * overlapWidth {
			d.Handle(t.Context(), mbus.Request{Method: "slow", KeepsWaiting: true}, a.reply("slow"))
		}
		time.Sleep(2 * action.DefaultReplyTimeout)
		synctest.Wait()
		got := a.take()
		for _, reply := range got {
			if reply != `slow {"value":"done"}` {
				t.Errorf("got %s", reply)
			}
		}
		if len(got) != 2*overlapWidth {
			t.Errorf("%d answers, want %d", len(got), 2*overlapWidth)
		}
	})
}

// A measurement that does not end keeps nobody waiting: get_state is answered without it, however often it is asked.
func TestStateWhileVitalsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, hang := &machine{}, make(chan struct{})
		d := NewDispatcher(t.Context(), quiet())
		d.OpenGate(action.Actions(action.Deps{State: action.StateSource{AgentID: agentID, Jobs: m,
			VMName: func() string { return "vm-1" },
			Vitals: func(context.Context) (any, error) { <-hang; return nil, errors.New("late") }}}), memory(t))
		var full, plain answered
		for range 2 * fastWidth {
			send(d, &full, "get_state", `"full"`)
		}
		send(d, &plain, "get_state")
		time.Sleep(10 * time.Second) // of `bosh cck`, which gives up then
		synctest.Wait()
		for name, a := range map[string]*answered{"full": &full, "plain": &plain} {
			got := a.take()
			if want := map[string]int{"full": 2 * fastWidth, "plain": 1}[name]; len(got) != want {
				t.Errorf("%s: %d answers, want %d", name, len(got), want)
			}
			for _, reply := range got {
				if !strings.Contains(reply, `"job_state":"running"`) || strings.Contains(reply, "vitals") {
					t.Fatalf("%s: got %s", name, reply)
				}
			}
		}
		close(hang)
	})
}
