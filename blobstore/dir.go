package blobstore

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"cambium/internal/atomicfile"
	"cambium/internal/blob"
	"cambium/internal/tempfile"
)

// Dir is a directory of blobs, each a file named by its id.
type Dir struct{ Path string }

var errBadID = errors.New("not a valid blob id")

// checkID refuses an id that is not a plain file name, or that could name an unfinished blob or an option.
func checkID(id string) error {
	if id == "" || len(id) > 200 || strings.HasPrefix(id, ".") || strings.HasPrefix(id, "-") || id == "tmp" ||
		strings.ContainsFunc(id, func(r rune) bool { return r == '/' || r == '\\' || r < ' ' || r == 0x7f }) {
		return errBadID
	}
	return nil
}

// Open returns the content of a blob, or ErrNotFound.
func (d *Dir) Open(id string) (*os.File, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	file, err := os.Open(filepath.Join(d.Path, id))
	if err != nil {
		return nil, notExist(err)
	}
	return file, nil
}

// openChecked verifies the whole blob before it returns, so that the caller can skip a damaged copy.
func (d *Dir) openChecked(id string, digest blob.Digest) (io.ReadCloser, error) {
	file, err := d.Open(id)
	if err != nil {
		return nil, err
	}
	check, err := digest.Check()
	if err == nil {
		_, err = io.Copy(check, file)
	}
	if err == nil {
		err = check.Err()
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("local copy: %w", err), file.Close())
	}
	return file, nil
}

// Write stores a blob atomically. If reading content fails, an existing blob with this id stays as it was.
func (d *Dir) Write(id string, content io.Reader) error {
	return d.write(id, func(w io.Writer) error {
		_, err := io.Copy(w, content)
		return err
	})
}

// WriteChecked writes a blob like Write, and fails if content does not match the digest.
func (d *Dir) WriteChecked(id string, content io.Reader, digest blob.Digest) error {
	verified, err := digest.Verify(io.NopCloser(content))
	if err != nil {
		return err
	}
	return d.Write(id, verified)
}

func (d *Dir) write(id string, produce func(io.Writer) error) error {
	if err := checkID(id); err != nil {
		return err
	}
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		return fmt.Errorf("store blob: %w", err)
	}
	return atomicfile.WriteFrom(filepath.Join(d.Path, id), 0o640, func(file *os.File) error {
		bounded, err := tempfile.NewWriter(file)
		if err != nil {
			return err
		}
		return produce(bounded)
	})
}

// Remove deletes a blob; a missing one is not an error.
func (d *Dir) Remove(id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(d.Path, id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove blob: %w", err)
	}
	return nil
}
