package agent

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cambium/agent/action"
	"cambium/agent/task"
	"cambium/blobstore"
	"cambium/internal/blob"
	"cambium/internal/eventually"
	"cambium/internal/secret"
	"cambium/internal/testca"
	"cambium/internal/testnats"
	"cambium/internal/vcap"
	"cambium/jobs"
	"cambium/mbus"
	"cambium/mbus/httpsbus"
	"cambium/mbus/natsbus"
	"cambium/settings"
	"cambium/settings/store"
)

const agentID = "a-1"

// world is an agent on a real NATS server and a real HTTPS port, with a machine that only
// records what is done to it.
type world struct {
	t          testing.TB
	deployment *testnats.Deployment
	director   *testnats.Director
	dispatcher *Dispatcher
	tasks      *task.Tasks
	nats       *natsbus.Bus
	https      string
	client     *http.Client
	dirs       vcap.Dirs
	current    *store.Current
	machine    *machine
	audit      *audit
	stop       context.CancelFunc // the agent
	table      action.Table
}

// machine records.
type machine struct {
	mu       sync.Mutex
	did      []string
	migrate  chan struct{} // migrate_disk waits for it when it is not nil
	slow     chan struct{} // the supervisor waits for it when it is not nil
	spec     jobs.Spec
	specErr  error
	blobs    map[string]string
	supposed []jobs.Process
}

func (m *machine) record(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.did = append(m.did, fmt.Sprintf(format, args...))
}

func (m *machine) recordedCalls() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	did := m.did
	m.did = nil
	return did
}

func (m *machine) requireKnown(cid string) error {
	if !strings.HasPrefix(cid, "disk-") {
		return fmt.Errorf("no disk has the CID %s", cid)
	}
	return nil
}

func (m *machine) Add(_ context.Context, cid string, h settings.DiskHint) error {
	m.record("add %s %s", cid, h.Path)
	return nil
}

func (m *machine) Remove(_ context.Context, cid string) error {
	m.record("remove %s", cid)
	return nil
}

func (m *machine) Mount(_ context.Context, cid string) error {
	m.record("mount %s", cid)
	return m.requireKnown(cid)
}

func (m *machine) Unmount(_ context.Context, cid string) (string, error) {
	m.record("unmount %s", cid)
	return "unmounted " + cid, m.requireKnown(cid)
}

func (m *machine) Migrate(ctx context.Context, _, _ string) error {
	m.record("migrate")
	m.mu.Lock()
	wait := m.migrate
	m.mu.Unlock()
	if wait == nil {
		return nil
	}
	select {
	case <-wait:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (m *machine) List(context.Context) ([]string, error) { return []string{"disk-1"}, nil }

func (m *machine) AddDynamic(_ context.Context, cid string, h settings.DiskHint) error {
	m.record("add dynamic %s %s", cid, h.VolumeID)
	return nil
}

func (m *machine) RemoveDynamic(_ context.Context, cid string) error {
	m.record("remove dynamic %s", cid)
	return nil
}

func (m *machine) Associate(_ context.Context, list []settings.DiskAssociation) error {
	for _, a := range list {
		if err := m.requireKnown(a.CID); err != nil {
			return err
		}
	}
	m.record("associate %v", list)
	return nil
}

func (m *machine) Trust(_ context.Context, pem string) error {
	m.record("trust %q", pem)
	if pem == "broken" {
		return errors.New("not a certificate")
	}
	return nil
}

func (m *machine) Prepare(b settings.Blobstore) (func(), error) {
	if b.Provider == "broken" {
		return nil, errors.New("no such provider")
	}
	return func() { m.record("blobstore %s", b.Provider) }, nil
}

func (m *machine) Spec() (jobs.Spec, error) { return m.spec, m.specErr }

func (m *machine) Observe(context.Context) (string, []jobs.Process, error) {
	m.mu.Lock()
	wait := m.slow
	m.mu.Unlock()
	if wait != nil {
		<-wait // not even the context helps
	}
	return "running", m.supposed, nil
}

func (m *machine) vitals(context.Context) (any, error) {
	return json.RawMessage(`{"cpu":{"sys":"1.0","user":"3.2","wait":"0.0"},` +
		`"disk":{"system":{"inode_percent":"34","percent":"41"}},"load":["0.12","0.30","0.25"],` +
		`"mem":{"kb":"812344","percent":"10"},"swap":{"kb":"0","percent":"0"},"uptime":{"secs":86400}}`), nil
}

func (m *machine) Open(_ context.Context, ref blob.Ref) (io.ReadCloser, error) {
	name := ref.ID
	if !ref.SignedURL.Empty() {
		name = ref.SignedURL.Reveal()
	}
	m.record("fetch %s", name)
	content, ok := m.blobs[name]
	if !ok {
		return nil, errors.New("no such blob")
	}
	return ref.Digest.Verify(io.NopCloser(strings.NewReader(content)))
}

func (m *machine) WriteChecked(id string, content io.Reader, digest blob.Digest) error {
	verified, err := digest.Verify(io.NopCloser(content))
	if err != nil {
		return err
	}
	data, err := io.ReadAll(verified)
	if err != nil {
		return err
	}
	m.record("blob %s %q", id, data)
	return nil
}

func (m *machine) WriteHosts(_ context.Context, records [][2]string) error {
	m.record("hosts %v", records)
	return nil
}

func (m *machine) Flush(_ context.Context, a netip.Addr) error {
	m.record("flush %s", a)
	return errors.New("not supported")
}

func (m *machine) PowerOff(context.Context) error {
	m.record("off")
	return nil
}

// users are accounts of `bosh ssh`.
type users struct{ *machine }

func (u users) Create(_ context.Context, name, key string) error {
	if name == "vcap" {
		return errors.New("user vcap exists and is not an ephemeral ssh user")
	}
	u.record("user %s %s", name, key)
	return nil
}

func (u users) Remove(_ context.Context, match func(string) bool) error {
	for _, name := range []string{"vcap", "bosh_ab12", "bosh_cd34"} {
		if match(name) {
			u.record("remove user %s", name)
		}
	}
	return nil
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// newWorld boots an agent; extra rows join its table.
func newWorld(t testing.TB, extra action.Table) *world {
	t.Helper()
	w := &world{t: t, deployment: testnats.Start(t, nil, agentID), dirs: vcap.New(t.TempDir()),
		machine: &machine{blobs: map[string]string{}}, audit: &audit{}}
	for _, dir := range []string{w.dirs.Bosh(), w.dirs.Tmp(), w.dirs.Blobs(), filepath.Join(w.dirs.Base(), "etc/ssh")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(w.dirs.Base(), "etc/ssh/ssh_host_rsa_key.pub"), "ssh-rsa HOST root@vm\n")
	w.machine.spec = must[jobs.Spec](t)((&jobs.SpecFile{Dirs: w.dirs}).Spec())
	document := fmt.Sprintf(`{"agent_id":%q,"vm":{"name":"vm-1"},"mbus":%q,"blobstore":{"provider":"local","options":{}},
		"networks":{"b":{"type":"manual","ip":"10.0.0.5","netmask":"255.255.255.0","default":["gateway"]},
			"a":{"type":"manual","ip":"10.1.0.5","netmask":"255.255.255.0"}}}`,
		agentID, w.deployment.URL().Reveal())
	w.current = must[*store.Current](t)(store.Open(w.dirs,
		store.Options{Log: quiet(), Fetch: func(context.Context) (store.Fetched, error) {
			return store.Fetched{Raw: secret.NewJSON([]byte(document)), From: "test"}, nil
		}}))
	must[store.Loaded](t)(w.current.Load(t.Context()))

	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	w.dispatcher = NewDispatcher(ctx, quiet())
	w.tasks = must[*task.Tasks](t)(task.Open(ctx, task.Options{Path: filepath.Join(w.dirs.Bosh(), "tasks"),
		Log: quiet()}))
	w.nats = must[*natsbus.Bus](t)(natsbus.New(natsbus.Options{AgentID: agentID, Handler: w.dispatcher, Audit: w.audit,
		Log: quiet(), Identity: w.identity()}))
	listening := make(chan struct{})
	https := must[*httpsbus.Bus](t)(httpsbus.New(httpsbus.Options{URL: secret.NewURL("https://mbus:s3cret@127.0.0.1:0"),
		KeyFile: filepath.Join(w.dirs.Bosh(), "https.pem"),
		Handler: w.dispatcher, Blobs: &blobstore.Dir{Path: w.dirs.Blobs()}, Audit: w.audit, Log: quiet(),
		OnListen: func(string) { close(listening) }}))
	var group sync.WaitGroup
	group.Go(func() { _ = w.nats.Run(ctx) })
	group.Go(func() { _ = https.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		group.Wait()
		w.dispatcher.Wait()
	})
	<-listening
	w.https = "https://" + https.Address().String() + "/agent"
	w.client = &http.Client{Timeout: 30 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 64}}
	t.Cleanup(w.client.CloseIdleConnections)
	eventually.True(t, "connected", w.nats.Connected)
	w.director = w.deployment.Director()
	w.table = action.Actions(w.deps())
	maps.Copy(w.table, extra)
	return w
}

// identity returns the agent's certificate, key and CA for NATS.
func (w *world) identity() natsbus.Identity {
	pair := w.deployment.Client(testca.AgentName(agentID))
	return natsbus.Identity{URLs: []secret.URL{w.deployment.URL()}, CA: string(w.deployment.CA.PEM),
		Certificate: string(pair.Certificate), PrivateKey: secret.New(string(pair.PrivateKey))}
}

func (w *world) deps() action.Deps {
	return action.Deps{
		Tasks: w.tasks,
		State: action.StateSource{AgentID: agentID, VMName: func() string { return "vm-1" }, Jobs: w.machine,
			Vitals: w.machine.vitals},
		Disks: w.machine,
		UpdateSettings: action.UpdateSettings{Store: w.current, Bus: NATS{w.nats}, Blobstore: w.machine,
			Certificates: w.machine, Disks: w.machine},
		SensitiveBlobs: w.machine,
		Removable:      []string{w.dirs.Tmp()},
		SSH: &action.SSH{Users: users{w.machine}, HostKey: func(ctx context.Context) (string,
			error) {
			return action.AwaitHostKey(ctx, w.dirs.Base())
		},
			Networks: func() map[string]settings.Network { return w.current.Effective().Settings.Networks }},
		DNS:       &action.DNS{Blobs: w.machine, Hosts: w.machine, Records: w.dirs.DNSRecords(), GID: os.Getgid()},
		Neighbors: w.machine,
		Power:     w.machine,
	}
}

func (w *world) ready() *world {
	w.dispatcher.OpenGate(w.table, w.tasks)
	return w
}

// post asks over HTTPS.
func (w *world) post(body string) (int, string) {
	w.t.Helper()
	r := must[*http.Request](w.t)(http.NewRequest("POST", w.https, strings.NewReader(body)))
	r.SetBasicAuth("mbus", "s3cret")
	response := must[*http.Response](w.t)(w.client.Do(r))
	data := must[[]byte](w.t)(io.ReadAll(response.Body))
	if err := response.Body.Close(); err != nil {
		w.t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

func sha256Digest(content string) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(content)))
}
func write(t testing.TB, path, content string) {
	t.Helper()
	check(t, os.WriteFile(path, []byte(content), 0o644))
}
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var _ mbus.Handler = (*Dispatcher)(nil)

func read(t testing.TB, path string) string {
	t.Helper()
	return string(must[[]byte](t)(os.ReadFile(path)))
}
