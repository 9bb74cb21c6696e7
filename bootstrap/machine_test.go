package bootstrap

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/bootstrap/engine"
	"cambium/internal/secret"
	"cambium/internal/status"
	"cambium/jobs/monit"
	"cambium/platform"
	"cambium/platform/platformtest"
	"cambium/platform/user"
	"cambium/settings"
	"cambium/settings/store"
	"cambium/storage"
	"cambium/storage/decide"
)

// fixed are settings that are there already.
type fixed struct{ e settings.Effective }

func (f fixed) Load(context.Context) (store.Loaded, error) { return store.Loaded{From: "test"}, nil }
func (f fixed) Effective() settings.Effective              { return f.e }
func (f fixed) HostsConfigured() bool                      { return true }
func (f fixed) SetHostsConfigured() error                  { return nil }

// accounts are those of a machine with vcap and its authorized keys.
func accounts(t *testing.T, keys ...string) *user.Accounts {
	t.Helper()
	a := &user.Accounts{Root: bareRoot(t), Log: platformtest.Quiet()}
	if keys != nil {
		want := user.Desired{Keys: map[string][]string{"vcap": keys}}
		if _, err := platform.Converge(t.Context(), a, user.Diff, want); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// keysOf are the authorized keys of vcap.
func keysOf(t *testing.T, a *user.Accounts) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(a.Root, "home/vcap/.ssh/authorized_keys"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(data), "\n", ",")
}

// drives fail or change as set.
type drives struct {
	ephemeral, known, linked error
	mounts, grows            bool
	planned                  []storage.Change // of the ephemeral disk
	others                   []storage.Change // of disks that the boot does not mount
	store                    error            // why the store cannot be mounted
	warning                  string           // why it is empty
	working                  string           // the disk that is being checked
	storePlan                []storage.Change // if set, the plan of the store
	mounted                  int              // calls of MountStore that did not only plan
}

func (d *drives) SetupRaw(context.Context, []settings.DiskHint, bool) ([]storage.Change, error) {
	return nil, nil
}

func (d *drives) Setup(_ context.Context, _ *settings.DiskHint, _ *uint64, _ string,
	acting bool) ([]storage.Change, error) {
	if acting {
		return nil, d.ephemeral
	}
	return d.planned, d.ephemeral
}

func (d *drives) GrowRoot(context.Context, *settings.DiskHint, bool) (changes []storage.Change, err error) {
	if d.grows {
		changes = []storage.Change{{Device: "/dev/sda"}}
	}
	return changes, nil
}

func (d *drives) MountStore(_ context.Context, acting bool) (changes []storage.Change, warning string, err error) {
	if acting {
		d.mounted++
	} else if d.storePlan != nil {
		return d.storePlan, "", nil
	}
	if d.mounts {
		changes = []storage.Change{{Device: "/dev/sdc1"}}
	}
	return changes, d.warning, d.store
}

func (d *drives) CurrentWork() (cid, what string, since time.Time) {
	if d.working == "" {
		return "", "", time.Time{}
	}
	return d.working, "persistent disk " + d.working + " is being checked", time.Now().Add(-time.Hour)
}

func (d *drives) PlanMount(context.Context) ([]storage.Change, error) { return d.others, nil }

func (d *drives) CheckKnown([]settings.DiskAssociation) error { return d.known }

func (d *drives) Associate(context.Context, []settings.DiskAssociation, bool) ([]storage.Change, error) {
	return nil, d.linked
}

func newEngine(t *testing.T) *engine.Engine {
	t.Helper()
	rec, err := status.Open(filepath.Join(t.TempDir(), "status.json"), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the directory goes
		if err := rec.Flush(); err != nil {
			t.Error(err)
		}
	})
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	return &engine.Engine{Log: logrus.NewEntry(logger), Status: rec}
}

// bootMachine runs the real table on a machine of fakes.
func bootMachine(t *testing.T, m *Machine) (engine.Verdict, func()) {
	t.Helper()
	e := newEngine(t)
	m.Status, m.Log = e.Status, e.Log
	if m.Deferred == nil {
		m.Deferred = &Deferred{Go: func(f func(context.Context)) { go f(t.Context()) }}
	}
	if m.StartBus == nil {
		m.StartBus = func(context.Context, settings.Effective) error { return nil }
	}
	v, rest, err := e.Run(t.Context(), Steps(m))
	if err != nil {
		t.Fatal(err)
	}
	return v, rest
}

func withKeys(keys ...string) fixed {
	var f fixed
	f.e.Settings.Env.Bosh.AuthorizedKeys = keys
	return f
}

// An operator can log in to a machine that is not ready: the keys are there although the disk was
// refused, or the bus cannot be used.
func TestKeysAreAuthorizedThoughTheBootFails(t *testing.T) {
	for name, m := range map[string]*Machine{
		"ephemeral-disk": {Ephemeral: &drives{ephemeral: errors.New("refused")}},
		"bus": {StartBus: func(context.Context,
			settings.Effective) error {
			return errors.New("bad certificate")
		}},
	} {
		users := accounts(t)
		m.Users, m.Settings = users, withKeys("env key")
		m.PublicKey = func(context.Context) (string, error) { return "iaas key", nil }
		v, rest := bootMachine(t, m)
		rest()
		if keys := keysOf(t, users); v.Step != name || keys != "env key,iaas key" {
			t.Errorf("%s: %s with keys %q, want those of env and IaaS", name, v.Line(), keys)
		}
	}
}

// A source that cannot be asked for the IaaS's key does not take away the one that is there.
func TestKeyOfTheIaaSStays(t *testing.T) {
	users := accounts(t, "env key", "iaas key")
	m := &Machine{Users: users, Settings: withKeys("env key"),
		PublicKey: func(context.Context) (string, error) { return "", errors.New("no route") }}
	v, rest := bootMachine(t, m)
	rest()
	keys, changes := keysOf(t, users), m.Status.Snapshot().Changes()
	if v.State != status.Ready || keys != "env key,iaas key" || changes != 0 {
		t.Errorf("%s, keys %q, %d changes, want everything as it was", v.Line(), keys, changes)
	}
	m.PublicKey = func(context.Context) (string, error) { return "new key", nil }
	_, rest = bootMachine(t, m)
	rest()
	if keys := keysOf(t, users); keys != "env key,new key" {
		t.Errorf("keys %q, want the IaaS's new one", keys)
	}
}

// A machine whose passwords could not be set would have the stemcell's: it is not ready.
func TestPasswordsAreFatal(t *testing.T) {
	var s fixed
	s.e.Settings.Env.Bosh.Password = secret.New("two:fields")
	m := &Machine{Settings: s, Users: accounts(t), PublicKey: func(context.Context) (string, error) { return "", nil }}
	v, rest := bootMachine(t, m)
	rest()
	if v.State != status.Failed || v.Step != "passwords" || !strings.Contains(v.Line(), "env.bosh.password") {
		t.Errorf("got %s %q, want the boot failed by passwords and what to do", v.State, v.Line())
	}
}

// Disks that settings do not account for fail the boot; a device that is not there yet only warns.
func TestUnknownDisksAreFatal(t *testing.T) {
	v, rest := bootMachine(t, &Machine{Settings: fixed{}, Persistent: &drives{known: errors.New("not attached")}})
	rest()
	if v.State != status.Failed || v.Step != "persistent-disk" {
		t.Errorf("unknown disk: got %s %q", v.State, v.Line())
	}
	v, rest = bootMachine(t, &Machine{Settings: fixed{}, Persistent: &drives{linked: errors.New("no device")}})
	rest()
	if v.State != status.Degraded {
		t.Errorf("missing device: got %s %q, want degraded", v.State, v.Line())
	}
}

// supervisor counts how often it is started.
type supervisor struct{ starts int }

func (s *supervisor) Plan(context.Context) ([]monit.Change, error) { return nil, nil }
func (s *supervisor) Start(context.Context) ([]monit.Change, error) {
	s.starts++
	return nil, nil
}

// A machine whose store cannot be mounted is up without its supervisor, until the disk is mounted or no longer
// attached.
func TestNoJobStartsOnAnEmptyStore(t *testing.T) {
	disks, daemon := &drives{store: errors.New("persistent disk vol-1 is blank")}, &supervisor{}
	var reasons []string
	m := &Machine{Settings: fixed{}, Persistent: disks, Supervisor: daemon,
		WithheldChanged: func(reason string) { reasons = append(reasons, reason) }}
	v, rest := bootMachine(t, m)
	rest()
	if v.Cause != nil || daemon.starts != 0 || !strings.Contains(m.JobsWithheld(), "vol-1 is blank") {
		t.Fatalf("got %s %q, %d starts, withheld %q", v.State, v.Line(), daemon.starts, m.JobsWithheld())
	}
	m.RecheckStore(t.Context())
	if daemon.starts != 0 || m.JobsWithheld() == "" || disks.mounted != 1 {
		t.Fatalf("the phase ended without the disk, or what rechecks has mounted it: %d mounts", disks.mounted)
	}
	disks.store = nil
	for range 2 {
		m.RecheckStore(t.Context())
	}
	if daemon.starts != 1 || m.JobsWithheld() != "" || len(reasons) != 2 || reasons[1] != "" {
		t.Errorf("%d starts, withheld %q, announced %q", daemon.starts, m.JobsWithheld(), reasons)
	}
}

// A store whose disk is missing is not mounted, because waiting for it would block the disk actions. When the disk is
// there, it is.
func TestAwaitedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disks, daemon := &drives{store: errors.New("the disk vol-1 is missing")}, &supervisor{}
		m := &Machine{Settings: fixed{}, Persistent: disks, Supervisor: daemon}
		_, rest := bootMachine(t, m)
		rest()
		disks.store, disks.storePlan = nil, []storage.Change{{Op: decide.Await, What: "wait for it"}}
		hour, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		m.AwaitStore(hour)
		if disks.mounted != 1 || daemon.starts != 0 || m.JobsWithheld() == "" {
			t.Fatalf("without the disk: %d mounts besides that of the boot, %d starts", disks.mounted-1, daemon.starts)
		}
		disks.storePlan = []storage.Change{{Op: decide.Mount}}
		m.AwaitStore(t.Context())
		if disks.mounted != 2 || daemon.starts != 1 || m.JobsWithheld() != "" {
			t.Errorf("with the disk: %d mounts besides that of the boot, %d starts, withheld %q", disks.mounted-1,
				daemon.starts, m.JobsWithheld())
		}
	})
}

// A check that goes on does not hold the boot.
func TestLongCheckDoesNotHoldTheBoot(t *testing.T) {
	disks, daemon := &drives{working: "vol-1"}, &supervisor{}
	m := &Machine{Settings: fixed{}, Persistent: disks, Supervisor: daemon}
	v, rest := bootMachine(t, m)
	rest()
	if v.Cause != nil || daemon.starts != 0 || !strings.Contains(m.JobsWithheld(), "vol-1 is being checked") {
		t.Errorf("got %s %q, %d starts, withheld %q", v.State, v.Line(), daemon.starts, m.JobsWithheld())
	}
}

// slowDrives mount their store only on a signal.
type slowDrives struct {
	*drives
	begun chan time.Time
	end   chan error
}

func (d slowDrives) MountStore(ctx context.Context, acting bool) ([]storage.Change, string, error) {
	if !acting {
		return d.drives.MountStore(ctx, acting)
	}
	d.begun <- time.Now()
	err := <-d.end
	<-d.begun
	return nil, "", err
}

func (d slowDrives) CurrentWork() (cid, what string, since time.Time) {
	select {
	case since = <-d.begun:
		d.begun <- since
		return "vol-1", "persistent disk vol-1 is being mounted", since
	default:
		return "", "", since
	}
}

// A mount that takes long, because it replays a journal, goes on in the background of the boot. Its end starts the
// jobs, or says why they are not.
func TestStoreIsMountedAfterTheBoot(t *testing.T) {
	for name, failure := range map[string]error{"mounted": nil, "not mounted": errors.New("bad superblock")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disks, daemon := slowDrives{&drives{}, make(chan time.Time, 1), make(chan error)}, &supervisor{}
				m := &Machine{Settings: fixed{}, Persistent: disks, Supervisor: daemon}
				begin := time.Now()
				v, rest := bootMachine(t, m)
				rest()
				if held := time.Since(begin); held < storeHold || held > storeHold+2*time.Second {
					t.Errorf("the boot was held for %v", held)
				}
				if v.Cause != nil || daemon.starts != 0 || m.JobsWithheld() != "persistent disk vol-1 is being mounted" {
					t.Fatalf("got %s %q, %d starts, withheld %q", v.State, v.Line(), daemon.starts, m.JobsWithheld())
				}
				time.Sleep(time.Hour)
				disks.end <- failure
				synctest.Wait()
				if failure == nil && (daemon.starts != 1 || m.JobsWithheld() != "") ||
					failure != nil && (daemon.starts != 0 || m.JobsWithheld() != failure.Error()) {
					t.Errorf("afterwards %d starts, withheld %q", daemon.starts, m.JobsWithheld())
				}
			})
		})
	}
}

// A mount that ends in the moment in which the boot goes on without it still starts the jobs.
func TestStoreIsMountedAsTheBootGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disks, daemon := slowDrives{&drives{}, make(chan time.Time, 1), make(chan error)}, &supervisor{}
		m := &Machine{Settings: fixed{}, Persistent: disks, Supervisor: daemon}
		mounting := false
		m.Deferred = &Deferred{Go: func(f func(context.Context)) {
			ended := make(chan struct{})
			go func() { f(t.Context()); close(ended) }()
			if mounting { // f is what awaits the end of the mount
				disks.end <- nil
				<-ended
			}
			mounting = true
		}}
		_, rest := bootMachine(t, m)
		rest()
		if daemon.starts == 0 || m.JobsWithheld() != "" {
			t.Errorf("%d starts, withheld %q", daemon.starts, m.JobsWithheld())
		}
	})
}

// What disks do counts, and what a background step does takes back that nothing was changed.
func TestChangesOfDisksCount(t *testing.T) {
	for name, disks := range map[string]*drives{"mount": {mounts: true}, "background": {grows: true}, "nothing": {}} {
		m := &Machine{Settings: fixed{}, Ephemeral: disks, Persistent: disks}
		v, rest := bootMachine(t, m)
		if err := m.Status.Update(func(d *status.Document) { d.Unchanged = d.Changes() == 0 }); err != nil ||
			v.State != status.Ready {
			t.Fatalf("%s: %s, %v", name, v.Line(), err)
		}
		rest()
		if d := m.Status.Snapshot(); d.Unchanged != (name == "nothing") {
			t.Errorf("%s: unchanged is %v", name, d.Unchanged)
		}
	}
}
