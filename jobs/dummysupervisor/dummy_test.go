package dummysupervisor

import (
	"encoding/json"
	"testing"
)

func wantState(t *testing.T, d *Dummy, want string) {
	t.Helper()
	if got, _, err := d.Observe(t.Context()); got != want || err != nil {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestDummy(t *testing.T) {
	d := &Dummy{}
	wantState(t, d, "unknown")
	if err := d.StartAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantState(t, d, "running")
	if err := d.StopAll(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	wantState(t, d, "stopped")
	if _, p, err := d.Observe(t.Context()); err != nil || len(p) != 0 {
		t.Errorf("processes of -M dummy: %v, %v", p, err)
	}
}

func TestDummyNATS(t *testing.T) {
	applied := false
	d := &Dummy{Applied: func() bool { return applied }}
	wantState(t, d, "unknown")
	applied = true
	wantState(t, d, "running")

	d.SetStatus("failing")
	if err := d.StopAll(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if err := d.StartAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantState(t, d, "failing")

	d.SetStatus("fail_task")
	for range 2 {
		if err := d.StartAll(t.Context()); err == nil || err.Error() != "fake-task-fail-error" {
			t.Errorf("start after fail_task: %v", err)
		}
	}
	d.SetStatus("running")
	if err := d.StopAll(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	wantState(t, d, "stopped")
}

func TestProcessesAsTheSuiteExpectsThem(t *testing.T) {
	_, processes, err := (&Dummy{Applied: func() bool { return false }}).Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(processes)
	want := `[{"name":"process-1","state":"running","uptime":{"secs":144987},"mem":{"kb":100,"percent":0.1},"cpu":{"total":0.1}},` +
		`{"name":"process-2","state":"running","uptime":{"secs":144988},"mem":{"kb":200,"percent":0.2},"cpu":{"total":0.2}},` +
		`{"name":"process-3","state":"failing","uptime":{"secs":144989},"mem":{"kb":300,"percent":0.3},"cpu":{"total":0.3}}]`
	if err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
}
