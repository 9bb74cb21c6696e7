package main

import (
	"testing"

	"cambium/settings"
	"cambium/settings/agentjson"
)

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
