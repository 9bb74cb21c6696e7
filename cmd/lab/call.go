package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"cambium/integration/lab/control"
	"cambium/integration/lab/director"

	"github.com/nats-io/nats.go"
)

// target is an agent outside of labs.
type target struct {
	url, agentID, ca, cert, key, settings, host string
}

func callAgent(ctx context.Context, c *call) error {
	var t target
	request := control.Call{}
	c.flags.StringVar(&request.Machine, "machine", "", "the machine's `name`, if there are several")
	c.flags.DurationVar(&request.Timeout, "timeout", director.DefaultTimeout, "how long to wait for one reply")
	c.flags.BoolVar(&request.NoFollow, "no-follow", false, "print the task's handle instead of waiting for its end")
	c.flags.StringVar(&t.url, "url", "", "an agent outside of labs: https://user:password@host:port, or its NATS server nats://host:port")
	c.flags.StringVar(&t.agentID, "agent-id", "", "with a NATS --url, the agent's `id`")
	c.flags.StringVar(&t.ca, "ca", "", "with --url, a `file` with the authority to trust")
	c.flags.StringVar(&t.cert, "cert", "", "with a NATS --url, a `file` with the client certificate")
	c.flags.StringVar(&t.key, "key", "", "with a NATS --url, a `file` with its key")
	c.flags.StringVar(&t.settings, "settings", "", "take URL, agent id and certificates from a settings.json")
	c.flags.StringVar(&t.host, "host", "", "with --settings, where the agent is reached if it listens on 0.0.0.0")
	if err := c.parse(1, -1); err != nil {
		return err
	}
	request.Method = c.args[0]
	for _, a := range append(c.args[1:], c.extra...) {
		request.Arguments = append(request.Arguments, argument(a))
	}
	show := newProgress(c)
	defer show.end()
	var value json.RawMessage
	var err error
	if t.url != "" || t.settings != "" {
		value, err = t.call(ctx, request, show.say)
	} else {
		var client *control.Client
		if client, err = c.client(); err != nil {
			return err
		}
		value, err = client.Call(ctx, request, func(l control.Line) { show.say(l.Progress) })
	}
	show.end()
	if err != nil {
		return err
	}
	if value == nil {
		value = json.RawMessage("null")
	}
	return c.result(value, func(w io.Writer) {
		var b bytes.Buffer
		if json.Indent(&b, value, "", "  ") != nil {
			b.Write(value)
		}
		_, _ = fmt.Fprintln(w, b.String())
	})
}

// argument takes what is JSON as that, and everything else as a string.
func argument(text string) json.RawMessage {
	if json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	data, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string always is
	}
	return data
}

func (t target) call(ctx context.Context, request control.Call, say func(string)) (json.RawMessage, error) {
	ca, cert, key, err := t.read()
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(t.url, "https:") {
		h, err := director.NewHTTPS(director.HTTPSOptions{URL: t.url, CA: ca})
		if err != nil {
			return nil, err
		}
		defer h.Close()
		return control.Perform(ctx, *h.Agent(), request, say)
	}
	if t.agentID == "" {
		return nil, usagef("an agent on NATS is named by --agent-id")
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("client certificate: %w", err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if len(ca) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("the authority's file holds no certificate")
		}
	}
	conn, err := nats.Connect(t.url, nats.Secure(config), nats.Timeout(10*time.Second))
	if err != nil {
		return nil, fmt.Errorf("NATS server: %w", err)
	}
	defer conn.Close()
	bus, err := director.NewBus(conn)
	if err != nil {
		return nil, err
	}
	return control.Perform(ctx, *bus.Agent(t.agentID), request, say)
}

// read collects the certificates, from files or from a settings document.
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
