package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"time"

	"cambium/lab/control"
	"cambium/lab/director"

	"github.com/nats-io/nats.go"
)

// target is an agent outside of labs, or its NATS server.
type target struct {
	url, agentID, ca, cert, key, settings, host string
	insecure                                    bool
}

// flags adds the flags of commands that also work outside of labs.
func (t *target) flags(c *call) {
	c.flags.StringVar(&t.ca, "ca", "", "with --url, a `file` with the CA to trust")
	c.flags.StringVar(&t.cert, "cert", "", "with a NATS --url, a `file` with the client certificate")
	c.flags.StringVar(&t.key, "key", "", "with a NATS --url, a `file` with its key")
	c.flags.StringVar(&t.settings, "settings", "", "take URL, agent id and certificates from a settings.json")
}

// given reports whether the command line names an agent outside of labs.
func (t *target) given() bool { return t.url != "" || t.settings != "" }

func (t target) call(ctx context.Context, request control.Call, say func(string)) (json.RawMessage, error) {
	ca, cert, key, err := t.read()
	if err != nil {
		return nil, err
	}
	scheme, err := t.scheme()
	if err != nil {
		return nil, err
	}
	if scheme == "https" {
		h, err := director.NewHTTPS(director.HTTPSOptions{URL: t.url, CA: ca, Insecure: t.insecure})
		if err != nil {
			return nil, err
		}
		defer h.Close()
		return control.Perform(ctx, *h.Agent(), request, say)
	}
	if t.agentID == "" {
		return nil, usagef("an agent on NATS needs --agent-id")
	}
	conn, err := t.connect(ca, cert, key)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	bus, err := director.NewBus(conn)
	if err != nil {
		return nil, err
	}
	return control.Perform(ctx, *bus.Agent(t.agentID), request, say)
}

// scheme returns the URL's scheme. Errors do not quote the URL, since it may hold a password.
func (t target) scheme() (string, error) {
	u, err := url.Parse(t.url)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "nats" {
		return "", usagef("--url is neither https://user:password@host:port nor nats://host:port")
	}
	return u.Scheme, nil
}

func (t target) connect(ca, cert, key []byte) (*nats.Conn, error) {
	if len(cert) == 0 || len(key) == 0 {
		return nil, usagef("a NATS server needs a client certificate: give --cert and --key, or --settings")
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("client certificate: %w", err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if len(ca) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("the CA file contains no certificate")
		}
	}
	conn, err := nats.Connect(t.url, nats.Secure(config), nats.Timeout(10*time.Second), nats.MaxReconnects(-1))
	if err != nil {
		return nil, fmt.Errorf("NATS server: %w", err)
	}
	return conn, nil
}

// monitor connects as a Health Monitor.
func (t target) monitor() (*director.Monitor, error) {
	ca, cert, key, err := t.read()
	if err != nil {
		return nil, err
	}
	scheme, err := t.scheme()
	if err != nil {
		return nil, err
	}
	if scheme != "nats" {
		return nil, usagef("only agents on NATS send heartbeats and alerts")
	}
	conn, err := t.connect(ca, cert, key)
	if err != nil {
		return nil, err
	}
	m, err := director.NewMonitor(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	if err := conn.LastError(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("NATS server: %w", err)
	}
	return m, nil
}

// read reads the certificates from files or from a settings document.
func (t *target) read() (ca, cert, key []byte, err error) {
	if t.settings != "" {
		if ca, cert, key, err = t.fromSettings(); err != nil {
			return nil, nil, nil, err
		}
	}
	for path, into := range map[string]*[]byte{t.ca: &ca, t.cert: &cert, t.key: &key} {
		if path == "" {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, nil, err
		}
		*into = data
	}
	return ca, cert, key, nil
}

func (t *target) fromSettings() (ca, cert, key []byte, err error) {
	data, err := os.ReadFile(t.settings)
	if err != nil {
		return nil, nil, nil, err
	}
	var s struct {
		AgentID string `json:"agent_id"`
		Mbus    string `json:"mbus"`
		Env     struct {
			Bosh struct {
				Mbus struct {
					URLs []string `json:"urls"`
					Cert struct {
						CA          string `json:"ca"`
						Certificate string `json:"certificate"`
						PrivateKey  string `json:"private_key"`
					} `json:"cert"`
				} `json:"mbus"`
			} `json:"bosh"`
		} `json:"env"`
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, nil, nil, fmt.Errorf("%s is not a settings document", t.settings)
	}
	mbus := s.Env.Bosh.Mbus
	if t.agentID == "" {
		t.agentID = s.AgentID
	}
	if t.url == "" && len(mbus.URLs) > 0 {
		t.url = mbus.URLs[0]
	}
	if t.url == "" {
		t.url = s.Mbus
	}
	u, err := url.Parse(t.url)
	if err != nil || u.Host == "" {
		return nil, nil, nil, fmt.Errorf("%s names no message bus", t.settings)
	}
	if t.host != "" {
		u.Host = net.JoinHostPort(t.host, u.Port())
		if host, port, err := net.SplitHostPort(t.host); err == nil {
			u.Host = net.JoinHostPort(host, port)
		}
		t.url = u.String()
	}
	return []byte(mbus.Cert.CA), []byte(mbus.Cert.Certificate), []byte(mbus.Cert.PrivateKey), nil
}
