// Package metadata implements the sources HTTP and InstanceMetadata: settings from the metadata service of an IaaS.
package metadata

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/sirupsen/logrus"

	"cambium/infrastructure/internal/fetch"
	"cambium/infrastructure/internal/source"
	"cambium/internal/retry"
	"cambium/internal/secret"
)

const (
	tokenHeader    = "X-aws-ec2-metadata-token"
	tokenTTLHeader = "X-aws-ec2-metadata-token-ttl-seconds"
	tokenTTL       = "300"
	tokenTimeout   = 5 * time.Second

	// keyTries is the number of attempts to get a key if the service returns temporary errors.
	keyTries = 3
)

// Options holds the options of agent.json, and functions that connect the source to the agent.
type Options struct {
	URI     secret.URL
	Headers map[string]secret.String
	// SettingsPath is UserDataPath for HTTP, and SettingsPath for InstanceMetadata.
	SettingsPath   string
	InstanceIDPath string
	SSHKeysPath    string
	TokenPath      string

	// NetworkUp reports whether a usable network is up. If it is nil, there always is one.
	NetworkUp func(context.Context) bool
	// Connecting, if not nil, is called before each connection to the service.
	Connecting func(ctx context.Context, server netip.AddrPort)
	Log        *logrus.Entry
}

// Source fetches settings from a metadata service.
type Source struct {
	o      Options
	kind   string
	client fetch.Client
	// warned prevents a warning every second about a service without tokens.
	warned atomic.Bool
}

// NewHTTP returns an HTTP source. It concatenates URI and path to a URL.
func NewHTTP(o Options) *Source {
	return &Source{o: o, kind: "HTTP", client: fetch.Client{Connecting: o.Connecting}}
}

// NewInstanceMetadata returns an InstanceMetadata source, which provides settings only.
func NewInstanceMetadata(o Options) *Source {
	return &Source{
		o: Options{
			URI:          o.URI,
			Headers:      o.Headers,
			SettingsPath: o.SettingsPath,
			NetworkUp:    o.NetworkUp,
			Log:          o.Log,
		},
		kind:   "InstanceMetadata",
		client: fetch.Client{Connecting: o.Connecting},
	}
}

// Name returns the type and the URL, without credentials.
func (s *Source) Name() string {
	return s.kind + " " + s.printablePath(s.o.SettingsPath)
}

// Settings fetches the document, which may not exist yet on a new machine.
func (s *Source) Settings(ctx context.Context) (source.Answer, error) {
	switch {
	case s.o.URI.Empty():
		return source.Answer{}, source.Final(errors.New("URI is empty"))
	case s.o.SettingsPath == "" && s.kind == "InstanceMetadata":
		return source.Answer{}, source.Final(errors.New("SettingsPath is empty"))
	}
	response, err := s.get(ctx, s.o.SettingsPath, source.MaxDocument)
	if err != nil {
		return source.Answer{}, err
	}
	at := s.printablePath(s.o.SettingsPath)
	if err := response.Err(); err != nil {
		return source.Answer{}, fmt.Errorf("%s: %w", at, err)
	}
	document, err := source.Decode(response.Body)
	if err != nil {
		return source.Answer{}, source.NotYet(fmt.Errorf("%s: %w", at, err))
	}
	return source.Answer{Raw: secret.NewJSON(document), From: s.Name()}, nil
}

// PublicKey fetches the SSH key. Only transport errors and temporary errors of the service are retried. Any other
// status but success means that there is no key.
func (s *Source) PublicKey(ctx context.Context) (string, error) {
	if s.o.SSHKeysPath == "" {
		return "", nil
	}
	var response fetch.Response
	for try := 1; ; try++ {
		var err error
		if response, err = s.get(ctx, s.o.SSHKeysPath, source.MaxShort); err != nil {
			return "", err
		}
		if !temporary(response.Status) || try == keyTries {
			break
		}
		if err := retry.Sleep(ctx, retry.Backoff{Jitter: 0.2}.Pause(0)); err != nil {
			return "", err
		}
	}
	at := s.printablePath(s.o.SSHKeysPath)
	if !response.OK() {
		if response.Status != http.StatusNotFound {
			s.o.Log.
				WithFields(logrus.Fields{"url": at, "status": response.Status}).
				Warn("no ssh key: the metadata service refused")
		}
		return "", nil
	}
	key := string(response.Body)
	if strings.ContainsFunc(key,
		func(r rune) bool { return unicode.IsControl(r) && !unicode.IsSpace(r) || r == unicode.ReplacementChar }) {
		return "", source.Final(fmt.Errorf("%s: the ssh key is not text", at))
	}
	return key, nil
}

// temporary reports whether a status justifies a retry.
func temporary(status int) bool {
	return status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout
}

// InstanceID fetches the machine's key in a registry. It returns "" if no path is configured.
func (s *Source) InstanceID(ctx context.Context) (string, error) {
	if s.o.InstanceIDPath == "" {
		return "", nil
	}
	response, err := s.get(ctx, s.o.InstanceIDPath, source.MaxShort)
	if err != nil {
		return "", err
	}
	at := s.printablePath(s.o.InstanceIDPath)
	if err := response.Err(); err != nil {
		return "", fmt.Errorf("%s: %w", at, err)
	}
	id := strings.TrimSpace(string(response.Body))
	if id == "" {
		return "", source.NotYet(fmt.Errorf("%s: %w", at, source.ErrEmpty))
	}
	return id, nil
}

func (s *Source) get(ctx context.Context, path string, limit int64) (fetch.Response, error) {
	if s.o.NetworkUp != nil && !s.o.NetworkUp(ctx) && fetch.NeedsNetwork(s.o.URI.Reveal()) {
		return fetch.Response{}, &source.NeedNetwork{}
	}
	header := maps.Clone(s.o.Headers)
	token, err := s.token(ctx)
	if err != nil {
		return fetch.Response{}, err
	}
	if !token.Empty() {
		if header == nil {
			header = map[string]secret.String{}
		}
		header[tokenHeader] = token
	}
	return s.client.Do(ctx, fetch.Request{URL: s.o.URI.Reveal() + path, Header: header, Limit: limit})
}

// token fetches an IMDSv2 token, a new one for each request since tokens expire. It returns none if that fails: IMDSv1
// services accept a request without one, and the response of an IMDSv2 service reports the error.
func (s *Source) token(ctx context.Context) (secret.String, error) {
	if s.o.TokenPath == "" {
		return secret.String{}, nil
	}
	response, err := s.client.Do(ctx, fetch.Request{
		Method:  http.MethodPut,
		URL:     s.o.URI.Reveal() + s.o.TokenPath,
		Header:  map[string]secret.String{tokenTTLHeader: secret.New(tokenTTL)},
		Limit:   source.MaxShort,
		Timeout: tokenTimeout,
	})
	if ctx.Err() != nil {
		return secret.String{}, context.Cause(ctx)
	}
	token := strings.TrimSpace(string(response.Body))
	switch {
	case err != nil:
	case response.Status != http.StatusOK:
		err = errors.New(response.StatusText())
	case token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		err = errors.New("the answer is not a token")
	default:
		s.warned.Store(false)
		return secret.New(token), nil
	}
	if !s.warned.Swap(true) {
		s.o.Log.WithError(err).Warn("no metadata token; asking without one (IMDSv1)")
	}
	return secret.String{}, nil
}

// printablePath returns the URL of path without credentials.
func (s *Source) printablePath(path string) string { return secret.RedactURL(s.o.URI.Reveal() + path) }
