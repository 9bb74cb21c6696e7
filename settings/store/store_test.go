package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"cambium/internal/atomicfile"
	"cambium/internal/secret"
	"cambium/internal/vcap"
	"cambium/settings"
)

// machine is a base directory and a source whose answers the test chooses.
type machine struct {
	dirs    vcap.Dirs
	answer  string
	failure error
	cleared int
	mounts  int
	log     *logtest.Hook
	entry   *logrus.Entry
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	logger, hook := logtest.NewNullLogger()
	m := &machine{dirs: vcap.New(t.TempDir()), log: hook, entry: logrus.NewEntry(logger)}
	return m
}

func (m *machine) options() Options {
	return Options{
		Log: m.entry,
		Fetch: func(context.Context) (Fetched, error) {
			if m.failure != nil {
				return Fetched{}, m.failure
			}
			return Fetched{
				Raw: secret.NewJSON([]byte(m.answer)), From: "HTTP http://metadata",
				Clear: func(context.Context) error { m.cleared++; return nil },
			}, nil
		},
		MountTmpfs: func(_ context.Context, path string) error {
			m.mounts++
			info, err := os.Stat(path)
			if err == nil && info.Mode().Perm() != 0o700 {
				return fmt.Errorf("mount point has mode %v", info.Mode())
			}
			return err
		},
	}
}

func (m *machine) open(t *testing.T) *Current {
	t.Helper()
	c, err := Open(m.dirs, m.options())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (m *machine) load(t *testing.T, c *Current) Loaded {
	t.Helper()
	l, err := c.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (m *machine) warnings() (all []string) {
	for _, e := range m.log.AllEntries() {
		all = append(all, e.Message)
	}
	return all
}

// tree lists the files below the base directory.
func (m *machine) tree(t *testing.T) (all []string) {
	t.Helper()
	err := filepath.WalkDir(m.dirs.Base(), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(m.dirs.Base(), path)
			all = append(all, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (m *machine) put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

var settingsFiles = []string{"settings.json", "update_settings.json", "persistent_disk_hints.json"}

func (m *machine) settingsFile() string { return vcap.Place(m.dirs.Bosh()).Settings() }

func doc(id string, more ...string) string {
	return fmt.Sprintf(`{"agent_id":%q,"mbus":"nats://u:p@10.0.0.6:4222"%s}`, id, strings.Join(more, ""))
}

func update(t *testing.T, raw string) settings.Update {
	t.Helper()
	u, rep := settings.DecodeUpdate("update", secret.NewJSON([]byte(raw)))
	if err := rep.Err(); err != nil {
		t.Fatal(err)
	}
	return u
}

func commit(t *testing.T, c *Current, raw string) error {
	t.Helper()
	return c.Preview(update(t, raw)).Commit(t.Context())
}

// Contract S.7.
func TestSourceIsCachedAndCacheServesWhenItFails(t *testing.T) {
	m := newMachine(t)
	m.answer = doc("a-1", `,"extra":{"kept":[1,2]},"disks":{"persistent":{"d-1":{"lun":3}}}`)
	c := m.open(t)
	if c.Present() {
		t.Fatal("an empty directory has settings")
	}
	if l := m.load(t, c); l.Cached || l.From != "HTTP http://metadata" || m.cleared != 1 {
		t.Errorf("got %+v, cleared %d times; want the source's answer, cleared once", l, m.cleared)
	}
	info, err := os.Stat(m.settingsFile())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("settings.json: %v, %v; want mode 0600", info, err)
	}
	cached := m.read(t, m.settingsFile())
	for _, want := range []string{`"extra":{"kept":[1,2]}`, `{"lun":"3"}`, `"nats://u:p@10.0.0.6:4222"`} {
		if !strings.Contains(cached, want) {
			t.Errorf("cached copy lacks %s:\n%s", want, cached)
		}
	}

	m.failure = errors.New("metadata is away")
	reopened := m.open(t)
	if !reopened.Present() || reopened.Effective().Settings.AgentID != "a-1" {
		t.Fatal("the cached settings are not there after a restart")
	}
	l := m.load(t, reopened)
	if !l.Cached || !errors.Is(l.Why, m.failure) || m.cleared != 1 {
		t.Errorf("got %+v, cleared %d times; want the cache and the source's failure", l, m.cleared)
	}
	if got := reopened.Effective().Bus.URLs[0].Reveal(); got != "nats://u:p@10.0.0.6:4222" {
		t.Errorf("bus URL %q", got)
	}
	if !slices.Contains(m.warnings(), "sources failed; using the cached settings") {
		t.Errorf("log has %q, want a warning about the cache", m.warnings())
	}
	if l.Spent {
		t.Error("a failure counts as expected")
	}

	away := m.failure
	m.failure = fmt.Errorf("asked: %w", spent{away})
	before := len(m.warnings())
	l = m.load(t, m.open(t))
	if said := m.warnings()[before:]; !l.Cached || !l.Spent || !errors.Is(l.Why, away) ||
		!slices.Equal(said, []string{"using the cached settings"}) {
		t.Errorf("cleared source: got %+v and log %q, want the cache without a warning", l, said)
	}
}

type spent struct{ error }

func (s spent) Spent() bool   { return true }
func (s spent) Unwrap() error { return s.error }

func TestNothingToServeIsAnError(t *testing.T) {
	m := newMachine(t)
	m.failure = errors.New("metadata is away")
	_, err := m.open(t).Load(t.Context())
	if !errors.Is(err, ErrNoSettings) || !errors.Is(err, m.failure) {
		t.Errorf("got %v, want ErrNoSettings and the cause", err)
	}
}

// Contract S.8.
func TestUnusableAnswerLeavesTheCacheInForce(t *testing.T) {
	for name, answer := range map[string]string{
		"no agent id": `{"vm":{"name":"x"}}`,
		"not JSON":    `<html>`,
		"wrong type":  doc("a-1", `,"ntp":"a string"`),
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.answer = doc("a-1")
			c := m.open(t)
			m.load(t, c)
			before := m.read(t, m.settingsFile())
			m.answer = answer
			if l := m.load(t, c); !l.Cached || l.Why == nil || m.cleared != 1 {
				t.Errorf("got %+v, cleared %d times; want the cache", l, m.cleared)
			}
			if got := m.read(t, m.settingsFile()); got != before {
				t.Errorf("cache changed to %s", got)
			}
		})
	}
}

// planned returns the file that a read-only store would write.
func (m *machine) planned(t *testing.T) string {
	t.Helper()
	o := m.options()
	o.ReadOnly = true
	c, err := Open(m.dirs, o)
	if err != nil {
		t.Fatal(err)
	}
	return m.load(t, c).Wrote
}

func TestSecondLoadWritesNothing(t *testing.T) {
	m := newMachine(t)
	m.answer = doc("a-1")
	c := m.open(t)
	planned := m.planned(t)
	if loaded := m.load(t, c); loaded.Wrote != m.settingsFile() || planned != loaded.Wrote {
		t.Errorf("first load wrote %q, planned was %q; want %s", loaded.Wrote, planned, m.settingsFile())
	}
	before, err := os.Stat(m.settingsFile())
	if err != nil {
		t.Fatal(err)
	}
	for _, loaded := range []Loaded{m.load(t, c), m.load(t, m.open(t))} {
		if loaded.Wrote != "" || m.planned(t) != "" {
			t.Errorf("a second load wrote %q, and would again %q", loaded.Wrote, m.planned(t))
		}
	}
	after, err := os.Stat(m.settingsFile())
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) || atomicfile.Exists(m.settingsFile()+atomicfile.PreviousSuffix) {
		t.Errorf("an unchanged document was written again; tree is %v", m.tree(t))
	}
}

func TestWarningsAreLoggedOnce(t *testing.T) {
	m := newMachine(t)
	m.answer = doc("a-1", `,"networks":{"n":{"mac":"nonsense"}}`)
	c := m.open(t)
	for range 3 {
		m.load(t, c)
	}
	m.answer = doc("a-1", `,"env":{"bosh":{"parallel":0}}`)
	m.load(t, c)
	if got := strings.Join(m.warnings(), ","); strings.Count(got, "settings: warning") != 2 {
		t.Errorf("log has %s, want each warning once", got)
	}
}

func TestDamagedFilesGiveWayToTheirPreviousGeneration(t *testing.T) {
	for name, damage := range map[string]string{"truncated": `{"agent_id":"a-1`, "empty": "", "zeros": "\x00\x00\x00"} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.answer = doc("a-1", `,"ntp":["first"]`)
			c := m.open(t)
			m.load(t, c)
			m.answer = doc("a-1", `,"ntp":["second"]`)
			m.load(t, c)
			for _, u := range []string{`{"trusted_certs":"one"}`, `{"trusted_certs":"two"}`} {
				if err := commit(t, c, u); err != nil {
					t.Fatal(err)
				}
			}
			for _, cid := range []string{"d-1", "d-2"} {
				if err := errors.Join(c.PutHint(cid, settings.DiskHint{Path: "/dev/x"}), c.SetManagedCID(cid)); err != nil {
					t.Fatal(err)
				}
			}
			for _, file := range append(settingsFiles, "managed_disk_settings.json") {
				content := damage
				if file == "managed_disk_settings.json" {
					content = ""
				}
				m.put(t, filepath.Join(m.dirs.Bosh(), file), content)
			}
			m.failure = errors.New("away")
			for restart := range 3 {
				c = m.open(t)
				m.load(t, c)
				e := c.Effective()
				got := fmt.Sprintf("%v %s %d %s", e.NTP, e.TrustedCerts, len(c.Disks()), mountedCID(c))
				if want := "[first] one 1 damaged"; got != want {
					t.Errorf("restart %d: got %s, want the previous generation %s", restart, got, want)
				}
			}
			if !slices.Contains(m.warnings(), "file is damaged; using its previous generation") {
				t.Errorf("log has %q, want a warning", m.warnings())
			}
			// The next change must not push the damage over the good generation.
			if err := commit(t, c, `{"trusted_certs":"three"}`); err != nil {
				t.Fatal(err)
			}
			previous := vcap.Place(m.dirs.Bosh()).UpdateSettings() + atomicfile.PreviousSuffix
			if got := m.read(t, previous); !strings.Contains(got, "one") {
				t.Errorf("previous generation is %q", got)
			}
		})
	}
}

// mountedCID returns the CID of the disk on record, or "damaged".
func mountedCID(c *Current) string {
	cid, err := c.ManagedCID()
	if err != nil {
		return "damaged"
	}
	return cid
}

// TestDamagedRecordOfTheStore: a damaged record of the store's disk counts neither as another disk nor as none, until a
// new record is written.
func TestDamagedRecordOfTheStore(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "zeros": "\x00\x00\x00", "blank": " \n",
		"not text": "\xff\xfe", "two lines": "vol-1\nvol-2"} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			c := m.open(t)
			if err := errors.Join(c.SetManagedCID("vol-1"), c.SetManagedCID("vol-2")); err != nil {
				t.Fatal(err)
			}
			m.put(t, m.dirs.ManagedDiskSettings(), content)
			for range 2 {
				c = m.open(t)
				if cid, err := c.ManagedCID(); err == nil || cid != "" ||
					!strings.Contains(err.Error(), "managed_disk_settings.json is damaged") {
					t.Fatalf("ManagedCID = %q, %v; want an error", cid, err)
				}
			}
			if err := c.SetManagedCID("vol-3"); err != nil {
				t.Fatal(err)
			}
			if got := mountedCID(c) + mountedCID(m.open(t)); got != "vol-3vol-3" {
				t.Errorf("after a new record: %s", got)
			}
		})
	}
}

func TestDamageWithoutPreviousIsSetAside(t *testing.T) {
	m := newMachine(t)
	for _, file := range append(settingsFiles, "agent_state.json") {
		m.put(t, filepath.Join(m.dirs.Bosh(), file), "{")
	}
	m.answer = doc("a-1")
	c := m.open(t)
	if c.Present() {
		t.Error("a damaged file counts as settings")
	}
	m.load(t, c)
	if got := m.read(t, vcap.Place(m.dirs.Bosh()).UpdateSettings()+corruptSuffix); got != "{" {
		t.Errorf("the damaged file was not kept, got %q", got)
	}
	if got := CorruptFiles(m.dirs); !slices.Contains(got, vcap.Place(m.dirs.Bosh()).Settings()+corruptSuffix) {
		t.Errorf("set aside were %q, want settings.json", got)
	}
	if c.HostsConfigured() {
		t.Error("hosts are configured according to a damaged file")
	}
}
