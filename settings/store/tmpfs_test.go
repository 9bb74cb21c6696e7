package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cambium/internal/atomicfile"
	"cambium/internal/vcap"
	"cambium/settings"
)

const tmpfsOn = `,"env":{"bosh":{"agent":{"settings":{"tmpfs":true}}}}`

func (m *machine) tmpfsFile(name string) string { return filepath.Join(m.dirs.SettingsTmpfs(), name) }

// Contract S.13.
func TestTmpfsHoldsAllGenerationsAndThePlainCopiesGo(t *testing.T) {
	m := newMachine(t)
	m.answer = doc("a-1")
	c := m.open(t)
	m.load(t, c)
	m.answer = doc("a-1", `,"ntp":["x"]`)
	m.load(t, c)
	for _, u := range []string{`{"trusted_certs":"one"}`, `{"trusted_certs":"two"}`} {
		if err := commit(t, c, u); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(c.PutHint("d-1", settings.DiskHint{Path: "/dev/x"}), c.SetManagedCID("d-1")); err != nil {
		t.Fatal(err)
	}

	m.answer = doc("a-1", tmpfsOn)
	m.load(t, c)
	m.answer = doc("a-1", tmpfsOn, `,"ntp":["y"]`)
	m.load(t, c)
	if err := c.PutHint("d-2", settings.DiskHint{Path: "/dev/y"}); err != nil {
		t.Fatal(err)
	}
	if err := commit(t, c, `{"trusted_certs":"three"}`); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"bosh/managed_disk_settings.json",
		"bosh/settings/persistent_disk_hints.json", "bosh/settings/persistent_disk_hints.json.previous",
		"bosh/settings/settings.json", "bosh/settings/settings.json.previous",
		"bosh/settings/update_settings.json", "bosh/settings/update_settings.json.previous",
	}
	if got := m.tree(t); !slices.Equal(got, want) {
		t.Errorf("files are\n%v\nwant\n%v", got, want)
	}
	if m.mounts == 0 {
		t.Error("no tmpfs was mounted")
	}

	// The agent restarts, the source is gone: everything is found on the tmpfs.
	m.failure = errors.New("away")
	c = m.open(t)
	m.load(t, c)
	e := c.Effective()
	if len(e.NTP) != 1 || e.NTP[0] != "y" || e.TrustedCerts != "three" || len(c.Disks()) != 2 || mountedCID(c) != "d-1" {
		t.Errorf("after the restart: %v %q %v %q", e.NTP, e.TrustedCerts, c.Disks(), mountedCID(c))
	}

	// And back to the disk.
	m.failure, m.answer = nil, doc("a-1", `,"ntp":["z"]`)
	m.load(t, c)
	if atomicfile.Exists(m.tmpfsFile("settings.json")) || atomicfile.Exists(m.tmpfsFile("persistent_disk_hints.json")) {
		t.Errorf("the tmpfs still holds %v", m.tree(t))
	}
	m.failure = errors.New("away")
	c = m.open(t)
	if e := c.Effective(); e.NTP[0] != "z" || e.TrustedCerts != "three" || len(c.Disks()) != 2 {
		t.Errorf("back on the disk: %v %q %v", e.NTP, e.TrustedCerts, c.Disks())
	}
}

func TestWithoutTmpfsSecretsStayOffTheDisk(t *testing.T) {
	m := newMachine(t)
	m.answer = doc("a-1", tmpfsOn)
	o := m.options()
	broken := errors.New("mount refused")
	o.MountTmpfs = func(context.Context, string) error { return broken }
	c, err := Open(m.dirs, o)
	if err != nil {
		t.Fatal(err)
	}
	l := m.load(t, c)
	if !errors.Is(l.NotCached, broken) || m.cleared != 0 {
		t.Errorf("got %+v, cleared %d times; want the failure and the source not cleared", l, m.cleared)
	}
	if c.Effective().Settings.AgentID != "a-1" {
		t.Error("the settings are not in force")
	}
	if err := commit(t, c, `{"trusted_certs":"x"}`); err == nil {
		t.Error("an update was accepted although it cannot be kept")
	}
	if err := c.PutHint("d-1", settings.DiskHint{}); err == nil {
		t.Error("a disk was recorded although the record cannot be kept")
	}
	if got := m.tree(t); len(got) != 0 {
		t.Errorf("files %v were written", got)
	}
}

func TestUpdatesAndHintsAreFoundWithoutCachedSettings(t *testing.T) {
	m := newMachine(t)
	m.answer = doc("a-1", tmpfsOn)
	c := m.open(t)
	m.load(t, c)
	if err := c.PutHint("d-1", settings.DiskHint{Path: "/dev/x"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"settings.json", "settings.json" + atomicfile.PreviousSuffix} {
		if err := os.Remove(m.tmpfsFile(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	c = m.open(t)
	if c.Present() || len(c.Disks()) != 1 || string(c.Place()) != m.dirs.SettingsTmpfs() {
		t.Errorf("present %v, disks %v, place %s; want only the hint, on the tmpfs", c.Present(), c.Disks(), c.Place())
	}
}

// TestOldPlainSettingsDoNotCostTheNewerUpdates: upstream leaves an older settings.json on the disk when the tmpfs is
// enabled. Once the one on the tmpfs is removed, only the old one is left, but updates and disks on the tmpfs are
// newer.
func TestOldPlainSettingsDoNotCostTheNewerUpdates(t *testing.T) {
	m := newMachine(t)
	m.put(t, m.settingsFile(), doc("a-1"))
	m.put(t, m.tmpfsFile("update_settings.json"), `{"trusted_certs":"newer"}`)
	m.put(t, m.tmpfsFile("persistent_disk_hints.json"), `{"d-1":{"Path":"/dev/x"}}`)
	for restart := range 2 {
		c := m.open(t)
		if got := c.Effective().TrustedCerts; got != "newer" || len(c.Disks()) != 1 {
			t.Errorf("start %d: trusted certificates %q, disks %v", restart, got, c.Disks())
		}
	}
}

// leave creates all files that belong to an agent id, and companions with these suffixes.
func (m *machine) leave(t *testing.T, suffixes ...string) {
	t.Helper()
	d := m.dirs
	below := map[string]string{d.Instance(): "dns/records.json", d.MonitJobs(): "0000_web.monitrc",
		d.MonitJobsWithdrawn(): "0000_old.monitrc"}
	for _, path := range d.OfAgentID() {
		place := vcap.Place(filepath.Dir(path))
		if slices.ContainsFunc(moving, func(file func(vcap.Place) string) bool { return file(place) == path }) {
			continue // the store writes them
		}
		for _, suffix := range append(suffixes, "") {
			if file := filepath.Join(path, below[path]) + suffix; !atomicfile.Exists(file) {
				m.put(t, file, `"of a-1"`)
			}
		}
	}
}

// ofMachine returns the files that stay when the agent id changes.
func (m *machine) ofMachine() []string {
	d := m.dirs
	return []string{d.AgentJSON(), d.Log(), d.TimeServers(), d.BootOnce(), d.CanRestartMark(), d.MonitUser(),
		d.MonitState(), filepath.Join(d.DataJobs(), "web"), filepath.Join(d.Jobs(), "web"),
		filepath.Join(d.Store(), "x"), filepath.Join(d.SSHHomes(), "me")}
}

// split returns the files that contain the agent id a-1, and the number of those set aside.
func (m *machine) split(t *testing.T) (inPlace []string, aside int) {
	t.Helper()
	for _, name := range m.tree(t) {
		switch text := m.read(t, filepath.Join(m.dirs.Base(), name)); {
		case strings.Contains(name, "foreign/a-1/"):
			aside++
		case strings.Contains(text, "a-1"):
			inPlace = append(inPlace, name)
		}
	}
	return inPlace, aside
}

func TestAnotherAgentsStateIsSetAside(t *testing.T) {
	m := newMachine(t)
	m.answer = doc("a-1")
	c := m.open(t)
	m.load(t, c)
	m.put(t, m.dirs.AgentState(), `{"of":"a-1"}`)
	err := commit(t, c, `{"trusted_certs":"a-1","mbus":{"urls":["nats://old:4222"]}}`)
	hint := settings.DiskHint{Path: "/dev/x"}
	if err := errors.Join(err, c.PutHint("a-1", hint), c.SetManagedCID("a-1"), c.SetHostsConfigured()); err != nil {
		t.Fatal(err)
	}
	m.leave(t, atomicfile.PreviousSuffix, corruptSuffix, ".damaged")
	for _, path := range m.ofMachine() {
		m.put(t, path, "of the machine")
	}
	before, _ := m.split(t)

	// While the agent runs, an answer for another VM is refused.
	m.answer = doc("b-2")
	if l := m.load(t, c); !l.Cached || l.Why == nil || c.Effective().Settings.AgentID != "a-1" {
		t.Errorf("got %+v as %s; want the answer refused", l, c.Effective().Settings.AgentID)
	}

	// A plan only says what would be done.
	files := len(m.tree(t))
	o := m.options()
	o.ReadOnly = true
	c, err = Open(m.dirs, o)
	if err != nil {
		t.Fatal(err)
	}
	l := m.load(t, c)
	if l.Foreign != "a-1" || l.NotCached != nil || l.Wrote != m.settingsFile() || len(m.tree(t)) != files {
		t.Errorf("a plan gave %+v", l)
	}

	// At a start it means that this is a clone. The second time, there is something in the place for what is set aside.
	for range 2 {
		m.answer = doc("b-2")
		c = m.open(t)
		l := m.load(t, c)
		e := c.Effective()
		if l.Foreign != "a-1" || l.NotCached != nil || e.Settings.AgentID != "b-2" {
			t.Fatalf("got %+v", l)
		}
		if e.TrustedCerts != "" || e.Bus.URLs[0].Reveal() != "nats://u:p@10.0.0.6:4222" || len(c.Disks()) != 0 ||
			mountedCID(c) != "" || c.HostsConfigured() {
			t.Errorf("the other agent's state is in force: %+v %v %q", e, c.Disks(), mountedCID(c))
		}
		if inPlace, aside := m.split(t); len(inPlace) > 0 || aside != len(before) {
			t.Errorf("%d of %d files are set aside; these are inherited: %q", aside, len(before), inPlace)
		}
		for _, path := range m.ofMachine() {
			if m.read(t, path) != "of the machine" {
				t.Errorf("%s changed", path)
			}
		}
		if l := m.load(t, m.open(t)); l.Foreign != "" {
			t.Error("the next start set something aside again")
		}
		m.answer = doc("a-1")
		m.load(t, m.open(t))
		m.leave(t, atomicfile.PreviousSuffix, corruptSuffix, ".damaged")
	}
}

// Contract S.14.
func TestFilesOfUpstreamAreTakenOverAndTightened(t *testing.T) {
	m := newMachine(t)
	m.put(t, m.settingsFile(), `{"agent_id":"a-1","vm":{"name":""},`+
		`"disks":{"system":"","ephemeral":null,"persistent":{},"raw_ephemeral":null},"mbus":"","networks":null}`)
	m.put(t, vcap.Place(m.dirs.Bosh()).UpdateSettings(),
		`{"blobstores":null,"disk_associations":[{"name":"n","cid":"vol-9"}],`+
			`"mbus":{"cert":{"ca":"","certificate":"","private_key":""},"urls":null},"trusted_certs":"PEM"}`)
	m.put(t, vcap.Place(m.dirs.Bosh()).DiskHints(), `{"vol-9": {"ID": "vol-9", "DeviceID": "", "VolumeID": "/dev/sdc",
 "Lun": "", "HostDeviceID": "", "Path": "/dev/sdc",
 "ISCSISettings": {"InitiatorName": "", "Username": "", "Target": "", "Password": ""},
 "FileSystemType": "xfs", "MountOptions": null, "Partitioner": ""}}`)
	m.put(t, m.dirs.ManagedDiskSettings(), "vol-9")
	m.put(t, m.dirs.AgentState(), `{"Linux":{"hosts_configured":true}}`)
	c := m.open(t)
	d := c.Disks()["vol-9"]
	if d.Hint.Path != "/dev/sdc" || d.FileSystem != "xfs" || mountedCID(c) != "vol-9" || !c.HostsConfigured() ||
		c.Effective().TrustedCerts != "PEM" {
		t.Errorf("got disk %+v, mounted %q, hosts %v", d, mountedCID(c), c.HostsConfigured())
	}
	if a := c.Effective().Associations; len(a) != 1 || a[0].CID != "vol-9" {
		t.Errorf("associations %v", a)
	}
	for _, file := range m.tree(t) {
		if info, err := os.Stat(filepath.Join(m.dirs.Base(), file)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v; want 0600", file, info.Mode(), err)
		}
	}
}

func TestReadOnlyLeavesEverythingAlone(t *testing.T) {
	m := newMachine(t)
	m.put(t, m.settingsFile(), "{ damaged")
	m.put(t, m.settingsFile()+atomicfile.PreviousSuffix, doc("a-1"))
	m.answer = doc("b-2", tmpfsOn)
	before := strings.Join(m.tree(t), " ")
	o := m.options()
	o.ReadOnly = true
	c, err := Open(m.dirs, o)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Present() {
		t.Error("the previous generation was not used")
	}
	if l := m.load(t, c); l.From != "HTTP http://metadata" || m.cleared != 0 || m.mounts != 0 {
		t.Errorf("got %+v, cleared %d times, mounts %d", l, m.cleared, m.mounts)
	}
	if got := strings.Join(m.tree(t), " "); got != before {
		t.Errorf("files changed from %s to %s", before, got)
	}
	if err := commit(t, c, `{"trusted_certs":"x"}`); !errors.Is(err, errReadOnly) {
		t.Errorf("update gave %v, want a refusal", err)
	}
}

func TestUpdateInTwoPhases(t *testing.T) {
	m := newMachine(t)
	m.answer = doc("a-1", `,"blobstore":{"provider":"dav","options":{"a":1}}`)
	c := m.open(t)
	m.load(t, c)
	p := c.Preview(update(t, `{"mbus":{"urls":["nats://new:4222"],`+
		`"cert":{"ca":"CA","certificate":"C","private_key":"K"}},"blobstores":[{"provider":"s3","options":{}}]}`))
	if p.Effective.Bus.URLs[0].Reveal() != "nats://new:4222" {
		t.Errorf("preview shows %+v", p.Effective)
	}
	if c.Effective().Bus.URLs[0].Reveal() == "nats://new:4222" ||
		atomicfile.Exists(vcap.Place(m.dirs.Bosh()).UpdateSettings()) {
		t.Error("a preview had an effect")
	}
	m.answer = doc("a-1", `,"ntp":["t"]`)
	m.load(t, c)
	if err := p.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := commit(t, c, `{"trusted_certs":"x"}`); err != nil {
		t.Fatal(err)
	}
	effective := map[string]settings.Effective{"in force": c.Effective(), "after a restart": m.open(t).Effective()}
	for name, e := range effective {
		if e.TrustedCerts != "x" || e.Bus.URLs[0].Reveal() != "nats://new:4222" || len(e.NTP) != 1 {
			t.Errorf("%s: %q %v, time servers %q of the settings loaded meanwhile", name, e.TrustedCerts, e.Bus.URLs, e.NTP)
		}
	}
}

func TestMapOfDisksIsTheCallersOwn(t *testing.T) {
	m := newMachine(t)
	m.answer = doc("a-1", `,"disks":{"persistent":{"d":{"path":"/dev/x"}}}`)
	c := m.open(t)
	m.load(t, c)
	delete(c.Disks(), "d")
	if len(c.Disks()) != 1 {
		t.Error("a caller changed the known disks")
	}
}
