package action

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"cambium/internal/atomicfile"
	"cambium/internal/blob"
	"cambium/internal/retry"
	"cambium/internal/secret"
)

// HostsFile writes the machine's /etc/hosts.
type HostsFile interface {
	// WriteHosts writes the machine's own lines, and one line for each record {address, name}.
	WriteHosts(ctx context.Context, records [][2]string) error
}

// DNS writes the deployment's DNS records to the hosts file and to a file for bosh-dns. Both actions share one value,
// so that two broadcasts cannot overtake each other, and only the latest of several is fetched.
type DNS struct {
	Blobs blob.Opener
	Hosts HostsFile
	// Records is the file for bosh-dns, and GID the group that may read it.
	Records string
	GID     int

	mu      sync.Mutex    // guards the fields below
	asked   []uint64      // versions of the unanswered requests
	working bool          // one of them is being fetched and written
	changed chan struct{} // closed when one of them has been answered
}

// maxRecords bounds the size of the records; the largest deployments have a few megabytes.
const maxRecords = 256 << 20

const (
	// If the records on disk are manyRecords or more, the agents of the deployment fetch a new version within spread
	// and not all at once.
	manyRecords = 1000
	spread      = 2 * time.Second

	synced = "synced"
)

// signedDNS is the argument of sync_dns_with_signed_url.
type signedDNS struct {
	SignedURL secret.URL               `json:"signed_url"`
	Digest    string                   `json:"multi_digest"`
	Version   uint64                   `json:"version"`
	Headers   map[string]secret.String `json:"blobstore_headers"`
}

// Check refuses a request without a URL.
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
	have, count, ok := d.onDisk()
	if ok && have >= version {
		return synced, nil
	}
	d.ask(version)
	defer d.answered(version)
	if count >= manyRecords {
		if err := retry.Sleep(ctx, rand.N(spread)); err != nil {
			return "", fmt.Errorf("sync dns: %w", err)
		}
	}
	if err := d.turn(ctx, version); err != nil {
		return "", fmt.Errorf("sync dns: %w", err)
	}
	defer d.release()
	if have, _, ok := d.onDisk(); ok && have >= version {
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

// onDisk returns the version on disk and its number of records. ok is false if they cannot be read.
func (d *DNS) onDisk() (version uint64, records int, ok bool) {
	data, err := os.ReadFile(d.Records)
	if err != nil {
		return 0, 0, false
	}
	var have struct {
		Version *uint64           `json:"version"`
		Records []json.RawMessage `json:"records"`
	}
	if json.Unmarshal(data, &have) != nil || have.Version == nil {
		return 0, 0, false
	}
	return *have.Version, len(have.Records), true
}

// ask adds a request to those that are unanswered.
func (d *DNS) ask(version uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, version)
	if d.changed == nil {
		d.changed = make(chan struct{})
	}
}

// turn waits until no request is being fetched and no later version is asked for. A later version replaces this one; if
// it fails, this one is fetched.
func (d *DNS) turn(ctx context.Context, version uint64) error {
	for {
		d.mu.Lock()
		if !d.working && slices.Max(d.asked) == version {
			d.working = true
			d.mu.Unlock()
			return nil
		}
		changed := d.changed
		d.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// release lets the next request fetch its records.
func (d *DNS) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.working = false
}

// answered removes a request and wakes the others.
func (d *DNS) answered(version uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.Index(d.asked, version)
	d.asked = slices.Delete(d.asked, i, i+1)
	close(d.changed)
	d.changed = make(chan struct{})
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
		return nil, nil, errors.New("the records have a different version than the requested one")
	}
	records := make([][2]string, 0, len(doc.Records))
	for _, r := range doc.Records {
		if len(r) < 2 {
			return nil, nil, errors.New("records: expected pairs of address and name")
		}
		records = append(records, [2]string{r[0], r[1]})
	}
	return content, records, nil
}
