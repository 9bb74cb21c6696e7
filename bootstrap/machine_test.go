package bootstrap

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"cambium/internal/status"
	"cambium/platform/user"
	"cambium/settings"
	"cambium/settings/store"
	"cambium/storage"
)

// fixed are settings that are there already.
type fixed struct{ e settings.Effective }

func (f fixed) Load(context.Context) (store.Loaded, error) { return store.Loaded{From: "test"}, nil }
func (f fixed) Effective() settings.Effective              { return f.e }
func (f fixed) HostsConfigured() bool                      { return true }
func (f fixed) SetHostsConfigured() error                  { return nil }

// people records what is asked for accounts.
type people struct {
	passwords error
	keys      []string
}

func (p *people) Converge(_ context.Context, want user.Desired) ([]user.Change, error) {
	if want.Passwords != nil {
		return nil, p.passwords
	}
	keys := want.Keys["vcap"]
	if want.KeepKeys {
		for _, key := range p.keys {
			if !slices.Contains(keys, key) {
				keys = append(slices.Clone(keys), key)
			}
		}
	}
	var changes []user.Change
	if !slices.Equal(keys, p.keys) {
		changes = []user.Change{{Op: user.OpSetKeys, User: "vcap"}}
	}
	p.keys = keys
	return changes, nil
}

// drives fail or change as told.
type drives struct {
	ephemeral, known, linked error
	mounts, grows            bool
}

func (d *drives) SetupRaw(context.Context, []settings.DiskHint) ([]storage.Change, error) {
	return nil, nil
}
func (d *drives) Setup(context.Context, *settings.DiskHint, *uint64, string) ([]storage.Change, error) {
	return nil, d.ephemeral
}

func (d *drives) GrowRoot(context.Context, *settings.DiskHint) (changes []storage.Change, err error) {
	if d.grows {
		changes = []storage.Change{{}}
	}
	return changes, nil
}

func (d *drives) MountLast(context.Context) (changes []storage.Change, warning string, err error) {
	if d.mounts {
		changes = []storage.Change{{}}
	}
	return changes, "", nil
}
func (d *drives) CheckKnown([]settings.DiskAssociation) error { return d.known }
func (d *drives) Associate(context.Context, []settings.DiskAssociation) ([]storage.Change, error) {
	return nil, d.linked
}

// bootMachine runs the real table on a machine of fakes.
func bootMachine(t *testing.T, m *Machine) (Verdict, func(), status.Document) {
	t.Helper()
	e, _ := engine(t)
	m.Status, m.Log = e.Status, e.Log
	if m.StartBus == nil {
		m.StartBus = func(context.Context, settings.Effective) error { return nil }
	}
	v, rest, err := e.Run(t.Context(), Steps(m))
	if err != nil {
		t.Fatal(err)
	}
	return v, rest, m.Status.Snapshot()
}

func withKeys(keys ...string) fixed {
	var f fixed
	f.e.Settings.Env.Bosh.AuthorizedKeys = keys
	return f
}

// Whoever is to find out why a machine is not ready can log in to it: the keys are there although
// the disk was refused, or the bus cannot be used.
func TestKeysAreAuthorizedThoughTheBootFails(t *testing.T) {
	for name, m := range map[string]*Machine{
		"ephemeral-disk": {Disks: &drives{ephemeral: errors.New("refused")}},
		"bus":            {StartBus: func(context.Context, settings.Effective) error { return errors.New("bad certificate") }},
	} {
		users := &people{}
		m.Users, m.Settings = users, withKeys("env key")
		m.PublicKey = func(context.Context) (string, error) { return "iaas key", nil }
		v, rest, _ := bootMachine(t, m)
		rest()
		if v.Step != name || strings.Join(users.keys, ",") != "env key,iaas key" {
			t.Errorf("%s: %s with keys %q, want those of env and IaaS", name, v.Line(), users.keys)
		}
	}
}

// A source that cannot be asked for the IaaS's key does not take away the one that is there.
func TestKeyOfTheIaaSStays(t *testing.T) {
	users := &people{keys: []string{"env key", "iaas key"}}
	m := &Machine{Users: users, Settings: withKeys("env key"), PublicKey: func(context.Context) (string, error) { return "", errors.New("no route") }}
	v, rest, _ := bootMachine(t, m)
	rest()
	if v.State != status.Ready || strings.Join(users.keys, ",") != "env key,iaas key" || m.Changes() != 0 {
		t.Errorf("%s, keys %q, %d changes, want everything as it was", v.Line(), users.keys, m.Changes())
	}
	m.PublicKey = func(context.Context) (string, error) { return "new key", nil }
	_, rest, _ = bootMachine(t, m)
	rest()
	if strings.Join(users.keys, ",") != "env key,new key" {
		t.Errorf("keys %q, want the IaaS's new one", users.keys)
	}
}

// A machine whose passwords could not be set would have the stemcell's: it is not ready.
func TestPasswordsAreFatal(t *testing.T) {
	m := &Machine{Settings: fixed{}, Users: &people{passwords: errors.New("the hash is no hash")}, PublicKey: func(context.Context) (string, error) { return "", nil }}
	v, rest, _ := bootMachine(t, m)
	rest()
	if v.State != status.Failed || v.Step != "passwords" || !strings.Contains(v.Line(), "env.bosh.password") {
		t.Errorf("got %s %q, want the boot failed by passwords and what to do", v.State, v.Line())
	}
}

// Disks that settings do not account for fail the boot; a device that is not there yet only warns.
func TestUnknownDisksAreFatal(t *testing.T) {
	v, rest, _ := bootMachine(t, &Machine{Settings: fixed{}, Disks: &drives{known: errors.New("not attached")}})
	rest()
	if v.State != status.Failed || v.Step != "persistent-disk" {
		t.Errorf("unknown disk: got %s %q", v.State, v.Line())
	}
	v, rest, _ = bootMachine(t, &Machine{Settings: fixed{}, Disks: &drives{linked: errors.New("no device")}})
	rest()
	if v.State != status.Degraded {
		t.Errorf("missing device: got %s %q, want degraded", v.State, v.Line())
	}
}

// What disks do counts, and what a background step does takes back that nothing was changed.
func TestChangesOfDisksCount(t *testing.T) {
	for name, disks := range map[string]*drives{"mount": {mounts: true}, "background": {grows: true}, "nothing": {}} {
		m := &Machine{Settings: fixed{}, Disks: disks}
		v, rest, _ := bootMachine(t, m)
		if err := m.Status.Update(func(d *status.Document) { d.Unchanged = m.Changes() == 0 }); err != nil || v.State != status.Ready {
			t.Fatalf("%s: %s, %v", name, v.Line(), err)
		}
		rest()
		if d := m.Status.Snapshot(); d.Unchanged != (name == "nothing") {
			t.Errorf("%s: unchanged is %v", name, d.Unchanged)
		}
	}
}
