package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/secret"
	"cambium/internal/vcap"
	"cambium/settings"
)

// TestSIGKILLAtAnyMoment kills a process that changes the state as fast as it can. The next process must always find a
// complete state: the same round in settings and update, or an update that is one round older.
func TestSIGKILLAtAnyMoment(t *testing.T) {
	if base := os.Getenv("STORE_KILL_BASE"); base != "" {
		changeUntilKilled(t, base)
		return
	}
	base := t.TempDir()
	found := 0
	for range 12 {
		child := exec.Command(os.Args[0], "-test.run", "^TestSIGKILLAtAnyMoment$")
		child.Env = append(os.Environ(), "STORE_KILL_BASE="+base)
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		if found == 0 {
			eventually.Nil(t, "the first settings of a child", func() error {
				_, err := os.Stat(filepath.Join(base, "bosh", "settings.json"))
				return err
			})
		}
		// The moment is random, nothing else is waited for.
		time.Sleep(100*time.Millisecond + rand.N(200*time.Millisecond))
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = child.Wait() // it was killed

		m := newMachine(t)
		m.dirs = vcap.New(base)
		c := m.open(t)
		if !c.Present() {
			continue // killed before the first round
		}
		found++
		e := c.Effective()
		if len(e.NTP) != 1 || e.TrustedCerts != "" && e.TrustedCerts > e.NTP[0] {
			t.Fatalf("settings of round %v with an update of round %q", e.NTP, e.TrustedCerts)
		}
		if d, known := c.Disks()["d"]; known && d.Hint.Path == "" {
			t.Fatalf("the record of a disk is %+v", d)
		}
		if got := m.warnings(); len(got) != 0 {
			t.Fatalf("a killed process left damage: %q", got)
		}
		if stale := m.stale(t, c); stale != "" {
			t.Fatalf("%s was left behind", stale)
		}
	}
	if found == 0 {
		t.Error("no process lived long enough to write anything")
	}
}

func changeUntilKilled(t *testing.T, base string) {
	round := ""
	c, err := Open(vcap.New(base), Options{
		Fetch: func(context.Context) (Fetched, error) {
			return Fetched{Raw: secret.NewJSON(document64K(round)), From: "test"}, nil
		},
		MountTmpfs: func(context.Context, string) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	start := 0
	if c.Present() {
		if start, err = strconv.Atoi(c.Effective().NTP[0]); err != nil { // decimal: Sscan takes 00000020 for octal
			t.Fatal(err)
		}
	}
	// An end of its own, should its killer die first.
	for n, begin := start+1, time.Now(); time.Since(begin) < time.Minute; n++ {
		round = fmt.Sprintf("%08d", n)
		if l, err := c.Load(t.Context()); err != nil || l.NotCached != nil {
			t.Fatal(err, l.NotCached)
		}
		update, _ := settings.DecodeUpdate(round, secret.NewJSON([]byte(`{"trusted_certs":"`+round+`"}`)))
		if err := c.Preview(update).Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := c.PutHint("d", settings.DiskHint{Path: filepath.Join("/dev", round)}); err != nil {
			t.Fatal(err)
		}
		if err := c.SetManagedCID(round); err != nil {
			t.Fatal(err)
		}
	}
}
