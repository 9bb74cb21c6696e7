package dummysupervisor

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDummy(t *testing.T) {
	d := &Dummy{StatusFile: filepath.Join(t.TempDir(), "status.json")}
	state := func(want string) {
		t.Helper()
		if got := d.State(t.Context()); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	say := func(text string) {
		t.Helper()
		if err := os.WriteFile(d.StatusFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	state("running")
	if err := d.StopAll(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	state("stopped")
	if err := d.StartAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	state("running")
	say(`{"status":"failing","processes":[{"name":"a","state":"failing"}]}`)
	state("failing")
	if p, err := d.Processes(t.Context()); err != nil || len(p) != 1 || p[0].Name != "a" || p[0].State != "failing" {
		t.Errorf("got %+v, %v", p, err)
	}
	say(`{"status":"fail_task"}`)
	if err := d.StartAll(t.Context()); err == nil {
		t.Error("told to fail: got no error")
	}
	say(`{`)
	state("running")
}
