package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"cambium/internal/atomicfile"
	"cambium/internal/vcap"
	"cambium/settings"
)

type crash struct{}

// run calls work and stops it before its nth change to the disk, as a power cut would. It reports whether there were
// that many changes.
func run(n int, work func(step func(string))) (crashed bool, made []string) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(crash); !ok {
				panic(r)
			}
			crashed = true
		}
	}()
	work(func(what string) {
		if len(made) == n {
			panic(crash{})
		}
		made = append(made, what)
	})
	return false, made
}

// TestACrashBetweenAnyTwoChangesConverges stops several scenarios before each of their changes, restarts without a
// source, and expects one of the states before or after. Then it restarts with the source and expects the final state.
func TestACrashBetweenAnyTwoChangesConverges(t *testing.T) {
	const longer = `{"trusted_certs":"new","mbus":{"urls":["nats://new:4222"]}}`
	scenarios := map[string]struct {
		prepare func(t *testing.T, m *machine)
		work    func(t *testing.T, m *machine, c *Current)
		answer  string // the source during and after the scenario
		// state prints what must be consistent; want lists what may be found after the crash.
		allowed []string
		end     string
	}{
		"first load": {
			answer:  doc("a-1", `,"ntp":["1"]`),
			allowed: []string{" [] - 0 -", "a-1 [1] - 0 -"},
			end:     "a-1 [1] - 0 -",
		},
		"refresh": {
			prepare: func(t *testing.T, m *machine) { m.answer = doc("a-1", `,"ntp":["1"]`); m.load(t, m.open(t)) },
			answer:  doc("a-1", `,"ntp":["2"]`),
			allowed: []string{"a-1 [1] - 0 -", "a-1 [2] - 0 -"},
			end:     "a-1 [2] - 0 -",
		},
		"update and disk": {
			prepare: func(t *testing.T, m *machine) { m.answer = doc("a-1"); m.load(t, m.open(t)) },
			answer:  doc("a-1"),
			work: func(t *testing.T, _ *machine, c *Current) {
				err := commit(t, c, longer)
				if err := errors.Join(err, c.PutHint("d-1", settings.DiskHint{Path: "/dev/x"}),
					c.SetManagedCID("d-1")); err != nil {
					t.Fatal(err)
				}
			},
			allowed: []string{"a-1 [] - 0 -", "a-1 [] new 0 -", "a-1 [] new 1 -", "a-1 [] new 1 d-1"},
		},
		"unmount": {
			prepare: func(t *testing.T, m *machine) {
				m.answer = doc("a-1")
				c := m.open(t)
				m.load(t, c)
				if err := errors.Join(c.SetManagedCID("d-0"), c.SetManagedCID("d-1")); err != nil {
					t.Fatal(err)
				}
			},
			answer: doc("a-1"),
			work: func(t *testing.T, _ *machine, c *Current) {
				if err := c.ClearManagedCID(); err != nil {
					t.Fatal(err)
				}
			},
			allowed: []string{"a-1 [] - 0 d-1", "a-1 [] - 0 -"},
		},
		"to tmpfs": {
			prepare: withEverything(""),
			answer:  doc("a-1", tmpfsOn, `,"ntp":["2"]`),
			allowed: []string{"a-1 [] new 1 d-1", "a-1 [2] new 1 d-1"},
			end:     "a-1 [2] new 1 d-1",
		},
		"from tmpfs": {
			prepare: withEverything(tmpfsOn),
			answer:  doc("a-1", `,"ntp":["2"]`),
			allowed: []string{"a-1 [] new 1 d-1", "a-1 [2] new 1 d-1"},
			end:     "a-1 [2] new 1 d-1",
		},
		"clone": {
			prepare: func(t *testing.T, m *machine) { withEverything("")(t, m); m.leave(t, ".damaged") },
			answer:  doc("b-2"),
			end:     "b-2 [] - 0 -",
		},
		"clone of a tmpfs machine": {
			prepare: func(t *testing.T, m *machine) { withEverything(tmpfsOn)(t, m); m.leave(t, ".damaged") },
			answer:  doc("b-2", tmpfsOn),
			end:     "b-2 [] - 0 -",
		},
		"damaged files": {
			prepare: func(t *testing.T, m *machine) {
				withEverything("")(t, m)
				m.answer = doc("a-1", `,"ntp":["1"]`)
				m.load(t, m.open(t))
				m.put(t, m.settingsFile(), "{")
			},
			answer:  doc("a-1"),
			allowed: []string{"a-1 [] new 1 d-1"},
			end:     "a-1 [] new 1 d-1",
		},
	}
	for name, j := range scenarios {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it mostly waits for the disk
			for n := 0; ; n++ {
				m := newMachine(t)
				if j.prepare != nil {
					j.prepare(t, m)
				}
				m.answer = j.answer
				crashed, made := run(n, func(step func(string)) {
					c, err := open(m.dirs, m.options(), step)
					if err != nil {
						t.Fatal(err)
					}
					m.load(t, c)
					if j.work != nil {
						j.work(t, m, c)
					}
				})
				m.failure = errors.New("away")
				standalone := m.open(t)
				got := describe(standalone)
				if stale := m.stale(t, standalone); stale != "" && standalone.Present() {
					t.Fatalf("crash after %q, and %s stays when no source answers", made, stale)
				}
				if j.allowed != nil && !contains(j.allowed, got) {
					t.Fatalf("crash after %q left %q, want one of %q", made, got, j.allowed)
				}
				m.failure = nil
				c := m.open(t)
				m.load(t, c)
				if got := describe(c); j.end != "" && got != j.end {
					t.Fatalf("crash after %q ended in %q, want %q", made, got, j.end)
				}
				if stale := m.stale(t, c); stale != "" {
					t.Fatalf("crash after %q left %s behind", made, stale)
				}
				if inPlace, _ := m.split(t); len(inPlace) > 0 && strings.HasPrefix(j.end, "b-2") {
					t.Fatalf("crash after %q: another agent id inherits %q", made, inPlace)
				}
				if !crashed {
					if n == 0 {
						t.Fatal("the scenario made no change")
					}
					return
				}
			}
		})
	}
}

func withEverything(more string) func(*testing.T, *machine) {
	return func(t *testing.T, m *machine) {
		t.Helper()
		m.answer = doc("a-1", more)
		c := m.open(t)
		m.load(t, c)
		err := commit(t, c, `{"trusted_certs":"new"}`)
		if err := errors.Join(err, c.PutHint("d-1", settings.DiskHint{Path: "/dev/x"}), c.SetManagedCID("d-1")); err != nil {
			t.Fatal(err)
		}
	}
}

func describe(c *Current) string {
	dash := func(s string) string {
		if s == "" {
			return "-"
		}
		return s
	}
	e := c.Effective()
	return fmt.Sprintf("%s %v %s %d %s", e.Settings.AgentID, e.NTP, dash(e.TrustedCerts), len(c.Disks()),
		dash(mountedCID(c)))
}

func contains(all []string, s string) bool {
	for _, a := range all {
		if a == s {
			return true
		}
	}
	return false
}

// stale lists settings files in the directory that is not in use, and temporary files anywhere.
func (m *machine) stale(t *testing.T, c *Current) string {
	t.Helper()
	for _, place := range m.dirs.Places() {
		for _, file := range moving {
			for _, path := range []string{file(place), file(place) + atomicfile.PreviousSuffix} {
				if place != c.Place() && atomicfile.Exists(path) {
					return path
				}
			}
		}
	}
	for _, file := range m.tree(t) {
		if strings.Contains(filepath.Base(file), "-tmp-") {
			return file
		}
	}
	return ""
}

func TestConcurrentUseIsConsistent(t *testing.T) {
	m := newMachine(t)
	m.answer = doc("a-1", `,"networks":{"n":{"dns":["10.0.0.1"]}}`)
	c := m.open(t)
	m.load(t, c)
	var all sync.WaitGroup
	for i := range 8 {
		cid := fmt.Sprintf("d-%d", i)
		all.Go(func() {
			for range 5 {
				if _, err := c.Load(t.Context()); err != nil {
					t.Error(err)
				}
				if err := c.PutHint(cid, settings.DiskHint{Path: "/dev/" + cid}); err != nil {
					t.Error(err)
				}
				if err := commit(t, c, `{"trusted_certs":"`+cid+`"}`); err != nil {
					t.Error(err)
				}
				if err := c.SetManagedCID(cid); err != nil {
					t.Error(err)
				}
				if e := c.Effective(); e.Settings.AgentID != "a-1" || len(e.Settings.Networks) != 1 {
					t.Errorf("a reader saw %+v", e)
				}
			}
		})
	}
	all.Wait()
	if got := len(c.Disks()); got != 8 {
		t.Errorf("%d disks are recorded, want every one of 8", got)
	}
	if before, after := describe(c), describe(m.open(t)); before != after {
		t.Errorf("memory has %q, the disk %q", before, after)
	}
}

func TestAFullDiskLeavesTheSettingsInForceAndTheSourceAlone(t *testing.T) {
	m := newMachine(t)
	m.answer = doc("a-1")
	c := m.open(t)
	// A directory in the way of the file fails the write also for root.
	if err := os.MkdirAll(filepath.Join(m.settingsFile(), "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	l := m.load(t, c)
	if l.NotCached == nil || m.cleared != 0 || c.Effective().Settings.AgentID != "a-1" {
		t.Errorf("got %+v, cleared %d times; want settings in force and the source not cleared", l, m.cleared)
	}
	if err := os.RemoveAll(m.settingsFile()); err != nil {
		t.Fatal(err)
	}
	if l := m.load(t, c); l.NotCached != nil || m.cleared != 1 ||
		!atomicfile.Exists(vcap.Place(m.dirs.Bosh()).Settings()) {
		t.Errorf("the next load gave %+v, cleared %d times; want it cached and cleared", l, m.cleared)
	}
}
