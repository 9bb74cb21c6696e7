package blobstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"cambium/internal/retry"
	"cambium/internal/vcap"

	"github.com/google/uuid"
)

// ErrCredentials is returned when a store rejects the configured user, key or password.
var ErrCredentials = errors.New("it refuses the user or password of the settings")

// Probe requests a blob that does not exist. asked is false for stores without a server or credentials of their own:
// local directories, and stores for which the Director signs URLs.
func Probe(ctx context.Context, o Options) (asked bool, err error) {
	// Work in a temporary directory: a program's options are written to a file, which must not replace the running
	// agent's.
	tmp, err := os.MkdirTemp("", "agent-blobstore-")
	if err != nil {
		return false, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	o.Dirs, o.Backoff = vcap.New(tmp), retry.Backoff{Min: time.Hour, Max: time.Hour} // one attempt
	var options any
	if o.Options.Empty() || json.Unmarshal(o.Options.Reveal(), &options) == nil && len(secretsOf(options, false)) == 0 {
		return false, nil
	}
	if err := os.MkdirAll(o.Dirs.Tmp(), 0o700); err != nil {
		return false, err
	}
	store, err := configure(o)
	if err != nil {
		return true, err
	}
	switch b := store.backend.(type) {
	case *dav:
		return true, b.probe(ctx)
	case *external:
		return true, b.probe(ctx)
	}
	return false, nil
}

func (d *dav) probe(ctx context.Context) error {
	address, err := d.address(uuid.NewString())
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.Reveal(), nil)
	if err != nil {
		return errors.New("its endpoint is not a valid URL")
	}
	d.authorize(request.Header)
	answer, err := d.web.client.Do(request)
	if err != nil {
		return withoutURL(err)
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.CopyN(io.Discard, answer.Body, 4<<10)
	switch answer.StatusCode {
	case http.StatusNotFound:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w: %w", ErrCredentials, statusError{answer.StatusCode})
	}
	return statusError{answer.StatusCode}
}

// refusals lists the error codes of object stores for an unknown key or a wrong secret. A 403 without one of them is
// normal: a key that may not list the bucket gets it for each absent object.
var refusals = []string{"InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthenticationFailed", "invalid_grant",
	"401 Unauthorized"}

// unreachables lists the messages of Go and curl for a failed connection.
var unreachables = []string{"connection refused", "no such host", "i/o timeout", "no route to host",
	"network is unreachable", "certificate", "TLS handshake timeout", "Could not resolve host"}

// probe reports only failed connections and rejected credentials. Any other error may be that of an absent object.
func (e *external) probe(ctx context.Context) error {
	content, err := e.open(ctx, uuid.NewString())
	if err == nil {
		return content.Close()
	}
	mentions := func(texts []string) bool {
		for _, text := range texts {
			if strings.Contains(err.Error(), text) {
				return true
			}
		}
		return false
	}
	switch {
	case mentions(refusals):
		return fmt.Errorf("%w: %w", ErrCredentials, err)
	case mentions(unreachables), ctx.Err() != nil:
		return err
	}
	return nil
}
