package monit

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStatusDocuments reads what the monit of stemcells (5.2.5) and of Debian (5.33) say.
func TestStatusDocuments(t *testing.T) {
	for _, c := range []struct {
		file        string
		version     string
		incarnation int64
		want        []Service
	}{
		{"status-5.2.5.xml", "5.2.5", 1763180400, []Service{
			{Name: "web", State: StateRunning, Monitored: true, UptimeSeconds: 4301, MemoryKB: 79340,
				MemoryPercent: 1.9, CPUPercent: 0.4, PID: 2214},
			{Name: "worker", State: StateFailing, Monitored: true, Fault: "process is not running"},
			{Name: "cache", State: StateStarting, Monitored: true, Pending: true},
			{Name: "drained", State: StateUnknown},
			{Name: "umlaut-ü", State: StateFailing, Monitored: true, Fault: "failed to connect to '127.0.0.1' <8080> & gave up"},
		}},
		{"status-5.33.0.xml", "5.33.0", 1794721101, []Service{
			{Name: "web", State: StateRunning, Monitored: true, UptimeSeconds: 3, MemoryKB: 1644, PID: 386},
			{Name: "worker", State: StateFailing, Monitored: true},
		}},
	} {
		file, err := os.Open(filepath.Join("testdata", c.file))
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseStatus(file, group)
		file.Close()
		if err != nil {
			t.Fatalf("%s: %v", c.file, err)
		}
		if got.Version != c.version || got.Incarnation != c.incarnation || len(got.Services) != len(c.want) {
			t.Errorf("%s: got %+v", c.file, got)
			continue
		}
		for n, want := range c.want {
			if got.Services[n] != want {
				t.Errorf("%s: got %+v, want %+v", c.file, got.Services[n], want)
			}
		}
	}
}

func FuzzStatus(f *testing.F) {
	f.Add(services("a", "b").xml())
	f.Add(`<?xml version="1.0" encoding="ISO-8859-1"?><monit incarnation="x"/>`)
	f.Add(`<monit><services><service name="a"><cpu><percenttotal>-inf</percenttotal></cpu></service></services><servicegroups><servicegroup name="vcap"><service>a</service></servicegroup></servicegroups></monit>`)
	f.Add("<monit><services><service name=\"\xe4\"/></services></monit>")
	for _, name := range []string{"status-5.2.5.xml", "status-5.33.0.xml"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		status, err := parseStatus(strings.NewReader(text), group)
		if err != nil && len(status.Services) > 0 {
			t.Error("an error came with services")
		}
		for _, s := range status.Services {
			if s.State == "" || s.Monitored != (s.State != StateUnknown) {
				t.Errorf("%+v: no state, or one that contradicts Monitored", s)
			}
			if _, err := json.Marshal(s.process()); err != nil {
				t.Errorf("%+v cannot be answered: %v", s, err)
			}
		}
	})
}
