package iaas

import (
	"context"
	"crypto/sha256"
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
	"cambium/lab/iaas/value"
	"cambium/lab/room"

	"golang.org/x/sys/unix"
)

const images = "images"

// unfinished is the prefix of images that are being imported.
const unfinished = ".new-"

func (i *IaaS) findStemcell(cid CID) (*Stemcell, error) {
	s := i.stemcells[cid]
	if s == nil || s.Phase != Ready {
		return nil, Stemcells.missing(cid.String())
	}
	return s, nil
}

func (i *IaaS) saveStemcell(s Stemcell) error { return save(i, s.CID, i.stemcells, s) }

// Upload is the input for a new stemcell.
type Upload struct {
	Image io.Reader
	// Light is the digest of the image if Image is empty. The operator has put that image into LightImages.
	Light    Digest
	Tags     value.Metadata
	Director value.Name
}

// CreateStemcell stores an image, whose format it detects from the content. Stemcells with the same image share one
// copy.
func (i *IaaS) CreateStemcell(ctx context.Context, u Upload) (cid CID, err error) {
	s := Stemcell{Base: Base{CID: newCID(Stemcells), Phase: Creating, Created: time.Now(),
		Director: u.Director, Metadata: u.Tags}}
	i.mu.Lock()
	i.uploads[s.CID] = true
	i.mu.Unlock()
	defer func() {
		i.mu.Lock()
		delete(i.uploads, s.CID)
		i.mu.Unlock()
	}()
	if err := os.MkdirAll(filepath.Join(i.store.dir, images), 0o700); err != nil {
		return CID{}, err
	}
	work, err := os.MkdirTemp(filepath.Join(i.store.dir, images), unfinished)
	if err != nil {
		return CID{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if s.Image, err = u.receive(i.lightDir, filepath.Join(work, "upload")); err != nil {
		return CID{}, err
	}
	defer i.locks.lock("image " + s.Image.String())()
	// The record refers to the image before it is there, so that it cannot be collected.
	if err := i.saveStemcell(s); err != nil {
		return CID{}, err
	}
	if err = i.importImage(ctx, s.Image, work); err == nil {
		s.Phase = Ready
		err = i.saveStemcell(s)
	}
	if err != nil {
		err = errors.Join(err, i.forget(s.CID, func() { delete(i.stemcells, s.CID) }), i.collect(s.Image))
		return CID{}, fmt.Errorf("stemcell image: %w", err)
	}
	return s.CID, nil
}

// LightImages returns the directory for images of light stemcells. An operator puts them there, each in a file named by
// its SHA-256. The directory is beside that of the IaaS and does not depend on it.
func LightImages(dir, name string) string { return Directory(dir, name) + "-light" }

// receive stores an image and returns its digest. The image of a light stemcell, whose upload is empty, is in a file of
// the operator.
func (u Upload) receive(lightDir, path string) (Digest, error) {
	size, digest, err := receive(u.Image, path)
	if err != nil || size > 0 {
		return digest, err
	}
	if u.Light == (Digest{}) {
		return Digest{}, errors.New("the image is empty, and cloud_properties have no sha256 of a light stemcell")
	}
	light := filepath.Join(lightDir, u.Light.String())
	f, err := os.OpenFile(light, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would be waited for
	if err != nil {
		return Digest{}, fmt.Errorf("light stemcell: %w; put the image there, on the holder's host", err)
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return Digest{}, errors.Join(err, fmt.Errorf("light stemcell: %s is not a regular file", light))
	}
	if err := os.Remove(path); err != nil {
		return Digest{}, err
	}
	if _, digest, err = receive(f, path); err == nil && digest != u.Light {
		err = fmt.Errorf("light stemcell: the digest of %s does not match its name; copy the image again", light)
	}
	return digest, err
}

// receive stores an image, up to the maximum size and the space that the host can spare. It returns the size and the
// digest.
func receive(from io.Reader, path string) (int64, Digest, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, Digest{}, err
	}
	h := sha256.New()
	bounded := room.At(filepath.Dir(path)).Writer(f, upload.MaxImage)
	size, err := io.Copy(io.MultiWriter(bounded, h), from)
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, Digest{}, fmt.Errorf("receive the image: %w", err)
	}
	return size, Digest{[sha256.Size]byte(h.Sum(nil))}, nil
}

// imagePath returns the path of an image, or of a file in it.
func (i *IaaS) imagePath(digest Digest, file ...string) string {
	return filepath.Join(append([]string{i.store.dir, images, digest.String()}, file...)...)
}

// importImage converts the upload in work, unless the image exists.
func (i *IaaS) importImage(ctx context.Context, digest Digest, work string) error {
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
	return settle(converted, i.imagePath(digest))
}

// settle syncs everything below a directory and then renames it, so that a directory with its final name is complete
// even after a power cut.
func settle(work, path string) error {
	dir, err := os.Open(work)
	if err != nil {
		return err
	}
	err = unix.Syncfs(int(dir.Fd())) // a tree has thousands of files
	if err = errors.Join(err, dir.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", work, err)
	}
	if err := os.Rename(work, path); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// DeleteStemcell deletes a stemcell. Its image is kept as long as a VM uses it. A missing stemcell is not an error.
func (i *IaaS) DeleteStemcell(cid CID) error {
	defer i.locks.lock(cid.String())()
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
	if err := i.forget(cid, func() { delete(i.stemcells, cid) }); err != nil {
		return err
	}
	defer i.locks.lock("image " + gone.Image.String())()
	return i.collect(gone.Image)
}

// used reports whether a stemcell or VM uses an image.
func (i *IaaS) used(digest Digest) bool {
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

// collect removes an image that is no longer used. The caller holds its lock.
func (i *IaaS) collect(digest Digest) error {
	if digest == (Digest{}) || i.used(digest) {
		return nil
	}
	return os.RemoveAll(i.imagePath(digest))
}

// sweepImages removes unused images, and what interrupted imports have left.
func (i *IaaS) sweepImages() error {
	entries, err := os.ReadDir(filepath.Join(i.store.dir, images))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		var digest Digest
		switch {
		case strings.HasPrefix(e.Name(), unfinished):
			err = errors.Join(err, os.RemoveAll(filepath.Join(i.store.dir, images, e.Name())))
		case digest.UnmarshalText([]byte(e.Name())) == nil:
			err = errors.Join(err, i.collect(digest))
		}
	}
	return err
}

// tree returns the root file system of an image, for containers.
func (i *IaaS) tree(ctx context.Context, digest Digest) (string, error) {
	defer i.locks.lock("image " + digest.String())()
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
	return path, settle(work, path)
}
