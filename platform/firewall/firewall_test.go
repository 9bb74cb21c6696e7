package firewall

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"cambium/internal/secret"
	"cambium/platform/platformtest"
)

type resolver map[string][]netip.Addr

func (r resolver) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if addresses, there := r[host]; there {
		return addresses, nil
	}
	return nil, errors.New("no such host")
}

func TestResolve(t *testing.T) {
	f := &Firewall{Log: platformtest.Quiet(), Resolver: resolver{"bus.example": {netip.MustParseAddr("::ffff:192.0.2.2"),
		netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}}
	for _, tc := range []struct {
		name string
		urls []string
		want []string
	}{
		{"literal", []string{"nats://user:password@192.0.2.100:4222"}, []string{"192.0.2.100:4222"}},
		{"IPv6 literal", []string{"nats://[2001:db8::5]:4222"}, []string{"[2001:db8::5]:4222"}},
		{"name with several addresses", []string{"nats://bus.example:4222"},
			[]string{"192.0.2.1:4222", "192.0.2.2:4222", "[2001:db8::1]:4222"}},
		{"the same twice", []string{"nats://192.0.2.1:4222", "nats://192.0.2.1:4222"}, []string{"192.0.2.1:4222"}},
		{"two servers", []string{"nats://192.0.2.9:4222", "nats://192.0.2.1:4223"},
			[]string{"192.0.2.1:4223", "192.0.2.9:4222"}},
		{"one of two is unknown", []string{"nats://gone.example:4222", "nats://192.0.2.1:4222"}, []string{"192.0.2.1:4222"}},
		{"unknown", []string{"nats://gone.example:4222"}, nil},
		{"not a bus", []string{"https://u:p@192.0.2.1:6868", "", "nats://192.0.2.1", "nats://:4222",
			"nats://192.0.2.1:99999", "nats://192.0.2.1:0", "%"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var urls []secret.URL
			for _, u := range tc.urls {
				urls = append(urls, secret.NewURL(u))
			}
			var got []string
			for _, s := range f.Resolve(t.Context(), urls) {
				got = append(got, s.String())
			}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// as returns the state after the changes.
func as(t *testing.T, changes []Change) State {
	t.Helper()
	s := State{chains: make(map[string]chainState)}
	for _, c := range changes {
		state := chainState{base: c.Op != OpMakeChain}
		for _, r := range c.rules {
			encoded, err := encode(r)
			if err != nil {
				t.Fatal(err)
			}
			state.rules = append(state.rules, encoded)
			if server, refuses := refused(r); refuses {
				state.servers = append(state.servers, server)
			}
		}
		s.chains[c.Chain] = state
	}
	return s
}

func TestDiff(t *testing.T) {
	want := Desired{Monit: true, NATS: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4222")}}
	all, err := Diff(State{}, want)
	if err != nil || len(all) != 3 {
		t.Fatalf("got %v, %v, want three chains", all, err)
	}
	full := as(t, all)
	if second, err := Diff(full, want); err != nil || len(second) != 0 {
		t.Errorf("got %v, %v, want nothing to do", second, err)
	}
	if none, err := Diff(State{}, Desired{}); err != nil || len(none) != 0 {
		t.Errorf("got %v, %v: what is not asked for is left alone", none, err)
	}
	mapped := Desired{NATS: []netip.AddrPort{netip.MustParseAddrPort("[::ffff:192.0.2.1]:4222"),
		netip.MustParseAddrPort("192.0.2.1:4222")}}
	if got, err := Diff(full, mapped); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v: that is the same server in other words", got, err)
	}
	moved := Desired{NATS: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:4222")}}
	if got, err := Diff(full, moved); err != nil || len(got) != 1 || got[0].Chain != natsChain ||
		got[0].Op != OpFillChain {
		t.Errorf("got %v, %v, want the rules of the bus replaced", got, err)
	}
	off, err := Diff(full, Desired{Off: true, Monit: true})
	if err != nil || len(off) != 2 || off[0].String() != "remove chain monit_access" ||
		off[1].String() != "remove chain nats_access" {
		t.Errorf("switched off: %v, %v", off, err)
	}
	if got, err := Diff(State{}, Desired{Off: true}); err != nil || len(got) != 0 {
		t.Errorf("switched off where there is nothing: %v, %v", got, err)
	}
	c := full.chains[monitChain]
	c.base = false
	full.chains[monitChain] = c
	if got, err := Diff(full, want); err != nil || len(got) != 1 || got[0].Op != OpReplaceChain {
		t.Errorf("got %v, %v, want the chain made anew", got, err)
	}
}

func TestDiffOfMetadata(t *testing.T) {
	want := func(users []uint32, servers ...string) Desired {
		m := Metadata{Users: users}
		for _, s := range servers {
			m.Servers = append(m.Servers, netip.MustParseAddrPort(s))
		}
		return Desired{Metadata: &m}
	}
	changes := func(have State, want Desired) []Change {
		t.Helper()
		got, err := Diff(have, want)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	const first, second = "192.0.2.1:80", "[2001:db8::1]:8080"
	all := changes(State{}, want([]uint32{5}, first, second))
	if len(all) != 2 || all[0].String() != "fill chain metadata_access with 7 rules" ||
		all[1].String() != "fill chain metadata_access_forward with 2 rules" {
		t.Fatalf("got %v", all)
	}
	closed := as(t, all)
	for _, c := range []struct {
		name string
		want Desired
		n    int
	}{
		{"the same again", want([]uint32{5}, second, first, first), 0},
		{"root is always let in", want([]uint32{0, 5}, first), 0},
		{"a server that is not known yet stays closed", want([]uint32{5}, first), 0},
		{"no server is known yet", want([]uint32{5}), 0},
		{"another user", want([]uint32{6}, first, second), 1},
		{"another server", want([]uint32{5}, "192.0.2.1:81"), 2},
		{"open", Desired{Metadata: &Metadata{Open: true}}, 2},
		{"not named", Desired{}, 0},
		{"the other rules are off", Desired{Off: true}, 0},
	} {
		if got := changes(closed, c.want); len(got) != c.n {
			t.Errorf("%s: got %v, want %d changes", c.name, got, c.n)
		}
	}
	if got := changes(State{}, want(nil)); len(got) != 0 {
		t.Errorf("without a server: got %v, want nothing", got)
	}
	if got := changes(State{}, Desired{Off: true, Monit: true, Metadata: want(nil, first).Metadata}); len(got) != 2 {
		t.Errorf("with the other rules off: got %v, want the metadata service closed", got)
	}
}

func TestGroup(t *testing.T) {
	for _, tc := range []struct {
		name, cgroup, mounted string
		job                   string
		level                 uint32
	}{
		{"version 2", "0::/system.slice/runc-bpm-router.scope\n",
			"sys/fs/cgroup/system.slice/runc-bpm-router.scope", "router", 2},
		{"both versions", "12:pids:/x\n0::/system.slice/runc-bpm-a-b.c.scope\n",
			"sys/fs/cgroup/unified/system.slice/runc-bpm-a-b.c.scope", "a-b.c", 2},
		{"deeper, and something below", "0::/a/b/runc-bpm-x.scope/c\n", "sys/fs/cgroup/a/b/runc-bpm-x.scope", "x", 3},
		{"bpm 1.4.33", "0::/system.slice/monit-service-bpm-bpm-galera-agent.scope\n",
			"sys/fs/cgroup/system.slice/monit-service-bpm-bpm-galera-agent.scope", "galera-agent", 2},
		{"bpm 1.4.33, one of several processes", "0::/system.slice/monit-service-bpm-bpm-job.2eworker.scope\n",
			"sys/fs/cgroup/system.slice/monit-service-bpm-bpm-job.2eworker.scope", "job.2eworker", 2},
		{"bpm 1.4.33, under another supervisor", "0::/x.slice/supervisor-1-bpm-bpm-bpm-bpm-job.scope\n",
			"sys/fs/cgroup/x.slice/supervisor-1-bpm-bpm-bpm-bpm-job.scope", "bpm-bpm-job", 2},
		{"bpm 1.4.33, without systemd", "0::/runit/monit/bpm-job\n", "sys/fs/cgroup/runit/monit/bpm-job", "job", 3},
		{"the supervisor itself", "0::/system.slice/monit.service\n", "sys/fs/cgroup/system.slice/monit.service", "", 0},
		{"a login of vcap", "0::/user.slice/user-1000.slice/session-1.scope\n",
			"sys/fs/cgroup/user.slice/user-1000.slice/session-1.scope", "", 0},
		{"not mounted", "0::/system.slice/runc-bpm-router.scope\n", "sys", "", 0},
		{"not bpm", "0::/system.slice/monit.service\n", "sys/fs/cgroup/system.slice/monit.service", "", 0},
		{"version 1 only", "12:pids:/system.slice/runc-bpm-router.scope\n", "sys", "", 0},
		{"empty", "", "sys", "", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			for _, dir := range []string{"proc/self", tc.mounted} {
				if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(root, "proc/self/cgroup"), []byte(tc.cgroup), 0o644); err != nil {
				t.Fatal(err)
			}
			job, level, id, err := Job{Root: root}.group()
			if job != tc.job || level != tc.level || (id == 0) != (tc.job == "") || (err == nil) != (tc.job != "") {
				t.Errorf("got %q, level %d, id %d, %v, want %q, level %d", job, level, id, err, tc.job, tc.level)
			}
		})
	}
}

func FuzzUnifiedPath(f *testing.F) {
	f.Add("12:pids:/x\n0::/system.slice/runc-bpm-a.scope\n")
	f.Add("0::")
	f.Fuzz(func(t *testing.T, text string) {
		if path, found := unifiedPath(text); found && path[0] != '/' {
			t.Errorf("got %q", path)
		}
	})
}
