package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cambium/internal/command"
)

const (
	certificateDir    = "/usr/local/share/ca-certificates"
	certificatePrefix = "bosh-trusted-cert-"
	// certificatesPending exists from before the first change of a file until the store was rebuilt, so that an
	// interrupted update is repeated.
	certificatesPending = certificateDir + "/.bosh-trusted-pending"
)

// updateCertificatesLimit bounds a run of update-ca-certificates, which calls hooks of other packages.
const updateCertificatesLimit = 60 * time.Second

type certificateState struct {
	files   map[string][]byte // path → content
	pending bool
	bundle  []byte // nil if there is none
}

func (h *Host) observeCertificates() (s certificateState, err error) {
	s.files = make(map[string][]byte)
	if s.bundle, err = h.read(storeBundle); err != nil {
		return s, err
	}
	entries, err := os.ReadDir(h.joinRoot(certificateDir))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	for _, e := range entries {
		path := filepath.Join(certificateDir, e.Name())
		if path == certificatesPending {
			s.pending = true
		}
		if !strings.HasPrefix(e.Name(), certificatePrefix) || e.IsDir() {
			continue
		}
		if s.files[path], err = h.read(path); err != nil {
			return s, err
		}
	}
	return s, nil
}

// certificates returns the PEM blocks in a text. Text between them is dropped; their content is not checked, since
// update-ca-certificates does that.
func certificates(text string) (blocks [][]byte) {
	const begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
	for {
		_, rest, found := strings.Cut(text, begin)
		if !found {
			return blocks
		}
		body, after, found := strings.Cut(rest, end)
		if !found {
			return blocks
		}
		// A block without an end does not include the next one.
		if i := strings.LastIndex(body, begin); i >= 0 {
			body = body[i+len(begin):]
		}
		blocks = append(blocks, []byte(begin+body+end+"\n"))
		text = after
	}
}

func diffCertificates(have certificateState, text string) (changes []Change) {
	want := make(map[string][]byte)
	for i, block := range certificates(text) {
		want[fmt.Sprintf("%s/%s%d.crt", certificateDir, certificatePrefix, i+1)] = block
	}
	for _, path := range slices.Sorted(maps.Keys(have.files)) {
		if _, wanted := want[path]; !wanted {
			changes = append(changes, Change{Op: OpRemoveFile, Path: path})
		}
	}
	for _, path := range slices.Sorted(maps.Keys(want)) {
		if !bytes.Equal(have.files[path], want[path]) {
			changes = append(changes, Change{Op: OpWriteFile, Path: path, Content: want[path], Mode: 0o644})
		}
	}
	complete := true // another program may have rebuilt the bundle
	for _, block := range want {
		complete = complete && (have.bundle == nil || bytes.Contains(have.bundle, block))
	}
	if len(changes) == 0 && !have.pending && complete {
		return nil
	}
	changes = slices.Insert(changes, 0, Change{Op: OpWriteFile, Path: certificatesPending, Mode: 0o600})
	return append(changes, Change{Op: OpUpdateCertificates}, Change{Op: OpRemoveFile, Path: certificatesPending})
}

// updateCertificates rebuilds the store, or runs update-ca-certificates if other packages have hooks for it, such as
// Java. That program sometimes hangs or fails, hence the time limit and the retries.
func (h *Host) updateCertificates(ctx context.Context) error {
	updated, err := h.updateStore(ctx)
	if updated && err == nil {
		return nil
	}
	failed := []error{err}
	for range 3 {
		limited, cancel := context.WithTimeout(ctx, updateCertificatesLimit)
		_, err := command.Run(limited,
			command.Cmd{Name: "update-ca-certificates", Args: []string{"-f"}, Grace: 5 * time.Second})
		cancel()
		if err == nil {
			return nil
		}
		failed = append(failed, err)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}
