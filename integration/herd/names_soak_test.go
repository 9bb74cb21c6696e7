//go:build soak

package herd

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cambium/internal/testca"
)

// zoneAgents is the number of agents that a broadcast of DNS records reaches.
const zoneAgents = 1000

// broadcast holds the cost of a new version of the DNS records.
type broadcast struct {
	What          string
	Records       int
	Bytes         int64 // of the document
	Sent          int64 // by the blobstore
	Fetches, Peak int   // downloads, and connections at a time
	Seconds       float64
}

// zone is the Director's blobstore with versions of the DNS records.
type zone struct {
	t      *testing.T
	server *httptest.Server
	ca     *testca.CA

	mu        sync.Mutex // guards the fields below
	documents map[string][]byte
	open      int // connections
	now       broadcast
}

func newZone(t *testing.T) *zone {
	t.Helper()
	z := &zone{t: t, documents: map[string][]byte{}, ca: must[*testca.CA](t)(testca.New("blobstore-ca"))}
	z.server = httptest.NewUnstartedServer(z)
	pair := must[testca.Pair](t)(z.ca.Server("127.0.0.1"))
	z.server.TLS = &tls.Config{MinVersion: tls.VersionTLS12,
		Certificates: []tls.Certificate{must[tls.Certificate](t)(pair.TLS())}}
	z.server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		z.mu.Lock()
		defer z.mu.Unlock()
		switch state {
		case http.StateNew:
			z.open++
			z.now.Peak = max(z.now.Peak, z.open)
		case http.StateClosed:
			z.open--
		}
	}
	z.server.Config.ErrorLog = log.New(io.Discard, "", 0) // agents of a busy machine give up handshakes and come again
	z.server.StartTLS()
	t.Cleanup(z.server.Close)
	return z
}

// ServeHTTP implements http.Handler.
func (z *zone) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	z.mu.Lock()
	document := z.documents[path.Base(r.URL.Path)]
	z.now.Fetches++
	z.mu.Unlock()
	if document == nil {
		http.NotFound(w, r)
		return
	}
	// The reader sees each connection once, as one of many machines does.
	w.Header().Set("Connection", "close")
	n, err := w.Write(document)
	if err != nil {
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.now.Sent += int64(n)
}

// publish makes a version as a Director writes it.
func (z *zone) publish(version, instances int) (arguments []any, bytes int64) {
	z.t.Helper()
	var doc struct {
		Version int        `json:"version"`
		Records [][]string `json:"records"`
		Keys    []string   `json:"record_keys"`
		Infos   [][]any    `json:"record_infos"`
	}
	doc.Version = version
	doc.Keys = []string{"id", "num_id", "instance_group", "group_ids", "az", "az_id", "network", "network_id",
		"deployment",
		"ip", "domain", "agent_id", "instance_index"}
	for i := range instances {
		address := fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&0xff, i&0xff)
		id := fmt.Sprintf("5f1e0b52-c7a4-4c7e-9a35-%012d", i)
		doc.Records = append(doc.Records, []string{address, id + ".diego-cell.default.cf.bosh"})
		doc.Infos = append(doc.Infos, []any{id, strconv.Itoa(i), "diego-cell", []string{"12", "13"}, "z1", "1", "default",
			"2",
			"cf", address, "bosh", "0b52c7a4-" + id, i})
	}
	data := must[[]byte](z.t)(json.Marshal(doc))
	name := fmt.Sprintf("records-%d", version)
	z.mu.Lock()
	defer z.mu.Unlock()
	z.documents[name] = data
	sum := sha256.Sum256(data)
	return []any{name, "sha256:" + hex.EncodeToString(sum[:]), version}, int64(len(data))
}

// broadcast publishes versions, asks all agents for each of them, all at once, and returns what the last one cost.
func (z *zone) broadcast(d *director, all []string, what string, instances int, versions ...int) broadcast {
	z.t.Helper()
	z.mu.Lock()
	z.now = broadcast{What: what, Records: instances, Peak: z.open}
	z.mu.Unlock()
	begin := time.Now()
	token, replies, forget := d.inbox(len(all) * len(versions))
	defer forget()
	var arguments []any
	for _, version := range versions {
		arguments, z.now.Bytes = z.publish(version, instances)
		for _, id := range all {
			d.send(id, token, "sync_dns", arguments...)
		}
	}
	have := map[string]int{}
	collect(z.t, replies, have, len(all), len(versions))
	// A Director that gets no answer within ten seconds asks again, for the latest version.
	for deadline := time.Now().Add(patience); len(have) < len(all); {
		if time.Now().After(deadline) {
			z.t.Fatalf("%d of %d agents have the records", len(have), len(all))
		}
		again, more, drop := d.inbox(len(all))
		for _, id := range all {
			if have[id] == 0 {
				d.send(id, again, "sync_dns", arguments...)
			}
		}
		collect(z.t, more, have, len(all), 1)
		drop()
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.now.Seconds = time.Since(begin).Seconds()
	z.t.Logf("%+v", z.now)
	return z.now
}

// collect notes who answered, for ten seconds at most; each agent answers so many times.
func collect(t *testing.T, replies <-chan answer, have map[string]int, agents, times int) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for answers := 0; answers < agents*times && (times > 1 || len(have) < agents); answers++ {
		select {
		case a := <-replies:
			if string(a.data) != `{"value":"synced"}` {
				t.Fatalf("sync_dns of %s: %s", a.agent, a.data)
			}
			have[a.agent]++
		case <-deadline:
			return
		}
	}
}

// TestSoakNames broadcasts DNS records to 1,000 agents, and adds what that cost to the page.
func TestSoakNames(t *testing.T) {
	// In memory: the records of 1,000 machines are on as many disks, not on one.
	dir := must[string](t)(os.MkdirTemp("/dev/shm", "herd"))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h, z := newHerd(t, zoneAgents, 2, bySubject), newZone(t)
	all := ids(h.members)
	h.cluster.setUsers(all)
	h.flocks.order(func(int) order {
		return order{Names: &names{Endpoint: z.server.URL, CA: string(z.ca.PEM), Dir: dir}}
	})
	h.up()
	h.cluster.joined()
	for batch := range slices.Chunk(h.members, 50) { // how a herd comes up is another test
		h.flocks.start(batch)
		h.director.pings(ids(batch), time.Now())
	}
	var costs []broadcast
	add := func(what string, fetches, instances int, versions ...int) {
		b := z.broadcast(h.director, all, what, instances, versions...)
		// An interrupted download is counted again.
		if fetches == 0 && b.Fetches > 0 || b.Fetches < fetches {
			t.Errorf("%s: %d downloads, want %d", what, b.Fetches, fetches)
		}
		costs = append(costs, b)
	}
	add("the first version, agents have none", zoneAgents, 999, 1)
	add("a new version, agents have 999 records: no delay", zoneAgents, 1000, 2)
	add("a new version, agents have 1,000: within two seconds", zoneAgents, 1000, 3)
	add("three versions in a row", zoneAgents, 1000, 4, 5, 6)
	add("the version that they have", 0, 1000, 6)
	if t.Failed() {
		return
	}
	r := load(t)
	r.Names, r.NamesOn = costs, strings.Join([]string{time.Now().UTC().Format(time.DateOnly), commit(t), load1()}, ", ")
	save(t, r)
}
