package herd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"cambium/internal/eventually"
	"cambium/internal/testca"
	"cambium/internal/testnats"
)

// role is the variable that makes a process of this program something other than the test: a server, or a flock.
const role = "CAMBIUM_HERD_ROLE"

func TestMain(m *testing.M) {
	switch kind, argument, _ := strings.Cut(os.Getenv(role), ":"); kind {
	case "server":
		serve(argument)
	case "flock":
		newFlock(os.Stdout).run(os.Stdin)
	default:
		os.Exit(m.Run())
	}
}

// child starts this program in a role; the caller ends it. It also ends if the test is killed.
func child(t *testing.T, as string) (*exec.Cmd, io.WriteCloser, io.Reader) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), role+"="+as)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in := must[io.WriteCloser](t)(c.StdinPipe())
	out := must[io.ReadCloser](t)(c.StdoutPipe())
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c, in, out
}

// serve is nats-server as its own program runs it: with signals, and files that a reload reads again.
func serve(file string) {
	o, err := server.ProcessConfigFile(file)
	if err != nil {
		panic(err)
	}
	s, err := server.NewServer(o)
	if err != nil {
		panic(err)
	}
	s.ConfigureLogger()
	if err := server.Run(s); err != nil {
		panic(err)
	}
	s.WaitForShutdown()
}

// naming selects the field of a certificate in which a server finds the name of its user.
type naming string

const (
	bySubject naming = "subject" // as Director and nats-sync have it
	bySAN     naming = "SAN"     // as they could: a DNS name beside the subject
)

// user is the name in the file of users.
func (n naming) user(commonName string) string {
	if n == bySAN {
		return commonName
	}
	return testca.UserOf(commonName)
}

// certificate is a client's.
func (n naming) certificate(ca *testca.CA, commonName string) (testca.Pair, error) {
	if n == bySAN {
		return ca.Issue(testca.Request{CommonName: commonName, Hosts: []string{commonName}, Peer: true})
	}
	return ca.Client(commonName)
}

// cluster is some NATS servers and the files that a Director and its nats-sync keep for them.
type cluster struct {
	t         *testing.T
	naming    naming
	dir       string
	ca        *testca.CA
	nodes     []*node
	fileBytes int
}

// node is one server.
type node struct {
	name    string
	address string // each has one of its own, so that ports can be the usual ones
	process *exec.Cmd
	ended   chan struct{}
	planned bool // its end
}

// newCluster writes the files of n servers; none of them runs yet.
func newCluster(t *testing.T, n int, by naming) *cluster {
	t.Helper()
	ca := must[*testca.CA](t)(testca.New("default.nats-ca.bosh-internal"))
	c := &cluster{t: t, naming: by, dir: t.TempDir(), ca: ca}
	network := fmt.Sprintf("127.%d.%d.", 1+rand.IntN(250), rand.IntN(250))
	for i := range n {
		c.nodes = append(c.nodes, &node{name: testnats.ClusterName(i), address: network + fmt.Sprint(i+1)})
	}
	for _, node := range c.nodes {
		c.write(node.name+".conf", []byte(c.config(node)))
	}
	c.certify(c.ca)
	c.setUsers(nil)
	t.Cleanup(c.check)
	return c
}

// config is the file that docs/protocol.md shows, with addresses.
func (c *cluster) config(n *node) string {
	var routes []string
	for _, other := range c.nodes {
		routes = append(routes, "tls://"+other.address+":6222")
	}
	certificates := fmt.Sprintf("cert_file: %q, key_file: %q, ca_file: %q, timeout: 30", c.path(n.name+".crt"),
		c.path(n.name+".key"), c.path("ca.crt"))
	return fmt.Sprintf(`server_name: %q
host: %q
port: 4222
http: "%s:8222"
log_file: %q
max_payload: 1048576
ping_interval: 5s
ping_max: 2
tls { %s, verify_and_map: true }
authorization { include "auth.json" }
cluster {
  name: bosh
  host: %q
  port: 6222
  routes: [ %s ]
  tls { %s, verify: true }
}
`, n.name, n.address, n.address, c.path(n.name+".log"), certificates, n.address, strings.Join(routes, ", "), certificates)
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

// write replaces a file at once, so that no server reads half of it.
func (c *cluster) write(name string, data []byte) {
	c.t.Helper()
	if err := os.WriteFile(c.path(name+".new"), data, 0o600); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(c.path(name+".new"), c.path(name)); err != nil {
		c.t.Fatal(err)
	}
}

// certify gives all servers new certificates of the first authority; they accept clients of all of them.
func (c *cluster) certify(authorities ...*testca.CA) {
	c.t.Helper()
	for _, n := range c.nodes {
		pair := must[testca.Pair](c.t)(authorities[0].Issue(testca.Request{CommonName: testca.ServerName,
			Hosts: []string{n.address}, Peer: true}))
		c.write(n.name+".crt", pair.Certificate)
		c.write(n.name+".key", pair.PrivateKey)
	}
	var trusted []byte
	for _, ca := range authorities {
		trusted = append(trusted, ca.PEM...)
	}
	c.write("ca.crt", trusted)
	c.ca = authorities[0]
}

// permissions is a user's entry in the file that nats-sync writes.
type permissions struct {
	User        string `json:"user"`
	Permissions struct {
		Publish   any      `json:"publish"`
		Subscribe []string `json:"subscribe"`
	} `json:"permissions"`
}

// setUsers writes the file of users: Director, Health Monitor and these agents.
func (c *cluster) setUsers(agents []string) {
	c.t.Helper()
	var file struct {
		Users []permissions `json:"users"`
	}
	add := func(commonName string, publish any, subscribe ...string) {
		p := permissions{User: c.naming.user(commonName)}
		p.Permissions.Publish, p.Permissions.Subscribe = publish, subscribe
		file.Users = append(file.Users, p)
	}
	add(testca.DirectorName, []string{"agent.*", "hm.director.alert"}, "director.>")
	add(testca.HealthMonitorName, map[string]string{"deny": ">"}, "hm.agent.heartbeat.*", "hm.agent.alert.*",
		"hm.agent.shutdown.*", "hm.director.alert")
	for _, id := range agents {
		u := testnats.Agent(testca.AgentName(id), id)
		add(testca.AgentName(id), u.Permissions.Publish.Allow, u.Permissions.Subscribe.Allow...)
	}
	var data bytes.Buffer
	plain := json.NewEncoder(&data)
	plain.SetEscapeHTML(false) // nats-server does not know \u003e
	if err := plain.Encode(file); err != nil {
		c.t.Fatal(err)
	}
	c.fileBytes = data.Len()
	c.write("auth.json", data.Bytes())
}

// reload has all servers read their files again.
func (c *cluster) reload() {
	c.t.Helper()
	for _, n := range c.nodes {
		if err := n.process.Process.Signal(syscall.SIGHUP); err != nil {
			c.t.Fatal(err)
		}
	}
}

// up starts a server; joined waits until it has routes to all others.
func (c *cluster) up(n *node) {
	c.t.Helper()
	n.process, _, _ = child(c.t, "server:"+c.path(n.name+".conf"))
	n.planned = false
	ended := make(chan struct{})
	n.ended = ended
	process := n.process
	go func() {
		_ = process.Wait()
		close(ended)
	}()
}

func (c *cluster) joined() {
	c.t.Helper()
	for _, n := range c.nodes {
		eventually.Nil(c.t, "the routes of "+n.name, func() error {
			var z server.Routez
			if err := n.monitor("routez", &z); err != nil {
				return err
			}
			peers := map[string]bool{}
			for _, r := range z.Routes {
				peers[r.RemoteID] = true
			}
			if len(peers) != len(c.nodes)-1 {
				return fmt.Errorf("%d peers", len(peers))
			}
			return nil
		})
	}
}

// kill ends a server without a word.
func (c *cluster) kill(n *node) {
	c.t.Helper()
	n.planned = true
	if err := n.process.Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	<-n.ended
}

// check fails the test if a server has ended by itself.
func (c *cluster) check() {
	for _, n := range c.nodes {
		if n.process == nil || n.planned {
			continue
		}
		select {
		case <-n.ended:
			c.t.Errorf("%s has ended: %v", n.name, n.process.ProcessState)
		default:
			n.planned = true
			_ = n.process.Process.Kill()
			<-n.ended
		}
	}
}

// monitor reads a page of a server's monitoring port.
func (n *node) monitor(page string, into any) error {
	client := http.Client{Timeout: 10 * time.Second}
	response, err := client.Get("http://" + net.JoinHostPort(n.address, "8222") + "/" + page)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(into)
}

// state returns the state that a server reports about itself.
func (c *cluster) state(n *node) (v server.Varz) {
	c.t.Helper()
	eventually.Nil(c.t, "the state of "+n.name, func() error { return n.monitor("varz", &v) })
	return v
}

// urls are those of all servers.
func (c *cluster) urls() (all []string) {
	for _, n := range c.nodes {
		all = append(all, "nats://"+n.address+":4222")
	}
	return all
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
