package action

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cambium/internal/blob"
)

// SensitiveBlobs stores blobs that must not leave this machine.
type SensitiveBlobs interface {
	// WriteChecked stores all of content under id, or nothing if it does not match digest.
	WriteChecked(id string, content io.Reader, digest blob.Digest) error
}

// upload is the argument of upload_blob. The payload is base64 with line breaks, as Ruby writes it.
type upload struct {
	ID       string `json:"blob_id"`
	Checksum string `json:"checksum"`
	Payload  string `json:"payload"`
}

// Check refuses an upload without a blob id.
func (u *upload) Check() error {
	if u.ID == "" {
		return errors.New("blob_id is missing")
	}
	return nil
}

func uploadBlob(blobs SensitiveBlobs) func(context.Context, upload) (string, error) {
	return func(_ context.Context, u upload) (string, error) {
		digest, err := blob.ParseDigest(u.Checksum)
		if err != nil {
			return "", fmt.Errorf("checksum: %w", err)
		}
		content := base64.NewDecoder(base64.StdEncoding, strings.NewReader(u.Payload))
		if err := blobs.WriteChecked(u.ID, content, digest); err != nil {
			return "", fmt.Errorf("upload blob: %w", err)
		}
		return u.ID, nil
	}
}

// removeFile deletes files only below the given directories, where bundle_logs puts its archives. It follows no link
// out of them.
func removeFile(directories []string) func(context.Context, string) (string, error) {
	return func(_ context.Context, path string) (string, error) {
		if !filepath.IsAbs(path) {
			return "", errors.New("remove file: the path is not absolute")
		}
		// The kernel looks at what is before "..", which may be a link or missing; the text does not tell.
		if slices.Contains(strings.Split(path, "/"), "..") {
			return "", errors.New(`remove file: the path has ".." in it: name the file directly`)
		}
		for _, dir := range directories {
			rel, err := filepath.Rel(dir, filepath.Clean(path))
			if err != nil || rel == "." || !filepath.IsLocal(rel) {
				continue
			}
			root, err := os.OpenRoot(dir)
			if err != nil {
				return "", fmt.Errorf("remove file: %w", err)
			}
			err = root.RemoveAll(rel)
			return path, errors.Join(err, root.Close())
		}
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return path, nil // nothing is there to be removed, as with cloudfoundry/bosh-agent
		}
		return "", errors.New("remove file: the path is not in a directory that may be cleaned up")
	}
}
