package blobstore

import (
	"context"
	"errors"
	"io"
	"sync"

	"cambium/internal/blob"
	"cambium/internal/secret"
)

// Replaceable is the store in use, which update_settings may replace at any time. Without a store
// every method returns the reason.
type Replaceable struct {
	mu    sync.RWMutex // guards what follows
	store *Store
	err   error // why there is none
}

// Prepare makes a store; the function it returns puts it into use.
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

// Open is Store.Open.
func (r *Replaceable) Open(ctx context.Context, ref blob.Ref) (io.ReadCloser, error) {
	store, err := r.current()
	if err != nil {
		return nil, err
	}
	return store.Open(ctx, ref)
}

// Remove is Store.Remove.
func (r *Replaceable) Remove(id string) error {
	store, err := r.current()
	if err != nil {
		return err
	}
	return store.Remove(id)
}

// Sweep is Store.sweep. Without a store nothing is left over.
func (r *Replaceable) Sweep() error {
	store, err := r.current()
	if err != nil {
		return nil // Prepare has returned the reason
	}
	return store.sweep()
}

// Put is Store.Put.
func (r *Replaceable) Put(ctx context.Context, produce func(io.Writer) error) (id, digest string, err error) {
	store, err := r.current()
	if err != nil {
		return "", "", err
	}
	return store.Put(ctx, produce)
}

// PutSigned is Store.PutSigned.
func (r *Replaceable) PutSigned(ctx context.Context, url secret.URL, headers map[string]secret.String, produce func(io.Writer) error) (string, error) {
	store, err := r.current()
	if err != nil {
		return "", err
	}
	return store.PutSigned(ctx, url, headers, produce)
}

// WriteChecked stores a sensitive blob that the Director uploads.
func (r *Replaceable) WriteChecked(id string, content io.Reader, digest blob.Digest) error {
	store, err := r.current()
	if err != nil {
		return err
	}
	return store.sensitive.WriteChecked(id, content, digest)
}
