package agent

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cambium/internal/testca"
	"cambium/jobs"
	"cambium/jobs/monit"
)

// publisher records reports.
type publisher struct {
	mu        sync.Mutex
	connected bool
	sent      []string
	at        []time.Time
	err       error
}

func (p *publisher) Connected() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.connected
}

func (p *publisher) connect(up bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connected = up
}

func (p *publisher) Publish(_ context.Context, target, topic string, payload any) error {
	data, err := json.Marshal(payload)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, target+" "+topic+" "+string(data))
	p.at = append(p.at, time.Now())
	return errors.Join(err, p.err)
}

func (p *publisher) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	sent := p.sent
	p.sent = nil
	return sent
}

// body of the only report.
func body(t *testing.T, p *publisher, prefix string) string {
	t.Helper()
	sent := p.take()
	if len(sent) != 1 || !strings.HasPrefix(sent[0], prefix) {
		t.Fatalf("got %q, want one report %q", sent, prefix)
	}
	return strings.TrimPrefix(sent[0], prefix)
}

func TestHeartbeatTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, m := &publisher{connected: true}, &machine{}
		ready, connected := make(chan struct{}), make(chan struct{}, 1)
		h := Heartbeats{Bus: p, Jobs: m, Vitals: m.vitals, Ready: ready, Connected: connected, Log: quiet()}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- h.Run(ctx) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(p.take()); n != 0 {
			t.Fatalf("%d heartbeats before the agent is ready", n)
		}
		begin := time.Now()
		close(ready)
		synctest.Wait()
		if n := len(p.take()); n != 1 {
			t.Fatalf("%d heartbeats at once, want 1", n)
		}
		time.Sleep(heartbeatPeriod*10 + time.Second)
		synctest.Wait()
		if n := len(p.take()); n < 10 || n > 11 {
			t.Errorf("%d heartbeats in ten periods", n)
		}
		if phase := p.at[1].Sub(begin); phase < heartbeatPeriod/2 || phase > heartbeatPeriod {
			t.Errorf("the second comes after %v", phase)
		}
		for i := 2; i < len(p.at); i++ {
			if gap := p.at[i].Sub(p.at[i-1]); gap != heartbeatPeriod {
				t.Errorf("heartbeat %d comes %v after the one before", i, gap)
			}
		}
		// Nothing is kept for a bus that is away; when it is back, one goes out at once.
		p.connect(false)
		time.Sleep(10 * heartbeatPeriod)
		p.connect(true)
		connected <- struct{}{}
		synctest.Wait()
		if n := len(p.take()); n != 1 {
			t.Errorf("%d heartbeats after an outage, want 1", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestOneHeartbeatAtStart: the connection that the first heartbeat goes out over announces itself too, and the
// supervisor, which starts beside the agent, is waited for.
func TestOneHeartbeatAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, m := &publisher{connected: true}, &machine{slow: make(chan struct{}), supposed: make([]jobs.Process, 2)}
		ready, connected := make(chan struct{}), make(chan struct{}, 1)
		close(ready)
		connected <- struct{}{}
		h := Heartbeats{Bus: p, Jobs: m, Vitals: m.vitals, Ready: ready, Connected: connected, Log: quiet()}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- h.Run(ctx) }()
		time.Sleep(4 * time.Second)
		close(m.slow) // the supervisor answers from now on
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if sent := p.take(); len(sent) != 1 || !strings.Contains(sent[0], `"number_of_processes":2`) {
			t.Errorf("got %q, want one heartbeat with two processes", sent)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestAlertsHaveIDs(t *testing.T) {
	one, _ := MonitAlert(monit.Alert{Event: "timeout"}, nil)
	two, _ := MonitAlert(monit.Alert{Event: "timeout"}, nil)
	if one.ID == "" || one.ID == two.ID || one.Created == 0 {
		t.Errorf("ids %q and %q, created %d", one.ID, two.ID, one.Created)
	}
}

// A boot that is retried compares a disk with its file system again and again.
func TestShortfallAlertWaitsOnce(t *testing.T) {
	a := NewAlerts(quiet())
	for range 3 {
		a.Send(ShortfallAlert("agent-1", "small"))
	}
	a.Send(ShortfallAlert("agent-1", "smaller"))
	a.Send(ShortfallAlert("agent-2", "small"))
	if len(a.waiting) != 3 || a.waiting[0].ID != ShortfallAlert("agent-1", "small").ID {
		t.Errorf("%d alerts wait, want one for each text of each agent: %+v", len(a.waiting), a.waiting)
	}
}

func TestAlertsWaitForTheBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &publisher{}
		a := NewAlerts(quiet())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go a.Run(ctx, p)
		for range maxAlerts + 5 {
			a.Send(newAlert(severityAlert, "t", "s"))
		}
		synctest.Wait()
		if n := len(p.take()); n != 0 {
			t.Errorf("%d alerts went nowhere", n)
		}
		p.connect(true)
		a.Wake()
		synctest.Wait()
		if n := len(p.take()); n != maxAlerts {
			t.Errorf("%d alerts, want %d", n, maxAlerts)
		}
		p.err = errors.New("too long")
		a.Send(newAlert(severityAlert, "t", "s"))
		synctest.Wait()
	})
}

// The only alert is not sent to a bus that is down, and not after the machine has become ready.
func TestVerdictAlert(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(a *Alerts, connect func())
		want string // the alert that is sent; "" is none
	}{
		{"nothing is wrong", func(_ *Alerts, connect func()) { connect() }, ""},
		{"before the connection", func(a *Alerts, connect func()) { a.Verdict("refused"); connect(); connect() }, "refused"},
		{"after the connection", func(a *Alerts, connect func()) { connect(); a.Verdict("refused") }, "refused"},
		{"the last word counts", func(a *Alerts, connect func()) {
			a.Verdict("late")
			a.Verdict("refused")
			connect()
		}, "refused"},
		{"healed before the connection", func(a *Alerts, connect func()) {
			a.Verdict("refused")
			a.Verdict("")
			connect()
		}, ""},
		{"again", func(a *Alerts, connect func()) {
			connect()
			a.Verdict("refused")
			synctest.Wait()
			a.Verdict("refused again")
		}, "refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, a := &publisher{}, NewAlerts(quiet())
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go a.Run(ctx, p)
				c.do(a, func() { p.connect(true); a.Wake(); synctest.Wait() })
				synctest.Wait()
				sent := p.take()
				if c.want == "" && len(sent) == 0 {
					return
				}
				if len(sent) != 1 || !strings.HasPrefix(sent[0], "hm alert ") || !strings.Contains(sent[0], `"severity":1,`) ||
					!strings.Contains(sent[0], `"summary":"`+c.want+`"`) {
					t.Errorf("sent %q, want %q alone", sent, c.want)
				}
			})
		})
	}
}

func TestExpiryWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := must[*testca.CA](t)(testca.New("ca"))
		pair := must[testca.Pair](t)(ca.Issue(testca.Request{CommonName: "a", NotAfter: time.Now().Add(40 * 24 * time.Hour)}))
		p := &publisher{connected: true}
		connected := make(chan struct{})
		e := Expiry{Bus: p, Connected: connected, Path: filepath.Join(t.TempDir(), "announced.json"), Log: quiet(),
			Certificates: func() []Certificate {
				return []Certificate{{"bus client", string(pair.Certificate)}, {"odd", "nonsense"},
					{"key", string(pair.PrivateKey)}}
			}}
		var stop func()
		start := func() {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- e.Run(ctx) }()
			stop = func() {
				t.Helper()
				cancel()
				check(t, <-ended)
			}
		}
		restart := func() {
			t.Helper()
			stop()
			start()
		}
		// wantAlert expects that after some days one alert with this text was sent, or none.
		wantAlert := func(days int, want string) {
			t.Helper()
			time.Sleep(time.Duration(days) * 24 * time.Hour)
			synctest.Wait()
			got := p.take()
			if want == "" && len(got) != 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		const warning, urgent, critical = `"severity":4`, `"severity":3`, `"severity":2`
		start()
		wantAlert(9, "")
		wantAlert(2, warning)
		restart()
		wantAlert(20, "")
		wantAlert(3, urgent)
		restart()
		wantAlert(0, "")
		p.connect(false)
		wantAlert(6, "")
		p.connect(true)
		connected <- struct{}{}
		wantAlert(0, critical)
		restart()
		wantAlert(30, "")

		// The record is dropped with the certificate, and without the file.
		expired := pair
		pair = must[testca.Pair](t)(ca.Issue(testca.Request{CommonName: "a", NotAfter: time.Now().Add(5 * 24 * time.Hour)}))
		restart()
		wantAlert(0, urgent)
		pair = expired
		restart()
		wantAlert(0, "bus client certificate has expired on ")
		for _, content := range []string{"null", "{", `{"a":`} {
			check(t, os.WriteFile(e.Path, []byte(content), 0o600))
			restart()
			wantAlert(0, critical)
			restart()
			wantAlert(0, "")
		}

		// What could not be sent is not recorded.
		check(t, os.Remove(e.Path))
		p.err = errors.New("too long")
		restart()
		wantAlert(0, critical)
		p.err = nil
		restart()
		wantAlert(0, critical)
		stop()
	})
}
