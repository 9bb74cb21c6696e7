package cpi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"cambium/internal/atomicfile"
	"cambium/internal/testca"
	"cambium/lab/iaas"
)

// A Director's CPI runs inside a VM, where there is no local socket: it reaches the holder over TLS
// on the gateway's address, and both sides show a certificate.

// TLSPort is the port on which the holder listens with TLS, on all addresses in its network.
const TLSPort = 25778

// serverName is the name in the holder's certificate, whatever its address.
const serverName = "holder.iaas.lab"

// Identity configures the TLS connection of a CPI inside a VM.
type Identity struct {
	CA          string `json:"ca"`
	Certificate string `json:"certificate"`
	PrivateKey  string `json:"private_key"`
}

// identities is the content of the file with the certificates of both sides. The file is beside the directory of the
// IaaS. It may exist before the IaaS has objects, and is kept when the IaaS is empty.
type identities struct {
	Holder Identity `json:"holder"`
	Client Identity `json:"client"`
	// Containers permits callers over TLS to create containers, which do not confine root.
	Containers bool `json:"containers,omitempty"`
}

// refused returns the engines that callers over TLS may not use, as configured now.
func refused(dir, name string) []string {
	if ids, err := readIdentities(dir, name); err == nil && ids.Containers {
		return nil
	}
	return []string{iaas.Container}
}

func identitiesPath(dir, name string) string { return filepath.Join(dir, name+".iaas-tls.json") }

// EnsureIdentity creates the certificates unless they exist, and returns the client's. containers permits such clients
// to create containers.
func EnsureIdentity(dir, name string, containers bool) (Identity, error) {
	ids, err := readIdentities(dir, name)
	if errors.Is(err, os.ErrNotExist) {
		ids, err = newIdentities(name)
	} else if err == nil && ids.Containers == containers {
		return ids.Client, nil
	}
	if err != nil {
		return Identity{}, err
	}
	ids.Containers = containers
	data, err := json.MarshalIndent(ids, "", "  ")
	if err != nil {
		return Identity{}, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Identity{}, err
	}
	return ids.Client, atomicfile.Write(identitiesPath(dir, name), data, 0o600)
}

func newIdentities(name string) (identities, error) {
	ca, err := testca.New("iaas." + name + ".ca")
	if err != nil {
		return identities{}, err
	}
	holder, err := ca.Issue(testca.Request{CommonName: serverName, Hosts: []string{serverName}})
	if err != nil {
		return identities{}, err
	}
	client, err := ca.Issue(testca.Request{CommonName: "cpi"})
	return identities{
		Holder: Identity{string(ca.PEM), string(holder.Certificate), string(holder.PrivateKey)},
		Client: Identity{string(ca.PEM), string(client.Certificate), string(client.PrivateKey)},
	}, err
}

func readIdentities(dir, name string) (ids identities, err error) {
	data, err := os.ReadFile(identitiesPath(dir, name))
	if err != nil {
		return ids, err
	}
	if err := json.Unmarshal(data, &ids); err != nil {
		return ids, fmt.Errorf("%s: %w", identitiesPath(dir, name), err)
	}
	return ids, nil
}

func (i Identity) config() (*tls.Config, *x509.CertPool, error) {
	pair, err := tls.X509KeyPair([]byte(i.Certificate), []byte(i.PrivateKey))
	if err != nil {
		return nil, nil, errors.New("certificate and private key are not a matching pair in PEM format")
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(i.CA)) {
		return nil, nil, errors.New("the CA is not a certificate in PEM format")
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}, pool, nil
}

// listenTLS makes the holder listen with TLS, if the certificates exist.
func (h *holder) listenTLS(dir, name string) error {
	ids, err := readIdentities(dir, name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.remote != nil {
		return nil
	}
	config, pool, err := ids.Holder.config()
	if err != nil {
		return fmt.Errorf("identity of the holder: %w", err)
	}
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, pool
	listener, err := h.iaas.Net.Listen("tcp", fmt.Sprintf("0.0.0.0:%d", TLSPort))
	if err != nil {
		return err
	}
	// Only calls: a client inside a VM can neither list objects nor change the holder.
	mux := h.calling(func() []string { return refused(dir, name) })
	h.remote = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = h.remote.Serve(tls.NewListener(listener, config)) }()
	return nil
}

// ListenTLS makes a running holder listen with TLS.
func (c Client) ListenTLS(ctx context.Context) error { return c.notify(ctx, "/tls") }

// NewRemoteClient returns a client of a holder at tls://host:port. It cannot start a holder.
func NewRemoteClient(url string, id Identity) (Client, error) {
	address, ok := strings.CutPrefix(url, "tls://")
	if _, _, err := net.SplitHostPort(address); !ok || err != nil {
		return Client{}, fmt.Errorf("lab.host %q is invalid; want, for example, tls://10.0.0.1:%d", url, TLSPort)
	}
	config, pool, err := id.config()
	if err != nil {
		return Client{}, fmt.Errorf("lab.tls: %w", err)
	}
	config.RootCAs, config.ServerName = pool, serverName
	return Client{Name: iaas.DefaultName, remote: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	}, at: url}, nil
}
