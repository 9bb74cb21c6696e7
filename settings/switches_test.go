package settings

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSwitches: the stemcell and the deployment can set each switch; the deployment takes precedence.
func TestSwitches(t *testing.T) {
	effective := func(agent string) Effective {
		t.Helper()
		return Effective{Settings: decode(t, `{"agent_id":"a","env":{"bosh":{"agent":`+agent+`}}}`)}
	}
	for _, c := range []struct {
		deployment     string
		stemcell, want bool
	}{{`{}`, true, true}, {`{}`, false, false}, {`{"%":false}`, true, false}, {`{"%":true}`, false, true},
		{`{"%":null}`, false, false}, {`null`, true, true}} {
		for name, get := range map[string]func(Effective, bool) bool{"early_pings": Effective.EarlyPings,
			"firewall":        Effective.Firewall,
			"scripts_on_boot": Effective.ScriptsOnBoot} {
			document := strings.ReplaceAll(c.deployment, "%", name)
			if got := get(effective(document), c.stemcell); got != c.want {
				t.Errorf("%s, stemcell %v: got %v, want %v", document, c.stemcell, got, c.want)
			}
		}
	}
	for _, c := range []struct {
		deployment     string
		stemcell, want time.Duration
	}{{`{}`, 2, 2}, {`{}`, 0, 0}, {`{"task_answer_hold":0}`, 2, 0}, {`{"task_answer_hold":1}`, 0, 1},
		{`{"task_answer_hold":9223372036854775807}`, 0, 2}} {
		if got := effective(c.deployment).TaskAnswerHold(c.stemcell*time.Second, 2*time.Second); got != c.want*time.Second {
			t.Errorf("%s, stemcell %d: got %s, want %d s", c.deployment, c.stemcell, got, c.want)
		}
	}
	for _, c := range []struct{ deployment, env, stemcell, want string }{
		{`{}`, "", "refuse", "refuse"}, {`{}`, "", "format", "format"},
		{`{}`, "format", "refuse", "format"}, {`{}`, "refuse", "format", "refuse"},
		{`{"persistent_disk_foreign":"format"}`, "", "refuse", "format"},
		{`{"persistent_disk_foreign":"refuse"}`, "format", "format", "refuse"},
	} {
		e := effective(c.deployment)
		e.Settings.Env.PersistentDiskForeign = c.env
		if got := e.ForeignPersistentDisk(c.stemcell); got != c.want {
			t.Errorf("%s, env %q, stemcell %q: got %s, want %s", c.deployment, c.env, c.stemcell, got, c.want)
		}
	}
	for _, c := range []struct{ deployment, stemcell, want string }{{`{}`, "all", "all"}, {`{}`, "root", "root"},
		{`{"metadata_access":"root"}`, "all", "root"}, {`{"metadata_access":"all"}`, "root", "all"},
		{`{"metadata_access":"none"}`, "root", "root"}} {
		if got := effective(c.deployment).MetadataAccess(c.stemcell); got != c.want {
			t.Errorf("%s, stemcell %q: got %s, want %s", c.deployment, c.stemcell, got, c.want)
		}
	}
	for _, c := range []struct {
		deployment     string
		stemcell, want []string
	}{{`{}`, []string{"vcap"}, []string{"vcap"}},
		{`{"metadata_users":["a","1001"]}`, []string{"vcap"}, []string{"a", "1001"}},
		{`{"metadata_users":[]}`, []string{"vcap"}, []string{}}} {
		if got := effective(c.deployment).MetadataUsers(c.stemcell); !slices.Equal(got, c.want) {
			t.Errorf("%s, stemcell %q: got %q, want %q", c.deployment, c.stemcell, got, c.want)
		}
	}
	for _, c := range []struct{ env, stemcell, want string }{{"", "zeros", "zeros"}, {"", "noise", "noise"},
		{"zeros", "noise", "zeros"}, {"noise", "zeros", "noise"}} {
		e := effective(`{}`)
		e.Settings.Env.PersistentDiskBlank = c.env
		if got := e.BlankDisks(c.stemcell); got != c.want {
			t.Errorf("env %q, stemcell %q: got %s, want %s", c.env, c.stemcell, got, c.want)
		}
	}
}
