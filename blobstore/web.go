package blobstore

import (
	"context"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"cambium/internal/retry"
	"cambium/internal/secret"

	"github.com/sirupsen/logrus"
)

// Limits of transfers over HTTP. There is no limit for a whole transfer: blobs may be large and
// links slow. A stalled transfer is aborted and resumed.
const (
	maxAttempts  = 3
	dialTimeout  = 30 * time.Second
	replyTimeout = 2 * time.Minute
	stallTimeout = time.Minute
)

var defaultBackoff = retry.Backoff{Min: time.Second, Max: 10 * time.Second, Factor: 3, Jitter: 0.3}

// web is an HTTP client with retries. It resumes interrupted downloads with a Range request.
type web struct {
	client  *http.Client
	backoff retry.Backoff
	stall   time.Duration
	log     *logrus.Entry
}

func newWeb(ca string, o Options) (*web, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(ca)) {
			return nil, errors.New("tls.cert.ca contains no certificate")
		}
	}
	// The Director's own blobstore supports these; cloud servers choose for themselves.
	switch o.Provider {
	case "", "dav", "local", "dummy":
		config.CipherSuites = []uint16{
			tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
		}
	}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout:   dialTimeout,
		TLSClientConfig:       config,
		ResponseHeaderTimeout: replyTimeout,
		ExpectContinueTimeout: 5 * time.Second,
		IdleConnTimeout:       30 * time.Second,
		// Digests are those of the stored bytes.
		DisableCompression: true,
	}
	return &web{
		client:  &http.Client{Transport: transport, CheckRedirect: redirect},
		backoff: o.Backoff,
		stall:   stallTimeout,
		log:     o.Log,
	}, nil
}

// statusError reports an HTTP status other than success. Its text never contains the response body, which may quote the
// request.
type statusError struct{ code int }

func (e statusError) Error() string {
	return fmt.Sprintf("the server answered %d %s", e.code, http.StatusText(e.code))
}

func (e statusError) Is(target error) bool {
	return target == ErrNotFound && e.code == http.StatusNotFound
}

// final reports whether a retry would not help.
func (e statusError) final() bool {
	return e.code < 500 && e.code != http.StatusRequestTimeout && e.code != http.StatusTooManyRequests
}

// attempts calls op until it succeeds or fails for good, at most maxAttempts times.
func attempts(ctx context.Context, b retry.Backoff, op func(context.Context) error) error {
	tried := 0
	return retry.Do(ctx, b, func(ctx context.Context) error {
		err := op(ctx)
		tried++
		var status statusError
		if errors.As(err, &status) && status.final() || tried >= maxAttempts {
			return retry.Final(err)
		}
		return err
	})
}

func (w *web) get(ctx context.Context, address secret.URL, prepare func(http.Header)) (io.ReadCloser, error) {
	d := &download{web: w, ctx: ctx, address: address, prepare: prepare}
	// Connect now, so that the caller learns of a missing blob at once.
	if err := attempts(ctx, w.backoff, d.connect); err != nil {
		return nil, err
	}
	return d, nil
}

// download reads a response body and resumes it after interruptions.
type download struct {
	web     *web
	ctx     context.Context
	address secret.URL
	prepare func(http.Header)

	body   io.ReadCloser
	cancel context.CancelFunc
	watch  *time.Timer
	offset int64
	etag   string
	failed int // attempts since the last byte
}

func (d *download) connect(context.Context) error {
	// The body is read under this context: canceling it aborts a stalled transfer.
	ctx, cancel := context.WithCancel(d.ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.address.Reveal(), nil)
	if err != nil {
		cancel()
		return retry.Final(errors.New("not a valid URL"))
	}
	d.prepare(req.Header)
	if d.offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", d.offset))
		if d.etag != "" {
			req.Header.Set("If-Range", d.etag)
		}
	}
	resp, err := d.web.client.Do(req)
	if err != nil {
		cancel()
		return withoutURL(err)
	}
	skip, err := d.position(resp)
	if err != nil {
		resp.Body.Close()
		cancel()
		return err
	}
	if etag := resp.Header.Get("ETag"); !strings.HasPrefix(etag, "W/") {
		d.etag = etag
	}
	d.body, d.cancel = resp.Body, cancel
	d.watch = time.AfterFunc(d.web.stall, cancel)
	if skip > 0 {
		if err := d.skip(skip); err != nil {
			d.drop()
			return err
		}
	}
	return nil
}

// position returns the number of bytes at the start of the response that were already read. A server may ignore the
// range.
func (d *download) position(resp *http.Response) (skip int64, err error) {
	switch {
	case resp.StatusCode == http.StatusPartialContent && d.offset > 0:
		var from int64
		if _, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-", &from); err != nil || from > d.offset {
			return 0, errors.New("the server returned a different range than the requested one")
		}
		return d.offset - from, nil
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		return d.offset, nil
	}
	return 0, statusError{resp.StatusCode}
}

func (d *download) skip(n int64) error {
	buffer := make([]byte, 64<<10)
	for n > 0 {
		d.watch.Reset(d.web.stall)
		m, err := d.body.Read(buffer[:min(int64(len(buffer)), n)])
		n -= int64(m)
		if err != nil && n > 0 {
			return io.ErrUnexpectedEOF
		}
	}
	return nil
}

func (d *download) Read(p []byte) (int, error) {
	for {
		var err error
		if d.body == nil {
			err = d.connect(d.ctx)
		}
		if err == nil {
			d.watch.Reset(d.web.stall)
			var n int
			n, err = d.body.Read(p)
			// The stall timeout covers reads from the server only, not the consumer.
			d.watch.Stop()
			d.offset += int64(n)
			if n > 0 {
				d.failed = 0
			}
			if n > 0 || err == nil || err == io.EOF {
				if err != nil && err != io.EOF {
					d.drop()
					err = nil
				}
				return n, err
			}
			d.drop()
		}
		if d.ctx.Err() != nil {
			return 0, context.Cause(d.ctx)
		}
		d.failed++
		var status statusError
		if errors.As(err, &status) && status.final() || d.failed >= maxAttempts {
			return 0, fmt.Errorf("download stopped after %d bytes: %w", d.offset, err)
		}
		d.web.log.WithFields(logrus.Fields{"offset": d.offset, "attempt": d.failed, "error": err}).
			Warn("download interrupted, resuming")
		if err := retry.Sleep(d.ctx, d.web.backoff.Pause(d.failed-1)); err != nil {
			return 0, err
		}
	}
}

func (d *download) drop() {
	d.watch.Stop()
	d.cancel()
	d.body.Close()
	d.body = nil
}

func (d *download) Close() error {
	if d.body != nil {
		d.drop()
	}
	return nil
}

func (w *web) put(ctx context.Context, address secret.URL, prepare func(http.Header), content *spool) error {
	return attempts(ctx, w.backoff, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, address.Reveal(), io.NopCloser(content.reader()))
		if err != nil {
			return retry.Final(errors.New("not a valid URL"))
		}
		req.ContentLength = content.sums.Size()
		if req.ContentLength == 0 {
			req.Body = http.NoBody
		}
		req.Header.Set("Accept", "*/*")
		// With Expect: 100-continue a server refuses the request before the content is sent.
		req.Header.Set("Expect", "100-continue")
		prepare(req.Header)
		resp, err := w.client.Do(req)
		if err != nil {
			return withoutURL(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
		if resp.StatusCode < 200 || resp.StatusCode > 299 {
			return statusError{resp.StatusCode}
		}
		return nil
	})
}

// maxRedirects is net/http's own limit.
const maxRedirects = 10

// redirect removes credentials when the host changes: encryption keys, passwords, and the Referer, which
// would quote the signed URL.
func redirect(next *http.Request, via []*http.Request) error {
	first := via[0]
	switch {
	case len(via) >= maxRedirects:
		return fmt.Errorf("the server redirects more than %d times", maxRedirects)
	case first.URL.Scheme == "https" && next.URL.Scheme != "https":
		return errors.New("the server redirects from https to an unencrypted address")
	}
	next.Header.Del("Referer")
	if next.URL.Host == first.URL.Host {
		return nil
	}
	for name := range next.Header {
		switch name {
		case "Range", "If-Range", "Accept", "Expect":
		default:
			next.Header.Del(name)
		}
	}
	return nil
}

// withoutURL removes URLs, which contain the signature, from an error of net/http. An invalid redirect target is quoted
// in an untyped error.
func withoutURL(err error) error {
	var u *url.Error
	if !errors.As(err, &u) {
		return err
	}
	if strings.Contains(u.Err.Error(), "Location header") {
		return errors.New("the server redirects to an address that cannot be parsed")
	}
	return u.Err
}

// dav is a WebDAV server, such as the Director's own blobstore.
type dav struct {
	web            *web
	endpoint       string
	user, password secret.String
}

func newDAV(raw secret.JSON, w *web) (*dav, error) {
	var options struct {
		Endpoint secret.URL    `json:"endpoint"`
		User     secret.String `json:"user"`
		Password secret.String `json:"password"`
	}
	if !raw.Empty() {
		if err := json.Unmarshal(raw.Reveal(), &options); err != nil {
			return nil, fmt.Errorf("blobstore dav: the options cannot be decoded: %w", err)
		}
	}
	// A Director that signs URLs sends no credentials, and may send no endpoint; their absence is
	// an error only when they are used.
	return &dav{
		web:      w,
		endpoint: strings.TrimRight(options.Endpoint.Reveal(), "/"),
		user:     options.User,
		password: options.Password,
	}, nil
}

// address returns the URL of a blob. Blobs are spread over 256 directories.
func (d *dav) address(id string) (secret.URL, error) {
	if d.endpoint == "" {
		return secret.URL{}, errors.New("the blobstore has no endpoint")
	}
	sum := sha1.Sum([]byte(id))
	return secret.NewURL(fmt.Sprintf("%s/%02x/%s", d.endpoint, sum[0], url.PathEscape(id))), nil
}

func (d *dav) authorize(h http.Header) {
	if !d.user.Empty() || !d.password.Empty() {
		r := http.Request{Header: h}
		r.SetBasicAuth(d.user.Reveal(), d.password.Reveal())
	}
}

func (d *dav) open(ctx context.Context, id string) (io.ReadCloser, error) {
	address, err := d.address(id)
	if err != nil {
		return nil, err
	}
	return d.web.get(ctx, address, d.authorize)
}

func (d *dav) put(ctx context.Context, id string, content *spool) error {
	address, err := d.address(id)
	if err != nil {
		return err
	}
	return d.web.put(ctx, address, d.authorize, content)
}
