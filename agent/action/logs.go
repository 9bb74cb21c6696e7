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

// Fetched tells where the archive is and how to check it.
type Fetched struct {
	BlobstoreID string `json:"blobstore_id,omitempty"`
	Digest      string `json:"sha1"`
}

func fetchLogs(d JobDeps) func(context.Context, string, []string) (Fetched, error) {
	return func(ctx context.Context, types string, filters []string) (f Fetched, err error) {
		selection := logs.Selection{Types: types, Filters: filters}
		if err := d.Logs.Check(selection); err != nil {
			return Fetched{}, err
		}
		f.BlobstoreID, f.Digest, err = d.Uploads.Put(ctx, func(w io.Writer) error { return d.Logs.Collect(ctx, selection, w) })
		return f, err
	}
}

// SignedLogs is the argument of fetch_logs_with_signed_url.
type SignedLogs struct {
	URL     secret.URL               `json:"signed_url"`
	Types   string                   `json:"log_type"`
	Filters []string                 `json:"filters"`
	Headers map[string]secret.String `json:"blobstore_headers"`
}

// Check refuses a request without an address.
func (s *SignedLogs) Check() error {
	if s.URL.Empty() {
		return errors.New("signed_url is missing")
	}
	return nil
}

func fetchLogsSigned(d JobDeps) func(context.Context, SignedLogs) (Fetched, error) {
	return func(ctx context.Context, s SignedLogs) (f Fetched, err error) {
		selection := logs.Selection{Types: s.Types, Filters: s.Filters}
		if err := d.Logs.Check(selection); err != nil {
			return Fetched{}, err
		}
		f.Digest, err = d.Uploads.PutSigned(ctx, s.URL, s.Headers, func(w io.Writer) error { return d.Logs.Collect(ctx, selection, w) })
		return f, err
	}
}

// LogBundle is the argument of bundle_logs.
type LogBundle struct {
	Owner   string   `json:"owning_user"`
	Types   string   `json:"log_type"`
	Filters []string `json:"filters"`
}

// BundledLogs is the answer to bundle_logs.
type BundledLogs struct {
	Path   string `json:"logs_tar_path"`
	SHA512 string `json:"sha512"`
}

func bundleLogs(l Logs) func(context.Context, LogBundle) (BundledLogs, error) {
	return func(ctx context.Context, b LogBundle) (BundledLogs, error) {
		bundle, err := l.Bundle(ctx, logs.Selection{Types: b.Types, Filters: b.Filters}, b.Owner)
		return BundledLogs{Path: bundle.Path, SHA512: bundle.SHA512}, err
	}
}
