package trial

import (
	"errors"
	"strings"
	"testing"
	"time"

	"cambium/internal/status"
)

func TestRefusal(t *testing.T) {
	for name, c := range map[string]struct {
		operation string
		f         facts
		want      string // "" if it is done
	}{
		"try":                     {try, facts{}, ""},
		"try again after a trial": {try, facts{record: Record{State: failed}}, ""},
		"a second try":            {try, facts{busy: true}, "under way"},
		"try of a confirmed one": {try, facts{mounted: true, served: true, record: Record{State: confirmed}},
			"run back first"},
		"try of a kept one":   {try, facts{swapped: true}, "run back first"},
		"try on our stemcell": {try, facts{served: true}, "runs here already"},
		"no binary":           {try, facts{binary: errors.New("agent is missing")}, "agent is missing"},
		"old systemd":         {try, facts{systemd: 245}, "systemd 245 is too old"},
		"systemd of jammy":    {try, facts{systemd: 249}, ""},
		"old kernel":          {try, facts{missing: []string{"statx"}}, "lacks statx"},
		"full disk": {try, facts{free: []space{{"/a", 20 << 20, 16 << 20}, {"/b", 4 << 20, 26 << 20}}},
			"/b has 4 MiB free, and 26 are needed"},
		"a task":               {try, facts{tasks: []string{"update_settings"}}, "works on update_settings"},
		"a migration":          {try, facts{migrating: true}, "being migrated"},
		"keep":                 {keep, facts{mounted: true, served: true, record: Record{State: confirmed}}, ""},
		"keep without a trial": {keep, facts{}, "run try first"},
		"keep after a reboot":  {keep, facts{record: Record{State: confirmed}}, "run try first"},
		"keep of an unproven one": {keep, facts{mounted: true, served: true, record: Record{State: running}},
			"run try first"},
		"keep of one that is ill": {keep, facts{mounted: true, record: Record{State: confirmed}}, "does not serve"},
		"keep of a kept one":      {keep, facts{swapped: true, served: true, record: Record{State: kept}}, "kept already"},
		"keep, low on space": {keep, facts{mounted: true, served: true, record: Record{State: confirmed},
			free: []space{{"/b", 1, 2}}}, ""},
		"back":                      {back, facts{mounted: true}, ""},
		"back from a kept one":      {back, facts{swapped: true}, ""},
		"back without a trial":      {back, facts{}, "nothing to go back from"},
		"back during a trial":       {back, facts{mounted: true, busy: true}, "under way"},
		"back with a task":          {back, facts{mounted: true, tasks: []string{"1 tasks"}}, "works on 1 tasks"},
		"back without a new binary": {back, facts{mounted: true, binary: errors.New("agent is missing")}, ""},
	} {
		got := refusal(c.operation, c.f)
		if (c.want == "") != (got == nil) || got != nil && !strings.Contains(got.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, got, c.want)
		}
	}
}

func TestJudge(t *testing.T) {
	const limit = 45 * time.Second
	document := func(edit func(*status.Document)) *status.Document {
		d := &status.Document{State: status.Ready, Bus: &status.Bus{State: status.BusConnected},
			Marks: []status.Mark{{Name: status.MarkHeartbeat}}}
		if edit != nil {
			edit(d)
		}
		return d
	}
	starting := document(func(d *status.Document) { d.State, d.Marks = status.Starting, nil })
	noHeartbeat := document(func(d *status.Document) { d.Marks = nil })
	for name, c := range map[string]struct {
		s    sight
		over bool
		want string
	}{
		"confirmed": {sight{pid: 1, ours: true, doc: document(nil)}, true, ""},
		"degraded": {sight{pid: 1, ours: true, doc: document(func(d *status.Document) { d.State = status.Degraded })},
			true, ""},
		"create-env": {sight{pid: 1, ours: true,
			doc: document(func(d *status.Document) { d.Marks, d.Bus.State = nil, status.BusListening })}, true, ""},
		"the old agent": {sight{since: time.Minute, pid: 1, doc: document(nil)}, true, "did not run"},
		"starting":      {sight{since: 44 * time.Second, pid: 1, ours: true, doc: starting}, false, ""},
		"too slow":      {sight{since: limit, pid: 1, ours: true, doc: starting}, true, "was not ready"},
		"failed": {sight{since: limit, pid: 1, ours: true,
			doc: document(func(d *status.Document) { d.State, d.Verdict = status.Failed, "no disk" })},
			true, "was not ready: no disk"},
		"hangs": {sight{since: limit, pid: 1, ours: true}, true, "reported nothing"},
		"never reaches": {sight{since: limit, pid: 1, ours: true,
			doc: document(func(d *status.Document) { d.Bus.State = status.BusConnecting; d.Marks = nil })}, true,
			"did not reach the bus"},
		"no bus at all": {sight{since: limit, pid: 1, ours: true,
			doc: document(func(d *status.Document) { d.Bus = nil })}, true, "did not reach the bus: not started"},
		"no heartbeat yet": {sight{since: time.Second, pid: 1, ours: true, doc: noHeartbeat}, false, ""},
		"no heartbeat": {sight{since: limit, pid: 1, ours: true, doc: noHeartbeat}, true,
			"no confirmation of a heartbeat"},
		"three ends":  {sight{ends: 3, pid: 1, ours: true, doc: document(nil)}, true, ""},
		"four ends":   {sight{ends: 4, pid: 1, ours: true, doc: document(nil)}, true, "ended 4 times"},
		"between two": {sight{ends: 1}, false, ""},
	} {
		over, reason := judge(c.s, limit)
		if over != c.over || (c.want == "") != (reason == "") || !strings.Contains(reason, c.want) {
			t.Errorf("%s: got %t, %q; want %t, %q", name, over, reason, c.over, c.want)
		}
	}
}

// TestSettle: a reboot ends a trial, whatever the record says.
func TestSettle(t *testing.T) {
	for _, c := range []struct {
		state         State
		busy, mounted bool
		want          State
	}{
		{none, false, false, none}, {scheduled, true, false, scheduled}, {running, true, true, running},
		{scheduled, false, false, ended}, {running, false, false, ended}, {running, false, true, failed},
		{confirmed, false, true, confirmed}, {confirmed, false, false, ended}, {confirmed, true, false, confirmed},
		{kept, false, false, kept}, {failed, false, false, failed}, {ended, false, false, ended},
	} {
		if got := settle(Record{State: c.state}, c.busy, c.mounted); got.State != c.want ||
			got.State != c.state && got.Reason == "" {
			t.Errorf("%+v: got %+v", c, got)
		}
	}
}
