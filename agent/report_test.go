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
	"cambium/internal/vcap"
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

const appliedSpec = `{"deployment":"cf","name":"router","index":0,"id":"6f0c9a50-4c30-4a0f-8d6f-1f6a4a1c9b11","job":{"name":"router"}}`

func applied(t *testing.T) (spec jobs.Spec) {
	t.Helper()
	check(t, json.Unmarshal([]byte(appliedSpec), &spec))
	return spec
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

func TestHeartbeatContent(t *testing.T) {
	for _, c := range []struct {
		file   string
		change func(*machine, *Heartbeats)
	}{
		{"heartbeat.golden.json", func(m *machine, _ *Heartbeats) {
			m.spec, m.supposed = applied(t), make([]jobs.Process, 3)
		}},
		{"heartbeat_nothing_applied.golden.json", func(m *machine, _ *Heartbeats) {
			m.spec = must[jobs.Spec](t)((&jobs.State{Dirs: vcap.New(t.TempDir())}).Spec())
		}},
		{"heartbeat_sick.golden.json", func(m *machine, h *Heartbeats) {
			m.specErr, m.slow = errors.New("corrupt"), make(chan struct{})
			h.Vitals = func(context.Context) (any, error) { return nil, errors.New("no /proc") }
		}},
		{"heartbeat_sick.golden.json", func(m *machine, h *Heartbeats) {
			m.specErr, m.slow = errors.New("corrupt"), make(chan struct{})
			h.Vitals = func(context.Context) (any, error) { panic("broken") }
		}},
	} {
		t.Run(c.file, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // a sick supervisor is waited for
				p, m := &publisher{connected: true}, &machine{}
				h := Heartbeats{Bus: p, Jobs: m, Vitals: m.vitals, Log: quiet()}
				c.change(m, &h)
				h.beat(t.Context())
				golden(t, c.file, body(t, p, "hm heartbeat "))
				if m.slow != nil {
					close(m.slow)
				}
			})
		})
	}
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

func TestMonitAlerts(t *testing.T) {
	p := &publisher{connected: true}
	a := NewAlerts(p, quiet())
	alert, worth := MonitAlert(monit.Alert{ID: "1700000000.123@host", Service: "nats", Event: "does not exist", Action: "restart",
		Description: "process is not running", Date: time.Unix(1700000000, 0)}, []string{"10.0.0.5"})
	if !worth {
		t.Fatal("not worth sending")
	}
	a.Send(alert)
	a.flush(t.Context())
	golden(t, "alert.golden.json", body(t, p, "hm alert "))

	if _, worth := MonitAlert(monit.Alert{Event: "action done"}, nil); worth {
		t.Error("an event that all is well is sent")
	}
	one, _ := MonitAlert(monit.Alert{Event: "timeout"}, nil)
	two, _ := MonitAlert(monit.Alert{Event: "timeout"}, nil)
	if one.ID == "" || one.ID == two.ID || one.Created == 0 {
		t.Errorf("ids %q and %q, created %d", one.ID, two.ID, one.Created)
	}
}

func TestAlertsWaitForTheBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &publisher{}
		a := NewAlerts(p, quiet())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- a.Run(ctx) }()
		for range maxAlerts + 5 {
			a.Send(NewAlert(SeverityAlert, "t", "s"))
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
		a.Send(NewAlert(SeverityAlert, "t", "s"))
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestExpiryWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := must[*testca.CA](t)(testca.New("ca"))
		pair := must[testca.Pair](t)(ca.Issue(testca.Request{CommonName: "a", NotAfter: time.Now().Add(40 * 24 * time.Hour)}))
		p := &publisher{connected: true}
		connected := make(chan struct{})
		e := Expiry{Bus: p, Connected: connected, Path: filepath.Join(t.TempDir(), "told"), Log: quiet(), Certificates: func() []Certificate {
			return []Certificate{{"bus client", string(pair.Certificate)}, {"odd", "nonsense"}, {"key", string(pair.PrivateKey)}}
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
		// told expects that after some days one alert with this text was sent, or none.
		told := func(days int, want string) {
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
		told(9, "")
		told(2, warning)
		restart()
		told(20, "")
		told(3, urgent)
		restart()
		told(0, "")
		p.connect(false)
		told(6, "")
		p.connect(true)
		connected <- struct{}{}
		told(0, critical)
		restart()
		told(30, "")

		// What was told is forgotten with the certificate, and without the file.
		expired := pair
		pair = must[testca.Pair](t)(ca.Issue(testca.Request{CommonName: "a", NotAfter: time.Now().Add(5 * 24 * time.Hour)}))
		restart()
		told(0, urgent)
		pair = expired
		restart()
		told(0, "bus client certificate has expired on ")
		for _, content := range []string{"null", "{", `{"a":`} {
			check(t, os.WriteFile(e.Path, []byte(content), 0o600))
			restart()
			told(0, critical)
			restart()
			told(0, "")
		}

		// What could not be sent was not told.
		check(t, os.Remove(e.Path))
		p.err = errors.New("too long")
		restart()
		told(0, critical)
		p.err = nil
		restart()
		told(0, critical)
		stop()
	})
}
