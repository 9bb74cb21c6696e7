package main

import (
	"testing"
	"time"

	"cambium/settings"
	"cambium/settings/agentjson"
)

func TestTaskAnswerHold(t *testing.T) {
	seconds := func(n uint64) *uint64 { return &n }
	for _, c := range []struct {
		env   *uint64
		linux time.Duration
		want  time.Duration
	}{{nil, 2 * time.Second, 2 * time.Second}, {nil, 0, 0}, {seconds(0), 2 * time.Second, 0}, {seconds(1), 0, time.Second}, {seconds(1 << 63), 0, 2 * time.Second}} {
		var e settings.Effective
		e.Settings.Env.Bosh.TaskAnswerHoldSeconds = c.env
		if got := taskAnswerHold(e, agentjson.Linux{TaskAnswerHold: c.linux}); got != c.want {
			t.Errorf("env %v, agent.json %s: got %s, want %s", c.env, c.linux, got, c.want)
		}
	}
}

// The deployment decides about foreign disks before the stemcell does.
func TestWhoDecidesAboutForeignDisks(t *testing.T) {
	for _, c := range []struct{ env, stemcell, want string }{
		{"", "refuse", "refuse"}, {"", "format", "format"}, {"format", "refuse", "format"}, {"refuse", "format", "refuse"},
	} {
		var e settings.Effective
		e.Settings.Env.PersistentDiskForeign = c.env
		if got := foreign(e, agentjson.Linux{ForeignPersistentDisk: c.stemcell}); got != c.want {
			t.Errorf("manifest %q, stemcell %q: %s, want %s", c.env, c.stemcell, got, c.want)
		}
	}
}
