package testnats

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"cambium/internal/eventually"
	"cambium/internal/testca"
)

// ClusterName returns the name of a server in a cluster. Its certificate has the name and 127.0.0.1.
func ClusterName(i int) string { return fmt.Sprintf("nats-%d.bosh.test", i) }

// StartCluster starts a cluster of n servers, with mutual TLS between them. A client of one server reaches the clients
// of all.
func StartCluster(t testing.TB, n int, change func(*server.Options), agents ...string) []*Deployment {
	t.Helper()
	ca := must[*testca.CA](t)(testca.New("default.nats-ca.bosh-internal"))
	var all []*Deployment
	var routes []*url.URL
	for i := range n {
		d := configured(t, ca, change, agents)
		d.options.ServerName = ClusterName(i)
		// One connection between two servers instead of a pool: fewer handshakes.
		d.options.Cluster = server.ClusterOpts{Name: "bosh", Host: "127.0.0.1", Port: -1, PoolSize: -1, TLSTimeout: 30}
		d.options.Routes = routes
		all = append(all, d)
		d.peers = all
		d.Certify(i, ca)
		d.Up()
		d.options.Cluster.Port = d.Server.ClusterAddr().Port
		routes = append(routes, &url.URL{Scheme: "nats", Host: d.Server.ClusterAddr().String()})
		t.Cleanup(func() { d.Down() })
	}
	for _, d := range all {
		d.peers, d.options.Routes = all, routes
	}
	AwaitRoutes(t, all)
	return all
}

// Certify gives a server of a cluster a new certificate of the first authority, and makes it accept clients of all
// authorities. A running server uses it after Reload.
func (d *Deployment) Certify(i int, authorities ...*testca.CA) {
	d.t.Helper()
	pair := must[testca.Pair](d.t)(authorities[0].Issue(testca.Request{CommonName: testca.ServerName,
		Hosts: []string{"127.0.0.1", "localhost", ClusterName(i)}, Peer: true}))
	pool := x509.NewCertPool()
	for _, ca := range authorities {
		pool.AppendCertsFromPEM(ca.PEM)
	}
	d.CA = authorities[0]
	d.options.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, ClientCAs: pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		Certificates: []tls.Certificate{must[tls.Certificate](d.t)(pair.TLS())}}
	between := d.options.TLSConfig.Clone()
	between.RootCAs = pool
	d.options.Cluster.TLSConfig = between
}

// Reload makes a running server use its new certificates.
func (d *Deployment) Reload() {
	d.t.Helper()
	if err := d.Server.ReloadOptions(d.options.Clone()); err != nil {
		d.t.Fatal(err)
	}
}

// Retire announces to the clients that the server will end, and ends it (lame duck mode).
func (d *Deployment) Retire() {
	d.Server.LameDuckShutdown()
	d.Server.WaitForShutdown()
}

// AwaitRoutes waits until all servers have routes to each other.
func AwaitRoutes(t testing.TB, all []*Deployment) {
	t.Helper()
	for _, d := range all {
		eventually.Within(t, 2*time.Minute, "routes to all servers of the cluster", func() error {
			if n := d.Server.NumRoutes(); n != len(all)-1 {
				return fmt.Errorf("%d routes", n)
			}
			return nil
		})
	}
}
