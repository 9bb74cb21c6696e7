package action

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cambium/internal/blob"
)

// zone is a blobstore with records of any version, and a hosts file that takes them.
type zone struct {
	records int
	broken  uint64                   // a version that cannot be fetched
	hold    map[uint64]chan struct{} // versions whose download waits

	mu      sync.Mutex
	fetched []uint64
}

func (z *zone) document(version uint64) []byte {
	records := make([][2]string, z.records)
	for i := range records {
		records[i] = [2]string{"10.0.0.1", fmt.Sprintf("%d.bosh", i)}
	}
	data, _ := json.Marshal(map[string]any{"version": version, "records": records}) // always encodes
	return data
}

func (z *zone) Open(_ context.Context, ref blob.Ref) (io.ReadCloser, error) {
	var version uint64
	if _, err := fmt.Sscan(ref.ID, &version); err != nil {
		return nil, err
	}
	z.mu.Lock()
	z.fetched = append(z.fetched, version)
	z.mu.Unlock()
	if wait := z.hold[version]; wait != nil {
		<-wait
	}
	if version == z.broken {
		return nil, errors.New("no such blob")
	}
	return io.NopCloser(bytes.NewReader(z.document(version))), nil
}

func (z *zone) WriteHosts(context.Context, [][2]string) error { return nil }

// asker asks for versions, and collects the replies.
type asker struct {
	*DNS
	t       *testing.T
	replies sync.Map
	group   sync.WaitGroup
}

func newAsker(t *testing.T, z *zone) *asker {
	return &asker{t: t, DNS: &DNS{Blobs: z, Hosts: z, Records: filepath.Join(t.TempDir(), "records.json"),
		GID: os.Getgid()}}
}

func (a *asker) ask(version uint64) {
	sum := sha256.Sum256(nil)
	a.group.Go(func() {
		reply, err := a.sync(a.t.Context(), fmt.Sprint(version), "sha256:"+hex.EncodeToString(sum[:]), version)
		if err != nil {
			reply = err.Error()
		}
		a.replies.Store(version, reply)
	})
	synctest.Wait()
}

func (a *asker) expect(version uint64, want string) {
	a.t.Helper()
	if got, _ := a.replies.Load(version); got != want {
		a.t.Errorf("version %d: %v, want %q", version, got, want)
	}
}

// While one version is fetched, others are asked for: of them only the latest is fetched, and it answers for all.
func TestSupersededRecordsAreNotFetched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{hold: map[uint64]chan struct{}{4: make(chan struct{})}}
		a := newAsker(t, z)
		for _, version := range []uint64{4, 5, 7, 6} {
			a.ask(version)
		}
		close(z.hold[4])
		a.group.Wait()
		a.ask(7) // which it has
		a.ask(5)
		if !slices.Equal(z.fetched, []uint64{4, 7}) {
			t.Errorf("fetched %v, want 4 and 7", z.fetched)
		}
		for _, version := range []uint64{4, 5, 6, 7} {
			a.expect(version, synced)
		}
	})
}

// If the latest cannot be had, the one before it is fetched.
func TestRecordsThatCannotBeFetchedSupersedeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := &zone{broken: 6, hold: map[uint64]chan struct{}{4: make(chan struct{})}}
		a := newAsker(t, z)
		for _, version := range []uint64{4, 5, 6} {
			a.ask(version)
		}
		close(z.hold[4])
		a.group.Wait()
		if !slices.Equal(z.fetched, []uint64{4, 6, 5}) {
			t.Errorf("fetched %v, want 4, 6 and 5", z.fetched)
		}
		a.expect(5, synced)
		a.expect(6, "sync dns: no such blob")
	})
}

// Large deployments fetch within two seconds, small ones at once.
func TestOnlyManyRecordsAreSpread(t *testing.T) {
	for _, c := range []struct {
		records int
		waits   bool
	}{{0, false}, {manyRecords - 1, false}, {manyRecords, true}} {
		synctest.Test(t, func(t *testing.T) {
			z := &zone{records: c.records}
			a := newAsker(t, z)
			a.ask(1)
			a.group.Wait() // what it fetches first is never awaited: it does not know how much that is
			begin := time.Now()
			a.ask(2)
			if waits := len(z.fetched) == 1; waits != c.waits {
				t.Errorf("%d records: waits %v, want %v", c.records, waits, c.waits)
			}
			// A later version that is asked for meanwhile is the only one that is fetched.
			a.ask(3)
			a.group.Wait()
			if took := time.Since(begin); took > spread || c.waits == (took == 0) {
				t.Errorf("%d records: fetched after %v", c.records, took)
			}
			if c.waits && !slices.Equal(z.fetched, []uint64{1, 3}) {
				t.Errorf("fetched %v, want 1 and 3", z.fetched)
			}
			a.expect(3, synced)
		})
	}
}
