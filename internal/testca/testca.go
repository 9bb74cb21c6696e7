// Package testca issues the certificates of a BOSH deployment for tests and the lab: a CA, the NATS server's
// certificate and the clients' certificates, with the names that both sides check. The agent does not link it.
package testca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// ServerName is the common name that agents require of a NATS server.
const ServerName = "default.nats.bosh-internal"

// AgentName returns the common name of an agent's permanent certificate.
func AgentName(id string) string { return id + ".agent.bosh-internal" }

// BootstrapName returns the common name of a new VM's first certificate.
func BootstrapName(id string) string { return id + ".bootstrap.agent.bosh-internal" }

// DirectorName and HealthMonitorName are the common names of the other users of the NATS server.
const (
	DirectorName      = "default.director.bosh-internal"
	HealthMonitorName = "default.hm.bosh-internal"
)

// UserOf returns the user name that verify_and_map derives from a common name.
func UserOf(commonName string) string { return "C=USA, O=Cloud Foundry, CN=" + commonName }

// CA signs certificates. PEM is the CA's own certificate.
type CA struct {
	PEM  []byte
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its key, both in PEM, as in the settings.
type Pair struct {
	Certificate []byte
	PrivateKey  []byte
}

// TLS converts the pair for crypto/tls.
func (p Pair) TLS() (tls.Certificate, error) { return tls.X509KeyPair(p.Certificate, p.PrivateKey) }

// New returns a new CA that is valid for ten years.
func New(commonName string) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the CA's key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject: pkix.Name{
			Country:      []string{"USA"},
			Organization: []string{"Cloud Foundry"},
			CommonName:   commonName,
		},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().AddDate(10, 0, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the CA: %w", err)
	}
	return &CA{PEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), cert: cert, key: key}, nil
}

// Pool returns a pool with only this CA.
func (c *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.cert)
	return pool
}

// Request describes a certificate to sign. If the times are zero, it is valid from an hour ago for two years.
type Request struct {
	CommonName          string
	Hosts               []string // names and addresses of a server; if empty, the certificate is for a client
	NotBefore, NotAfter time.Time
	// Peer is set for a server of a cluster, which is also a client of the others.
	Peer bool
}

// Server issues a certificate with the common name ServerName for the given hosts.
func (c *CA) Server(hosts ...string) (Pair, error) {
	return c.Issue(Request{CommonName: ServerName, Hosts: hosts})
}

// Client issues a client certificate for a common name; see AgentName and BootstrapName.
func (c *CA) Client(commonName string) (Pair, error) {
	return c.Issue(Request{CommonName: commonName})
}

// Issue issues a certificate with a new key and the subject C=USA, O=Cloud Foundry, CN=….
func (c *CA) Issue(r Request) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make key: %w", err)
	}
	if r.NotBefore.IsZero() {
		r.NotBefore = time.Now().Add(-time.Hour)
	}
	if r.NotAfter.IsZero() {
		r.NotAfter = time.Now().AddDate(2, 0, 0)
	}
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject: pkix.Name{
			Country:      []string{"USA"},
			Organization: []string{"Cloud Foundry"},
			CommonName:   r.CommonName,
		},
		NotBefore:   r.NotBefore,
		NotAfter:    r.NotAfter,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(r.Hosts) > 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	if r.Peer {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	for _, host := range r.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, c.cert, key.Public(), c.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign %s: %w", r.CommonName, err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode key of %s: %w", r.CommonName, err)
	}
	return Pair{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		PrivateKey:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}),
	}, nil
}

func serial() *big.Int {
	// crypto/rand never fails on supported systems; it ends the process instead.
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	return n.Add(n, big.NewInt(1))
}
