// Package blobstore fetches and stores blobs: in local directories, in the store that the settings configure, and at
// signed URLs. A reader verifies the content against its digest as it streams, and returns io.EOF only if they match.
//
// WebDAV, local directories and signed URLs are implemented here. Any other provider needs a program of the stemcell,
// bosh-blobstore-PROVIDER.
package blobstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"cambium/internal/atomicfile"
	"cambium/internal/blob"
	"cambium/internal/retry"
	"cambium/internal/secret"
	"cambium/internal/tempfile"
	"cambium/internal/vcap"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"
)

// ErrNotFound is returned for a blob that the store does not have. It also matches fs.ErrNotExist, for callers that use
// a Dir as plain files.
var ErrNotFound error = notFound{}

type notFound struct{}

func (notFound) Error() string        { return "no such blob" }
func (notFound) Is(target error) bool { return target == fs.ErrNotExist }

// Options selects and configures a store.
type Options struct {
	Provider string
	// Options holds the provider's options as found in the settings.
	Options secret.JSON
	Dirs    vcap.Dirs
	Log     *logrus.Entry
	// Backoff spaces the attempts. If zero, the pauses grow from one second to ten.
	Backoff retry.Backoff
	// SearchPath replaces PATH in the search for external programs.
	SearchPath string
}

// backend is a remote or local store. Callers verify the content.
type backend interface {
	open(ctx context.Context, id string) (io.ReadCloser, error)
	put(ctx context.Context, id string, content *spool) error
}

// Store reads blobs from local directories first, then from the configured store. It writes to the configured store,
// which update_settings may replace at any time. Before there is one, methods return the error of the last Prepare.
type Store struct {
	mu   sync.RWMutex // guards the fields below
	used *configured
	err  error // of the last Prepare while used is nil
}

// configured is a store with one configuration.
type configured struct {
	backend   backend
	local     []*Dir
	web       *web
	tmp       string
	localDir  *Dir // the configured store's; nil if that is remote
	sensitive *Dir // uploaded by the Director: rendered templates with secrets
	blobs     *Dir // uploaded to the agent's HTTPS endpoint
}

// New creates a store without connecting to it. Invalid options and missing programs fail here, not at the first blob.
func New(o Options) (*Store, error) {
	c, err := configure(o)
	return &Store{used: c}, err
}

// Prepare checks a configuration without using it yet. Calling use puts it into use.
func (s *Store) Prepare(o Options) (use func(), err error) {
	c, err := configure(o)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used == nil {
		s.err = err
	}
	if err != nil {
		return nil, err
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.used, s.err = c, nil
	}, nil
}

func (s *Store) current() (*configured, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.used == nil && s.err == nil {
		return nil, errors.New("there is no blobstore")
	}
	return s.used, s.err
}

func configure(o Options) (*configured, error) {
	if o.Backoff == (retry.Backoff{}) {
		o.Backoff = defaultBackoff
	}
	var common struct {
		TLS struct {
			Cert struct {
				CA string `json:"ca"`
			} `json:"cert"`
		} `json:"tls"`
	}
	if !o.Options.Empty() {
		if err := json.Unmarshal(o.Options.Reveal(), &common); err != nil {
			return nil, fmt.Errorf("blobstore %s: the options cannot be decoded", o.Provider)
		}
	}
	web, err := newWeb(common.TLS.Cert.CA, o)
	if err != nil {
		return nil, fmt.Errorf("blobstore %s: %w", o.Provider, err)
	}
	c := &configured{
		web:       web,
		tmp:       o.Dirs.Tmp(),
		sensitive: &Dir{Path: o.Dirs.SensitiveBlobs()},
		blobs:     &Dir{Path: o.Dirs.Blobs()},
	}
	c.local = []*Dir{c.sensitive, c.blobs}
	switch o.Provider {
	case "", "dummy":
		c.backend = dummy{}
	case "local":
		dir, err := localDir(o)
		if err != nil {
			return nil, err
		}
		c.backend, c.localDir = local{dir}, dir
	case "dav":
		c.backend, err = newDAV(o.Options, web)
		if err != nil {
			return nil, err
		}
	default:
		c.backend, err = newExternal(o)
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

func localDir(o Options) (*Dir, error) {
	var options struct {
		Path string `json:"blobstore_path"`
	}
	if o.Options.Empty() || json.Unmarshal(o.Options.Reveal(), &options) != nil || options.Path == "" {
		return nil, errors.New("blobstore local: the option blobstore_path is missing")
	}
	if filepath.Clean(options.Path) == vcap.CreateEnvBlobs {
		return &Dir{Path: o.Dirs.Blobs()}, nil
	}
	return &Dir{Path: options.Path}, nil
}

// Remove deletes the local copies of a blob. The configured store keeps its own.
func (s *Store) Remove(id string) error {
	c, err := s.current()
	if err != nil {
		return err
	}
	var faults []error
	for _, dir := range c.local {
		if err := dir.Remove(id); err != nil && !errors.Is(err, errBadID) {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// Open implements blob.Opener. It uses the signed URL if there is one; otherwise it looks for the ID in the local
// directories, then in the configured store.
func (s *Store) Open(ctx context.Context, ref blob.Ref) (io.ReadCloser, error) {
	c, err := s.current()
	if err == nil {
		_, err = ref.Digest.Check()
	}
	if err != nil {
		return nil, err
	}
	var content io.ReadCloser
	switch {
	case !ref.SignedURL.Empty():
		content, err = c.web.get(ctx, ref.SignedURL, func(h http.Header) { setHeaders(h, ref.Headers) })
		err = named(err, "get", ref.SignedURL.String())
	case ref.ID != "":
		content, err = c.openID(ctx, ref)
	default:
		err = errors.New("a blob has neither a signed URL nor an id")
	}
	if err != nil {
		return nil, err
	}
	return ref.Digest.Verify(content)
}

func named(err error, verb, what string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", verb, what, err)
}

func (c *configured) openID(ctx context.Context, ref blob.Ref) (io.ReadCloser, error) {
	var doubts []error
	for _, dir := range c.local {
		content, err := dir.openChecked(ref.ID, ref.Digest)
		if err == nil {
			return content, nil
		}
		if !errors.Is(err, ErrNotFound) && !errors.Is(err, errBadID) {
			// A damaged local copy is skipped if the store has the blob.
			doubts = append(doubts, err)
		}
	}
	content, err := c.backend.open(ctx, ref.ID)
	if err == nil {
		return content, nil
	}
	// If the store does not have the blob, report only the damaged copy.
	if !errors.Is(err, ErrNotFound) || len(doubts) == 0 {
		doubts = append(doubts, err)
	}
	return nil, fmt.Errorf("get blob %s: %w", ref.ID, errors.Join(doubts...))
}

// Put stores the output of produce as a new blob in the configured store. It returns the blob's id and SHA-1.
func (s *Store) Put(ctx context.Context, produce func(io.Writer) error) (id, digest string, err error) {
	c, err := s.current()
	if err != nil {
		return "", "", err
	}
	id = uuid.NewString()
	if c.localDir != nil {
		sums := blob.NewSums()
		err := c.localDir.write(id, func(w io.Writer) error { return produce(io.MultiWriter(w, sums)) })
		return id, sums.SHA1(), err
	}
	content, err := newSpool(c.tmp, produce)
	if err != nil {
		return "", "", err
	}
	defer content.close()
	if err := c.backend.put(ctx, id, content); err != nil {
		return "", "", fmt.Errorf("put blob %s: %w", id, err)
	}
	return id, content.sums.SHA1(), nil
}

// PutSigned uploads the output of produce to a signed URL and returns its digests.
func (s *Store) PutSigned(ctx context.Context, url secret.URL, headers map[string]secret.String,
	produce func(io.Writer) error) (digest string, err error) {
	c, err := s.current()
	if err != nil {
		return "", err
	}
	content, err := newSpool(c.tmp, produce)
	if err != nil {
		return "", err
	}
	defer content.close()
	if err := c.web.put(ctx, url, func(h http.Header) { setHeaders(h, headers) }, content); err != nil {
		return "", fmt.Errorf("put %s: %w", url, err)
	}
	return content.sums.BothDigests(), nil
}

// WriteChecked stores a blob with secrets that the Director uploads, and fails if content does not match the digest.
func (s *Store) WriteChecked(id string, content io.Reader, digest blob.Digest) error {
	c, err := s.current()
	if err != nil {
		return err
	}
	return c.sensitive.WriteChecked(id, content, digest)
}

// Sweep removes unfinished blobs and temporary files that a crash left. Without a store it does nothing.
func (s *Store) Sweep() error {
	c, err := s.current()
	if err != nil {
		return nil // Prepare has returned the reason
	}
	left, err := filepath.Glob(filepath.Join(c.tmp, "blob-*"))
	faults := []error{err, atomicfile.Sweep(c.tmp), atomicfile.Sweep(c.sensitive.Path), atomicfile.Sweep(c.blobs.Path)}
	for _, path := range left {
		faults = append(faults, os.RemoveAll(path))
	}
	return errors.Join(faults...)
}

func setHeaders(h http.Header, headers map[string]secret.String) {
	for name, value := range headers {
		h.Set(name, value.Reveal())
	}
}

// spool buffers an upload in an unnamed file: the request needs the length first, and a retry needs the content again.
// A crash leaves no file.
type spool struct {
	file *os.File
	sums *blob.Sums
}

func newSpool(dir string, produce func(io.Writer) error) (*spool, error) {
	file, err := tempfile.Unnamed(dir)
	if err != nil {
		return nil, err
	}
	s := &spool{file: file, sums: blob.NewSums()}
	bounded, err := tempfile.NewWriter(file)
	if err == nil {
		err = produce(io.MultiWriter(bounded, s.sums))
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return s, nil
}

func (s *spool) reader() io.Reader { return io.NewSectionReader(s.file, 0, s.sums.Size()) }

// path returns a path under which another program can open the file.
func (s *spool) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), s.file.Fd()) }

func (s *spool) close() { s.file.Close() }

// dummy is the backend of an agent without a store: it finds nothing and discards uploads.
type dummy struct{}

func (dummy) open(context.Context, string) (io.ReadCloser, error) { return nil, ErrNotFound }
func (dummy) put(context.Context, string, *spool) error           { return nil }

// local keeps blobs in a directory, as the configured store.
type local struct{ dir *Dir }

func (l local) open(_ context.Context, id string) (io.ReadCloser, error) { return l.dir.Open(id) }

func (l local) put(_ context.Context, id string, content *spool) error {
	return l.dir.Write(id, content.reader())
}

// notExist turns fs.ErrNotExist into ErrNotFound.
func notExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound
	}
	return err
}
