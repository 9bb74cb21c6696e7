// Package fetch is the HTTP client of the settings sources. A request is not retried, has a deadline for each phase and a
// limit on its body, and goes only to hosts named in agent.json or in the user data.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"cambium/infrastructure/internal/source"
	"cambium/internal/secret"
)

// Timeouts bounds the phases of a request.
type Timeouts struct {
	Dial    time.Duration // for each address
	TLS     time.Duration
	Header  time.Duration // from the request to the end of the response's header
	Request time.Duration // for the whole request
}

// DefaultTimeouts are generous for a metadata service, which is one hop away.
var DefaultTimeouts = Timeouts{
	Dial:    5 * time.Second,
	TLS:     10 * time.Second,
	Header:  10 * time.Second,
	Request: 30 * time.Second,
}

const (
	maxHeader    = 64 << 10
	maxRedirects = 3
)

// Client makes requests. The zero value uses the system's resolver and DefaultTimeouts.
type Client struct {
	Timeouts *Timeouts
	// Lookup replaces the system's resolver for host names.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// Connecting, if not nil, is called before each connection to the server in the URL, but not before one to a proxy.
	Connecting func(ctx context.Context, server netip.AddrPort)
}

// Request is a request without a body.
type Request struct {
	Method string // GET if empty
	URL    string // may contain a user and password, for basic authentication
	Header map[string]secret.String
	Limit  int64 // of the body, in bytes
	// User and Password are used if the URL contains none.
	User     string
	Password secret.String
	// Timeout shortens Timeouts.Request.
	Timeout time.Duration
}

// Response holds a status and the complete body.
type Response struct {
	Status int
	Body   []byte
}

// OK reports whether the status is between 200 and 299.
func (r Response) OK() bool { return r.Status >= 200 && r.Status <= 299 }

// StatusText formats the status, such as "404 Not Found".
func (r Response) StatusText() string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", r.Status, http.StatusText(r.Status)))
}

// Err returns nil for a status of success. 404 and 410 are NotYet errors, since the CPI may still write the document.
func (r Response) Err() error {
	switch {
	case r.OK():
		return nil
	case r.Status == http.StatusNotFound || r.Status == http.StatusGone:
		return source.NotYet(errors.New(r.StatusText()))
	default:
		return errors.New(r.StatusText())
	}
}

// Do makes a request. It returns an error only if there is no response, whatever its status. Errors quote the URL
// without credentials.
func (c Client) Do(ctx context.Context, r Request) (Response, error) {
	fail := func(err error) (Response, error) {
		var wrapped *url.Error
		if errors.As(err, &wrapped) { // it repeats the URL, query included
			err = wrapped.Err
			if wrapped.Timeout() && errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("no complete response in time: %w", err)
			}
		}
		return Response{}, fmt.Errorf("%s: %w", secret.RedactURL(r.URL), err)
	}
	timeout := c.timeouts().Request
	if r.Timeout > 0 {
		timeout = min(timeout, r.Timeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	method := r.Method
	if method == "" {
		method = http.MethodGet
	}
	request, err := http.NewRequestWithContext(ctx, method, r.URL, nil)
	if err != nil {
		return Response{}, source.Final(fmt.Errorf("%s: not a valid URL", secret.RedactURL(r.URL)))
	}
	if scheme := request.URL.Scheme; scheme != "http" && scheme != "https" || request.URL.Host == "" {
		return Response{}, source.Final(fmt.Errorf("%s: not an http or https URL", secret.RedactURL(r.URL)))
	}
	for name, value := range r.Header {
		if strings.EqualFold(name, "Host") {
			request.Host = value.Reveal()
			continue
		}
		request.Header.Set(name, value.Reveal())
	}
	if request.URL.User == nil && (r.User != "" || !r.Password.Empty()) {
		request.SetBasicAuth(r.User, r.Password.Reveal())
	}
	transport := c.transport(request.URL.Hostname())
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport, CheckRedirect: sameHost}).Do(request)
	if err != nil {
		return fail(err)
	}
	defer response.Body.Close()
	if response.ContentLength > r.Limit {
		return fail(
			fmt.Errorf("%w: %d KiB announced, the limit is %d KiB", source.ErrTooLarge, response.ContentLength>>10,
				r.Limit>>10),
		)
	}
	body, err := source.ReadAll(response.Body, r.Limit)
	if err != nil {
		return fail(fmt.Errorf("read the body: %w", err))
	}
	return Response{Status: response.StatusCode, Body: body}, nil
}

func (c Client) timeouts() Timeouts {
	if c.Timeouts != nil {
		return *c.Timeouts
	}
	return DefaultTimeouts
}

// transport returns a transport that connects to host, directly or through a proxy.
func (c Client) transport(host string) *http.Transport {
	return &http.Transport{
		Proxy: proxy,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return c.dial(ctx, host, network, address)
		},
		TLSHandshakeTimeout:    c.timeouts().TLS,
		ResponseHeaderTimeout:  c.timeouts().Header,
		MaxResponseHeaderBytes: maxHeader,
		DisableKeepAlives:      true,
		DisableCompression:     true,
	}
}

func (c Client) dial(ctx context.Context, named, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: c.timeouts().Dial}
	host, port, err := net.SplitHostPort(address)
	if c.Connecting != nil && strings.EqualFold(host, named) {
		dialer.ControlContext = func(ctx context.Context, _, address string, _ syscall.RawConn) error {
			if server, err := netip.ParseAddrPort(address); err == nil {
				c.Connecting(ctx, server)
			}
			return nil
		}
	}
	if err != nil || c.Lookup == nil {
		return dialer.DialContext(ctx, network, address)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return dialer.DialContext(ctx, network, address)
	}
	addresses, err := c.Lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	var failures []error
	for _, a := range addresses {
		conn, err := dialer.DialContext(ctx, network, net.JoinHostPort(a.String(), port))
		if err == nil {
			return conn, nil
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(failures...)
}

// sameHost refuses redirects to other servers, which would receive the headers, the token and the credentials.
func sameHost(next *http.Request, via []*http.Request) error {
	first := via[0].URL
	if len(via) > maxRedirects {
		return errors.New("too many redirects")
	}
	downgrade := first.Scheme == "https" && next.URL.Scheme != "https"
	upgrade := first.Scheme == "http" && next.URL.Scheme == "https"
	if !strings.EqualFold(first.Hostname(), next.URL.Hostname()) || downgrade ||
		port(first) != port(next.URL) && !upgrade {
		return fmt.Errorf("redirect to another server refused (%s)",
			secret.RedactURL(next.URL.Scheme+"://"+next.URL.Host))
	}
	return nil
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	return map[string]string{"http": "80", "https": "443"}[u.Scheme]
}

// proxy uses the proxy in the environment, except for addresses local to the machine or its link: a proxy would connect
// to its own metadata service and return another VM's settings.
func proxy(r *http.Request) (*url.URL, error) {
	if direct(r.URL.Hostname()) {
		return nil, nil
	}
	return environmentProxy(r)
}

// environmentProxy is a variable for tests: the standard library reads the environment once per process.
var environmentProxy = http.ProxyFromEnvironment

// metadataAddresses lists addresses of metadata services that are not link-local: Alibaba, Azure, and EC2 over IPv6.
var metadataAddresses = []netip.Prefix{
	netip.MustParsePrefix("100.100.100.200/32"),
	netip.MustParsePrefix("168.63.129.16/32"),
	netip.MustParsePrefix("fd00:ec2::/32"),
}

// direct reports whether host must not be reached through a proxy.
func direct(host string) bool {
	if strings.EqualFold(strings.TrimSuffix(host, "."), "metadata.google.internal") || loopback(host) {
		return true
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	address = address.Unmap().WithZone("")
	if address.IsLinkLocalUnicast() {
		return true
	}
	for _, prefix := range metadataAddresses {
		if prefix.Contains(address) {
			return true
		}
	}
	return false
}

// loopback reports whether host is this machine, which needs no network.
func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback()
}

// NeedsNetwork reports whether a request to rawURL leaves this machine.
func NeedsNetwork(rawURL string) bool {
	u, err := url.Parse(rawURL)
	return err == nil && u.Host != "" && !loopback(u.Hostname())
}
