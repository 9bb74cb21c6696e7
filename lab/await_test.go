package lab

import (
	"testing"

	"cambium/internal/status"
)

func TestVerdictOfAFailedBoot(t *testing.T) {
	failed := []status.Run{{State: status.Failed, Verdict: "old"}}
	for _, c := range []struct {
		d    status.Document
		want string
	}{
		{status.Document{State: status.Failed, Verdict: "new", Earlier: failed}, "new"},
		{status.Document{State: status.Starting, Earlier: failed}, "old"},
		{status.Document{State: status.Starting}, ""},
		{status.Document{State: status.Starting, Earlier: []status.Run{{State: status.Ready}}}, ""},
		{status.Document{}, ""},
	} {
		if got := failure(c.d); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.d, got, c.want)
		}
	}
}

func TestWaitsFor(t *testing.T) {
	d := status.Document{Steps: []status.Step{
		{Name: "settings", Start: 1, End: 2}, {Name: "network", Start: 2}, {Name: "bus"}}}
	if got := waitsFor(d); got != ": network" {
		t.Errorf("got %q, want the step that runs", got)
	}
	if got := waitsFor(status.Document{}); got != "" {
		t.Errorf("got %q without an agent, want nothing", got)
	}
}
