package director

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// HTTPS sends requests to an agent as create-env does: each on its own connection.
type HTTPS struct {
	base   url.URL
	client *http.Client
}

// HTTPSOptions configures the client.
type HTTPSOptions struct {
	URL string // https://user:password@host:port
	CA  []byte // PEM; if empty, the system's CAs are trusted
	// Dial, if set, connects to the agent, for instance inside a namespace.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// ServerName replaces the URL's host when the certificate is checked.
	ServerName string
	// Insecure accepts any certificate.
	Insecure bool
}

// NewHTTPS returns a client.
func NewHTTPS(o HTTPSOptions) (*HTTPS, error) {
	base, err := url.Parse(o.URL)
	if err != nil || base.Scheme != "https" || base.Host == "" {
		return nil, errors.New("mbus URL is not https://user:password@host:port")
	}
	base.Path, base.RawQuery = "", ""
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.ServerName, InsecureSkipVerify: o.Insecure}
	if len(o.CA) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(o.CA) {
			return nil, errors.New("the CA file contains no certificate")
		}
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: 30 * time.Second}).DialContext
	}
	return &HTTPS{base: *base, client: &http.Client{Transport: &http.Transport{
		DialContext: o.Dial, TLSClientConfig: config, TLSHandshakeTimeout: 30 * time.Second, DisableKeepAlives: true}}}, nil
}

// Agent returns the agent at the URL.
func (h *HTTPS) Agent() *Agent { return &Agent{Transport: h} }

// Close closes idle connections.
func (h *HTTPS) Close() { h.client.CloseIdleConnections() }

// RoundTrip posts a request.
func (h *HTTPS) RoundTrip(ctx context.Context, r Request) ([]byte, error) {
	r.ReplyTo = "lab"
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	status, body, err := h.do(ctx, http.MethodPost, "/agent", bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("HTTP status %d %s", status, http.StatusText(status))
	}
	return body, nil
}

// Put stores a blob on the machine, as create-env does with compiled packages and templates.
func (h *HTTPS) Put(ctx context.Context, id string, blob io.Reader) error {
	status, body, err := h.do(ctx, http.MethodPut, blobPath(id), blob)
	if err == nil && status != http.StatusCreated && status != http.StatusNoContent {
		err = fmt.Errorf("put blob: HTTP status %d: %s", status, body)
	}
	return err
}

// Get fetches a blob from the machine.
func (h *HTTPS) Get(ctx context.Context, id string) ([]byte, error) {
	status, body, err := h.do(ctx, http.MethodGet, blobPath(id), nil)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("get blob: HTTP status %d", status)
	}
	return body, err
}

func blobPath(id string) string {
	sum := sha1.Sum([]byte(id))
	return "/blobs/" + hex.EncodeToString(sum[:1]) + "/" + id
}

func (h *HTTPS) do(ctx context.Context, method, path string, body io.Reader) (int, []byte, error) {
	target := h.base
	target.Path, target.User = path, nil
	request, err := http.NewRequestWithContext(ctx, method, target.String(), body)
	if err != nil {
		return 0, nil, err
	}
	if password, ok := h.base.User.Password(); ok {
		request.SetBasicAuth(h.base.User.Username(), password)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := h.client.Do(request)
	if err != nil {
		if ctx.Err() != nil {
			return 0, nil, ErrTimeout
		}
		var asURL *url.Error
		if errors.As(err, &asURL) {
			err = asURL.Err // without the address, which may hold a password
		}
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	return response.StatusCode, data, err
}
