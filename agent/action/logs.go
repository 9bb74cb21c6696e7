package action

import (
	"context"
	"errors"
	"io"

	"cambium/internal/secret"
	"cambium/jobs/logs"
)

// Logs collects the machine's logs.
type Logs interface {
	Check(s logs.Selection) error
	Collect(ctx context.Context, s logs.Selection, w io.Writer) error
	Bundle(ctx context.Context, s logs.Selection, owner string) (logs.Bundle, error)
}

// fetched is the result of fetch_logs: the blob id of the archive, and its digest.
type fetched struct {
	BlobstoreID string `json:"blobstore_id,omitempty"`
	Digest      string `json:"sha1"`
}

func fetchLogs(d Deps) func(context.Context, string, []string) (fetched, error) {
	return func(ctx context.Context, types string, filters []string) (f fetched, err error) {
		selection := logs.Selection{Types: types, Filters: filters}
		if err := d.Logs.Check(selection); err != nil {
			return fetched{}, err
		}
		f.BlobstoreID, f.Digest, err = d.Uploads.Put(ctx,
			func(w io.Writer) error { return d.Logs.Collect(ctx, selection, w) })
		return f, err
	}
}

// signedLogs is the argument of fetch_logs_with_signed_url.
type signedLogs struct {
	URL     secret.URL               `json:"signed_url"`
	Types   string                   `json:"log_type"`
	Filters []string                 `json:"filters"`
	Headers map[string]secret.String `json:"blobstore_headers"`
}

// Check refuses a request without a URL.
func (s *signedLogs) Check() error {
	if s.URL.Empty() {
		return errors.New("signed_url is missing")
	}
	return nil
}

func fetchLogsSigned(d Deps) func(context.Context, signedLogs) (fetched, error) {
	return func(ctx context.Context, s signedLogs) (f fetched, err error) {
		selection := logs.Selection{Types: s.Types, Filters: s.Filters}
		if err := d.Logs.Check(selection); err != nil {
			return fetched{}, err
		}
		f.Digest, err = d.Uploads.PutSigned(ctx, s.URL, s.Headers,
			func(w io.Writer) error { return d.Logs.Collect(ctx, selection, w) })
		return f, err
	}
}

// logBundle is the argument of bundle_logs.
type logBundle struct {
	Owner   string   `json:"owning_user"`
	Types   string   `json:"log_type"`
	Filters []string `json:"filters"`
}

// bundledLogs is the result of bundle_logs.
type bundledLogs struct {
	Path   string `json:"logs_tar_path"`
	SHA512 string `json:"sha512"`
}

func bundleLogs(l Logs) func(context.Context, logBundle) (bundledLogs, error) {
	return func(ctx context.Context, b logBundle) (bundledLogs, error) {
		bundle, err := l.Bundle(ctx, logs.Selection{Types: b.Types, Filters: b.Filters}, b.Owner)
		return bundledLogs{Path: bundle.Path, SHA512: bundle.SHA512}, err
	}
}
