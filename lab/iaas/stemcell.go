package iaas

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"cambium/internal/atomicfile"
	"cambium/lab/iaas/upload"
)

const images = "images"

// unfinished begins the names of images that are being imported.
const unfinished = ".new-"

func (i *IaaS) findStemcell(cid string) (*Stemcell, error) {
	s := i.stemcells[cid]
	if s == nil || s.Phase != Ready {
		return nil, Failf(CloudError, "there is no stemcell %s", cid)
	}
	return s, nil
}

func (i *IaaS) saveStemcell(s Stemcell) error { return save(i, stemcells, s.CID, i.stemcells, s) }

// CreateStemcell stores an image, whose format is detected from its content. The same bytes are
// kept once, however many stemcells are made of them.
func (i *IaaS) CreateStemcell(ctx context.Context, image io.Reader, properties json.RawMessage, tags map[string]string, director string) (cid string, err error) {
	s := Stemcell{Base: Base{CID: newCID(stemcells), Phase: Creating, Created: time.Now(), Director: director, Metadata: tags}, Properties: properties}
	i.mu.Lock()
	i.uploads[s.CID] = true
	i.mu.Unlock()
	defer func() {
		i.mu.Lock()
		delete(i.uploads, s.CID)
		i.mu.Unlock()
	}()
	if err := os.MkdirAll(filepath.Join(i.store.dir, images), 0o700); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(filepath.Join(i.store.dir, images), unfinished)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if s.Image, err = receiveImage(image, properties, filepath.Join(work, "upload")); err != nil {
		return "", err
	}
	defer i.locks.lock("image " + s.Image)()
	// The record refers to the image before it is there, so that it cannot be collected.
	if err := i.saveStemcell(s); err != nil {
		return "", err
	}
	if err = i.importImage(ctx, s.Image, work); err == nil {
		s.Phase = Ready
		err = i.saveStemcell(s)
	}
	if err != nil {
		err = errors.Join(err, i.forget(stemcells, s.CID, func() { delete(i.stemcells, s.CID) }), i.collect(s.Image))
		return "", fmt.Errorf("stemcell image: %w", err)
	}
	return s.CID, nil
}

// receiveImage stores the bytes of an image and returns their digest. Those of a light stemcell, whose upload is
// empty, are in a file of this host that its properties name.
func receiveImage(from io.Reader, properties json.RawMessage, path string) (digest string, err error) {
	size, digest, err := receive(from, path)
	if err != nil || size > 0 {
		return digest, err
	}
	light, err := lightImage(properties)
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(light.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would be waited for
	if err != nil {
		return "", fmt.Errorf("light stemcell: %w", err)
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", errors.Join(err, fmt.Errorf("light stemcell: %s is no file", light.Path))
	}
	if err := os.Remove(path); err != nil {
		return "", err
	}
	if _, digest, err = receive(f, path); err != nil {
		return "", err
	}
	// A caller inside a VM may name any file of the host, but only use one that it knows already.
	if digest != strings.ToLower(light.SHA256) {
		return "", fmt.Errorf("light stemcell: %s has another digest than sha256 of its cloud_properties", light.Path)
	}
	return digest, nil
}

// light is what the cloud_properties of a light stemcell say.
type light struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
}

func lightImage(properties json.RawMessage) (l light, err error) {
	if len(properties) > 0 {
		if err := json.Unmarshal(properties, &l); err != nil {
			return l, fmt.Errorf("cloud_properties of the stemcell: %w", err)
		}
	}
	if sum, err := hex.DecodeString(l.SHA256); !filepath.IsAbs(l.Path) || err != nil || len(sum) != sha256.Size {
		return l, errors.New("the image is empty, and cloud_properties do not name one of the host: want an absolute path and its sha256")
	}
	return l, nil
}

// receive stores bytes and returns how many there are, and their digest.
func receive(from io.Reader, path string) (int64, string, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, "", err
	}
	h := sha256.New()
	size, err := io.Copy(io.MultiWriter(f, h), from)
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, "", fmt.Errorf("receive the image: %w", err)
	}
	return size, hex.EncodeToString(h.Sum(nil)), nil
}

func (i *IaaS) imagePath(digest string, more ...string) string {
	return filepath.Join(append([]string{i.store.dir, images, digest}, more...)...)
}

// importImage converts the upload in work, unless an image of that digest is there already.
func (i *IaaS) importImage(ctx context.Context, digest, work string) error {
	if _, err := os.Stat(i.imagePath(digest)); err == nil {
		return nil
	}
	converted := filepath.Join(work, "converted")
	if err := os.Mkdir(converted, 0o700); err != nil {
		return err
	}
	if err := upload.Unpack(ctx, filepath.Join(work, "upload"), converted); err != nil {
		return err
	}
	if err := os.Rename(converted, i.imagePath(digest)); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Join(i.store.dir, images))
}

// DeleteStemcell removes a stemcell. Its image stays as long as a VM is a layer over it. One that
// is not there is no error.
func (i *IaaS) DeleteStemcell(cid string) error {
	defer i.locks.lock(cid)()
	i.mu.Lock()
	s := i.stemcells[cid]
	i.mu.Unlock()
	if s == nil {
		return nil
	}
	gone := *s
	gone.Phase = Deleting
	if err := i.saveStemcell(gone); err != nil {
		return err
	}
	if err := i.forget(stemcells, cid, func() { delete(i.stemcells, cid) }); err != nil {
		return err
	}
	defer i.locks.lock("image " + gone.Image)()
	return i.collect(gone.Image)
}

// used reports whether a stemcell or VM is made of an image.
func (i *IaaS) used(digest string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, s := range i.stemcells {
		if s.Image == digest {
			return true
		}
	}
	for _, vm := range i.vms {
		if vm.Image == digest {
			return true
		}
	}
	return false
}

// collect removes an image that is not used any more; the caller has its lock.
func (i *IaaS) collect(digest string) error {
	if digest == "" || i.used(digest) {
		return nil
	}
	return os.RemoveAll(i.imagePath(digest))
}

// sweepImages removes what interrupted imports left behind, and images that are not used.
func (i *IaaS) sweepImages() error {
	entries, err := os.ReadDir(filepath.Join(i.store.dir, images))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), unfinished) {
			err = errors.Join(err, os.RemoveAll(i.imagePath(e.Name())))
		} else {
			err = errors.Join(err, i.collect(e.Name()))
		}
	}
	return err
}

// tree is the root file system of an image, for containers.
func (i *IaaS) tree(ctx context.Context, digest string) (string, error) {
	defer i.locks.lock("image " + digest)()
	path := i.imagePath(digest, upload.Tree)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	work := i.imagePath(digest, upload.Tree+".new")
	if err := os.RemoveAll(work); err != nil { // of a holder that was killed
		return "", err
	}
	if err := upload.CopyTree(ctx, i.imagePath(digest, upload.Disk), work); err != nil {
		return "", fmt.Errorf("root file system of the stemcell: %w", errors.Join(err, os.RemoveAll(work)))
	}
	return path, os.Rename(work, path)
}
