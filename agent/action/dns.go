package action

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"cambium/internal/atomicfile"
	"cambium/internal/blob"
	"cambium/internal/secret"
)

// HostsFile is the machine's /etc/hosts.
type HostsFile interface {
	// WriteHosts replaces it by the machine's own lines followed by one per record {address,
	// name}.
	WriteHosts(ctx context.Context, records [][2]string) error
}

// DNS brings the deployment's names to the machine: into the hosts file, and as a file that
// bosh-dns reads. Both actions share one, so that two broadcasts cannot overtake each other.
type DNS struct {
	Blobs blob.Opener
	Hosts HostsFile
	// Records is the file for bosh-dns, GID the group that may read it.
	Records string
	GID     int

	mu sync.Mutex
}

// maxRecords bounds what is read into memory; the largest deployments have a few megabytes.
const maxRecords = 256 << 20

const synced = "synced"

// signedDNS is the argument of sync_dns_with_signed_url.
type signedDNS struct {
	SignedURL secret.URL               `json:"signed_url"`
	Digest    string                   `json:"multi_digest"`
	Version   uint64                   `json:"version"`
	Headers   map[string]secret.String `json:"blobstore_headers"`
}

// Check refuses a request without an address.
func (s *signedDNS) Check() error {
	if s.SignedURL.Empty() {
		return errors.New("signed_url is missing")
	}
	return nil
}

func (d *DNS) sync(ctx context.Context, id, digest string, version uint64) (string, error) {
	return d.update(ctx, blob.Ref{ID: id}, digest, version)
}

func (d *DNS) syncSigned(ctx context.Context, s signedDNS) (string, error) {
	return d.update(ctx, blob.Ref{SignedURL: s.SignedURL, Headers: s.Headers}, s.Digest, s.Version)
}

func (d *DNS) update(ctx context.Context, ref blob.Ref, digest string, version uint64) (string, error) {
	var err error
	if ref.Digest, err = blob.ParseDigest(digest); err != nil {
		return "", fmt.Errorf("sync dns: digest: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if have, ok := d.version(); ok && have >= version {
		return synced, nil
	}
	content, records, err := d.fetch(ctx, ref, version)
	if err != nil {
		return "", fmt.Errorf("sync dns: %w", err)
	}
	if err := d.Hosts.WriteHosts(ctx, records); err != nil {
		return "", fmt.Errorf("sync dns: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(d.Records), 0o755); err != nil {
		return "", fmt.Errorf("sync dns: %w", err)
	}
	// Verbatim, because bosh-dns reads keys that the agent does not know; last, because this file
	// records which version is in force.
	if err := atomicfile.Write(d.Records, content, 0o640, atomicfile.Owner(os.Getuid(), d.GID)); err != nil {
		return "", fmt.Errorf("sync dns: %w", err)
	}
	return synced, nil
}

// version is the one on disk; a file that cannot be read needs an update.
func (d *DNS) version() (uint64, bool) {
	data, err := os.ReadFile(d.Records)
	if err != nil {
		return 0, false
	}
	var have struct {
		Version *uint64 `json:"version"`
	}
	if json.Unmarshal(data, &have) != nil || have.Version == nil {
		return 0, false
	}
	return *have.Version, true
}

func (d *DNS) fetch(ctx context.Context, ref blob.Ref, version uint64) ([]byte, [][2]string, error) {
	reader, err := d.Blobs.Open(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	content, err := io.ReadAll(io.LimitReader(reader, maxRecords+1))
	if err = errors.Join(err, reader.Close()); err != nil {
		return nil, nil, err
	}
	if len(content) > maxRecords {
		return nil, nil, errors.New("the records are too long")
	}
	var doc struct {
		Version *uint64    `json:"version"`
		Records [][]string `json:"records"`
	}
	if err := json.Unmarshal(content, &doc); err != nil {
		return nil, nil, fmt.Errorf("records: %w", hideContent(err))
	}
	if doc.Version == nil || *doc.Version != version {
		return nil, nil, errors.New("the records are of another version than was asked for")
	}
	records := make([][2]string, 0, len(doc.Records))
	for _, r := range doc.Records {
		if len(r) < 2 {
			return nil, nil, errors.New("records: one of them is not a pair")
		}
		records = append(records, [2]string{r[0], r[1]})
	}
	return content, records, nil
}
