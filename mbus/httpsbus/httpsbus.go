// Package httpsbus serves the Director's messages over HTTPS, for create-env and other callers without a NATS server:
// requests to /agent, and blobs below /blobs/. The whole network may be able to reach its address, so all its limits
// apply to callers that have not authenticated.
package httpsbus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/retry"
	"cambium/internal/secret"
	"cambium/internal/tcp"
	"cambium/mbus"
)

const (
	idleTime     = 2 * time.Minute
	maxHeader    = 16 << 10
	maxEnvelope  = 64 << 20
	minRate      = 1 << 10
	shutdownTime = 5 * time.Second
)

// Variables, so that tests can shorten them.
var (
	headerTime = 10 * time.Second // also for the TLS handshake
	// transferGrace and one second for each minRate bytes limit the time for a body.
	transferGrace = 30 * time.Second
)

// Blobs stores uploaded blobs.
type Blobs interface {
	// Open returns fs.ErrNotExist if there is no such blob.
	Open(id string) (*os.File, error)
	// Write stores all of content, or nothing.
	Write(id string, content io.Reader) error
}

// Options configures a Bus.
type Options struct {
	// URL has the address and the credentials: https://user:password@0.0.0.0:6868.
	URL secret.URL
	// Certificate and PrivateKey are PEM. If they are empty, New creates a pair and keeps it in KeyFile.
	Certificate string
	PrivateKey  secret.String
	KeyFile     string
	Handler     mbus.Handler
	Blobs       Blobs
	// OnListen is called with the address when the bus listens. It must not block.
	OnListen func(address string)
	// OnFailure is called each time the bus cannot listen. It must not block.
	OnFailure func(error)
	Audit     mbus.Auditor
	Log       *logrus.Entry
}

// pendingKey is the context key for the connection of a request.
type pendingKey struct{}

// Bus is the agent's HTTPS server.
type Bus struct {
	options  Options
	address  string
	user     string
	auth     *auth
	tls      *tls.Config
	hostname string
	bound    atomic.Pointer[net.TCPAddr]
}

// New checks the options, and creates a certificate if they have none.
func New(o Options) (*Bus, error) {
	u, err := url.Parse(o.URL.Reveal())
	if err != nil {
		// The parser's error quotes the address, which holds a password.
		return nil, fmt.Errorf("https bus: malformed address %s", o.URL)
	}
	password, given := u.User.Password()
	switch {
	case u.Scheme != "https" || u.Hostname() == "" || u.Port() == "":
		return nil, fmt.Errorf("https bus: not https://user:password@host:port: %s", o.URL)
	case u.User.Username() == "" || !given || password == "":
		return nil, fmt.Errorf("https bus: no user and password in %s", o.URL)
	}
	pair, err := certificate(o, u.Hostname())
	if err != nil {
		return nil, err
	}
	b := &Bus{options: o, address: u.Host, user: u.User.Username(), auth: newAuth(u.User.Username(), password)}
	b.tls = &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{pair},
		NextProtos:   []string{"http/1.1"},
		CipherSuites: []uint16{
			tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
		},
	}
	if b.hostname, err = os.Hostname(); err != nil {
		b.hostname = ""
	}
	return b, nil
}

// Run listens and serves until ctx ends. If it cannot listen, it tries again.
func (b *Bus) Run(ctx context.Context) error {
	var listener *net.TCPListener
	err := retry.Do(
		ctx,
		retry.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.5},
		func(ctx context.Context) (err error) {
			if listener, err = tcp.Listen(ctx, b.address); err != nil {
				b.options.Log.WithError(err).Warn("cannot listen for https")
				if b.options.OnFailure != nil {
					b.options.OnFailure(err)
				}
			}
			return err
		},
	)
	if err != nil {
		return nil // the retries end only with ctx
	}
	address, _ := listener.Addr().(*net.TCPAddr)
	b.bound.Store(address)
	defer b.bound.Store(nil)
	b.options.Log.WithField("address", address.String()).Info("listening for https")
	if b.options.OnListen != nil {
		b.options.OnListen(address.String())
	}
	serverErrors := b.options.Log.WriterLevel(logrus.DebugLevel)
	defer func() { _ = serverErrors.Close() }() // a pipe
	server := &http.Server{
		Handler:           b,
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          log.New(serverErrors, "", 0),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			if t, ok := conn.(*tls.Conn); ok {
				conn = t.NetConn()
			}
			return context.WithValue(ctx, pendingKey{}, conn)
		},
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(tls.NewListener(pendingListener{listener, newPendingConns()}, b.tls)) }()
	select {
	case err := <-ended:
		return fmt.Errorf("https bus: %w", err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	if server.Shutdown(last) != nil {
		_ = server.Close() // closes the remaining connections
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("https bus: %w", err)
	}
	return nil
}

// Address returns the address on which the bus listens, or nil.
func (b *Bus) Address() net.Addr {
	if a := b.bound.Load(); a != nil {
		return a
	}
	return nil
}

// Connected reports whether the bus listens.
func (b *Bus) Connected() bool { return b.bound.Load() != nil }

// Publish does nothing, because no Health Monitor listens on this bus.
func (b *Bus) Publish(context.Context, string, string, any) error { return nil }
