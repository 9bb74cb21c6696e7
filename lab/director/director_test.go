package director

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// scripted answers each method with what its function says; an empty answer is silence.
type scripted struct {
	calls   []string
	answers func(r Request, n int) string
}

func (s *scripted) Close() {}

func (s *scripted) RoundTrip(ctx context.Context, r Request) ([]byte, error) {
	s.calls = append(s.calls, r.Method)
	n := 0
	for _, c := range s.calls {
		if c == r.Method {
			n++
		}
	}
	if a := s.answers(r, n); a != "" {
		return []byte(a), nil
	}
	<-ctx.Done()
	return nil, ErrTimeout
}

func TestDoFollowsTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{answers: func(r Request, n int) string {
			if r.Method == "apply" || n < 3 {
				return `{"value":{"agent_task_id":"t","state":"running"}}`
			}
			return `{"value":"applied"}`
		}}
		start := time.Now()
		a := &Agent{Transport: s, Protocol: protocol}
		value, err := a.Do(t.Context(), "apply", map[string]any{})
		if err != nil || string(value) != `"applied"` {
			t.Errorf("Do = %s, %v, want \"applied\"", value, err)
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("polled for %v, want a question at once and a second before each of two more", took)
		}
	})
}

func TestRetriesAfterTimeoutOnly(t *testing.T) {
	for method, tries := range map[string]int{"get_state": 3, "get_task": 5, "upload_blob": 4, "apply": 1, "ping": 1} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{answers: func(Request, int) string { return "" }}
				start := time.Now()
				_, err := (&Agent{Transport: s, Protocol: protocol}).Call(t.Context(), method)
				if !errors.Is(err, ErrTimeout) || len(s.calls) != tries ||
					time.Since(start) != time.Duration(tries)*DefaultTimeout {
					t.Errorf("err %v after %d tries in %v, want a timeout after %d of 45 s", err, len(s.calls), time.Since(start),
						tries)
				}
			})
			s := &scripted{answers: func(Request, int) string { return `{"exception":{"message":"no"}}` }}
			_, err := (&Agent{Transport: s}).Call(t.Context(), method)
			var e *Exception
			if !errors.As(err, &e) || e.Message != "no" || len(s.calls) != 1 {
				t.Errorf("err %v after %d tries, want the exception at once", err, len(s.calls))
			}
		})
	}
}

func TestWaitReady(t *testing.T) {
	exception := func(m string) string { return fmt.Sprintf(`{"exception":{"message":%q}}`, m) }
	for _, c := range []struct {
		name     string
		protocol int
		answer   func(n int) string
		pings    int
		took     time.Duration
		err      string
	}{
		{"silence, then pong", protocol, func(n int) string {
			if n < 5 {
				return ""
			}
			return `{"value":"pong"}`
		}, 5, 4 * time.Second, ""},
		{"restarting is retried at once", protocol, func(n int) string {
			if n < 5 {
				return exception("restarting agent: disks")
			}
			return `{"value":"pong"}`
		}, 5, 0, ""},
		{"a verdict ends it", protocol, func(int) string { return exception("no ephemeral disk") }, 1, 0, "no ephemeral disk"},
		{"nothing at all", protocol, func(int) string { return "" }, 600, readyTimeout, "timed out pinging"},
		{"create-env pauses", 0, func(n int) string {
			if n < 3 {
				return exception("restarting agent: disks")
			}
			return `{"value":"pong"}`
		}, 3, time.Second, ""},
		{"create-env gives up on certificates", 0, func(int) string { return exception("x509: unknown authority") }, 1, 0, "x509: "},
		{"another value", protocol, func(int) string { return `{"value":"pang"}` }, 1, 0, "pang"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{answers: func(_ Request, n int) string { return c.answer(n) }}
				start := time.Now()
				err := (&Agent{Transport: s, Protocol: c.protocol}).WaitReady(t.Context())
				if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
					t.Errorf("error is %v, want %q", err, c.err)
				}
				// The last ping and the whole wait may end in the same instant.
				if extra := len(s.calls) - c.pings; extra != 0 && (extra != 1 || c.took != readyTimeout) ||
					time.Since(start) != c.took {
					t.Errorf("%d pings in %v, want %d in %v", len(s.calls), time.Since(start), c.pings, c.took)
				}
			})
		})
	}
}

// fakeCPI returns a hint for every disk.
type fakeCPI struct{}

func (fakeCPI) AttachDisk(_ context.Context, cid string) (any, error) { return "/dev/" + cid, nil }
func (fakeCPI) DetachDisk(context.Context, string) error              { return nil }

func noUpload(context.Context) error { return nil }

func TestSequences(t *testing.T) {
	answers := map[string]string{
		"ping": `"pong"`, "update_settings": `"ok"`, "apply": `"applied"`, "prepare": `"prepared"`, "start": `"started"`,
		"stop":  `"stopped"`,
		"drain": `0`, "run_script": `{}`, "list_disk": `["old"]`, "mount_disk": `{}`, "unmount_disk": `{"message":""}`,
		"migrate_disk":        `{}`,
		"add_persistent_disk": `{}`, "remove_persistent_disk": `{}`, "get_state": `{"job_state":"running","networks":{}}`}
	d := Deployment{Disk: "new", Spec: map[string]any{"networks": map[string]any{}, "configuration_hash": "h"},
		Settings: map[string]any{"mbus": map[string]any{"cert": "c"}, "trusted_certs": ""}}
	for _, c := range []struct {
		name string
		plan func(a *Agent, p *Plan)
		want string
	}{
		{"new machine", func(a *Agent, p *Plan) { a.NewVM(p, fakeCPI{}, d); a.Start(p, d); a.PostDeploy(p) },
			"ping ping add_persistent_disk mount_disk update_settings apply get_state " +
				"apply run_script start get_state run_script run_script"},
		{"update with another disk", func(a *Agent, p *Plan) { a.Update(p, fakeCPI{}, d, "old") },
			"get_state prepare run_script drain stop run_script list_disk ping add_persistent_disk mount_disk migrate_disk " +
				"unmount_disk remove_persistent_disk update_settings apply run_script start get_state run_script"},
		{"recreate_vm", func(a *Agent, p *Plan) { a.RecreateVM(p, fakeCPI{}, Deployment{Spec: d.Spec}, noUpload) },
			"ping update_settings apply get_state apply run_script start get_state run_script get_state list_disk"},
		{"recreate_vm_without_wait", func(a *Agent, p *Plan) { a.RecreateVMWithoutWait(p, fakeCPI{}, d, noUpload) },
			"ping ping add_persistent_disk mount_disk update_settings apply get_state apply run_script start"},
		{"delete_disk_reference", func(a *Agent, p *Plan) { a.DropReference(p, "old") }, "list_disk unmount_disk"},
		{"delete_disk", func(a *Agent, p *Plan) { a.DeleteInactiveDisk(p, fakeCPI{}, "new") }, "list_disk"},
		{"activate_disk", func(a *Agent, p *Plan) { a.ActivateDisk(p, "old") }, "list_disk"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var sent []Request
			s := &scripted{answers: func(r Request, _ int) string {
				sent = append(sent, r)
				return `{"value":` + answers[r.Method] + `}`
			}}
			var p Plan
			c.plan(&Agent{Transport: s, Protocol: protocol}, &p)
			if err := p.Run(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			if c.name == "new machine" {
				spec, _ := sent[5].Arguments[0].(map[string]any)
				if hash, full := spec["configuration_hash"]; full {
					t.Errorf("the first apply has configuration hash %v, want none", hash)
				}
			}
			if got := strings.Join(s.calls, " "); got != c.want {
				t.Errorf("sent %s\nwant %s", got, c.want)
			}
			for _, r := range sent {
				data, err := json.Marshal(r)
				if err != nil || !strings.Contains(string(data), `"protocol":3`) {
					t.Errorf("request %s (%v) does not name protocol 3", data, err)
				}
			}
		})
	}
}

// TestResolutionsRefused: an agent that answers keeps its VM, a mounted disk is not deleted, one that is not mounted does
// not become active.
func TestResolutionsRefused(t *testing.T) {
	const pong, exception = `{"value":"pong"}`, `{"exception":{"message":"restarting agent"}}`
	for _, c := range []struct {
		name, ping string
		plan       func(a *Agent, p *Plan, act func(context.Context) error)
		err        string
	}{
		{"delete_vm", pong, func(a *Agent, p *Plan, act func(context.Context) error) { a.DeleteVM(p, act) }, "responding"},
		{"delete_vm with an exception", exception, func(a *Agent, p *Plan, act func(context.Context) error) { a.DeleteVM(p, act) }, "restarting agent"},
		{"delete_vm of a silent agent", "", func(a *Agent, p *Plan, act func(context.Context) error) { a.DeleteVM(p, act) }, ""},
		{"delete_vm_reference", pong, func(a *Agent, p *Plan, act func(context.Context) error) { a.DropVMReference(p); p.Add("", act) }, "responding"},
		{"delete_disk of a mounted disk", "", func(a *Agent, p *Plan, act func(context.Context) error) {
			a.DeleteInactiveDisk(p, detaching{act}, "old")
		}, "in use"},
		{"delete_disk with a failing CPI", "", func(a *Agent, p *Plan, act func(context.Context) error) {
			a.DeleteInactiveDisk(p, detaching{func(ctx context.Context) error {
				return errors.Join(act(ctx),
					errors.New("no such disk"))
			}}, "new")
		}, ""},
		{"activate_disk of one that is not mounted", "", func(a *Agent, p *Plan, act func(context.Context) error) { a.ActivateDisk(p, "new"); p.Add("", act) }, "not mounted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{answers: func(r Request, _ int) string {
					if r.Method == "list_disk" {
						return `{"value":["old"]}`
					}
					return c.ping
				}}
				acted := false
				var p Plan
				c.plan(&Agent{Transport: s, Protocol: protocol}, &p, func(context.Context) error { acted = true; return nil })
				err := p.Run(t.Context(), nil)
				if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) ||
					acted != (c.err == "") || len(s.calls) != 1 {
					t.Errorf("error is %v, acted %v after %v; want %q", err, acted, s.calls, c.err)
				}
			})
		})
	}
}

// detaching is a CPI whose detach_disk is a function.
type detaching struct{ act func(context.Context) error }

func (detaching) AttachDisk(context.Context, string) (any, error)  { return nil, errors.ErrUnsupported }
func (d detaching) DetachDisk(ctx context.Context, _ string) error { return d.act(ctx) }

func TestStopIgnoresServicesThatDoNotStop(t *testing.T) {
	s := &scripted{answers: func(Request, int) string {
		return `{"exception":{"message":"Action Failed get_task: Task 1 result: Timed out waiting for services 'web' to stop"}}`
	}}
	if err := (&Agent{Transport: s, Protocol: protocol}).stop(t.Context()); err != nil {
		t.Errorf("stop = %v, want nil as in the Director", err)
	}
}

func TestMissedHeartbeats(t *testing.T) {
	now := time.Now()
	m := &Monitor{last: map[string]time.Time{"fresh": now.Add(-50 * time.Second), "stale": now.Add(-61 * time.Second)}}
	missed := m.Missed(now)
	if len(missed) != 1 || missed["stale"] != 61*time.Second {
		t.Errorf("missed = %v, want stale alone with 61 s", missed)
	}
}

func TestAlertIsWhatTheHealthMonitorTakes(t *testing.T) {
	one := 1
	good := Alert{ID: "1@h", Severity: &one, Title: "t", CreatedAt: 1}
	if err := good.Valid(); err != nil {
		t.Errorf("Valid = %v, want nil", err)
	}
	for name, spoil := range map[string]func(*Alert){
		"id": func(a *Alert) { a.ID = "" }, "severity": func(a *Alert) { a.Severity = nil },
		"title": func(a *Alert) { a.Title = "" }, "created_at": func(a *Alert) { a.CreatedAt = 0 },
	} {
		a := good
		spoil(&a)
		if err := a.Valid(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("alert without %s: %v, want an error that names it", name, err)
		}
	}
}
