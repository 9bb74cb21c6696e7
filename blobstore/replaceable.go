package blobstore

import (
	"context"
	"errors"
	"io"
	"sync"

	"cambium/internal/blob"
	"cambium/internal/secret"
)

// Replaceable forwards to the store in use, which update_settings may replace at any time. Before there is a store,
// methods return the error of the last Prepare.
type Replaceable struct {
	mu    sync.RWMutex // guards store and err
	store *Store
	err   error // error of the last Prepare while store is nil
}

// Prepare creates a store without using it yet. Calling use puts it into use.
func (r *Replaceable) Prepare(o Options) (use func(), err error) {
	store, err := New(o)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.store == nil {
		r.err = err
	}
	if err != nil {
		return nil, err
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.store, r.err = store, nil
	}, nil
}

func (r *Replaceable) current() (*Store, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.store == nil && r.err == nil {
		return nil, errors.New("there is no blobstore")
	}
	return r.store, r.err
}

// Open calls Store.Open on the store in use.
func (r *Replaceable) Open(ctx context.Context, ref blob.Ref) (io.ReadCloser, error) {
	store, err := r.current()
	if err != nil {
		return nil, err
	}
	return store.Open(ctx, ref)
}

// Remove calls Store.Remove on the store in use.
func (r *Replaceable) Remove(id string) error {
	store, err := r.current()
	if err != nil {
		return err
	}
	return store.Remove(id)
}

// Sweep removes unfinished blobs and temporary files that a crash left. Without a store it does nothing.
func (r *Replaceable) Sweep() error {
	store, err := r.current()
	if err != nil {
		return nil // Prepare has returned the reason
	}
	return store.sweep()
}

// Put calls Store.Put on the store in use.
func (r *Replaceable) Put(ctx context.Context, produce func(io.Writer) error) (id, digest string, err error) {
	store, err := r.current()
	if err != nil {
		return "", "", err
	}
	return store.Put(ctx, produce)
}

// PutSigned calls Store.PutSigned on the store in use.
func (r *Replaceable) PutSigned(ctx context.Context, url secret.URL, headers map[string]secret.String,
	produce func(io.Writer) error) (string, error) {
	store, err := r.current()
	if err != nil {
		return "", err
	}
	return store.PutSigned(ctx, url, headers, produce)
}

// WriteChecked stores a blob with secrets that the Director uploads, and fails if content does not match the digest.
func (r *Replaceable) WriteChecked(id string, content io.Reader, digest blob.Digest) error {
	store, err := r.current()
	if err != nil {
		return err
	}
	return store.sensitive.WriteChecked(id, content, digest)
}
