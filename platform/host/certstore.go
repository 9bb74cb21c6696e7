package host

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cambium/internal/atomicfile"
	"cambium/internal/command"
)

// Files of update-ca-certificates.
const (
	storeConf   = "/etc/ca-certificates.conf"
	storeSource = "/usr/share/ca-certificates"
	storeDir    = "/etc/ssl/certs"
	storeBundle = storeDir + "/ca-certificates.crt"
	storeHooks  = "/etc/ca-certificates/update.d"
)

// certificateStore holds the links and the bundle that update-ca-certificates creates.
type certificateStore struct {
	links  map[string]string // name in storeDir → target
	bundle []byte
}

// linkName converts the name of a certificate to that of its link, as update-ca-certificates does.
var linkName = strings.NewReplacer(" ", "_", "(", "=", ")", "=", ",", "_")

func (s *certificateStore) add(path string, content []byte) {
	s.links[linkName.Replace(strings.TrimSuffix(filepath.Base(path), ".crt"))+".pem"] = path
	s.bundle = append(s.bundle, content...)
	if len(content) > 0 && !bytes.HasSuffix(content, []byte("\n")) {
		s.bundle = append(s.bundle, '\n')
	}
}

// updateStore creates the same files as 'update-ca-certificates -f', which takes seconds because it starts over a
// thousand programs. This starts a single one, which names the links by the hash of the subject. It returns false if
// update-ca-certificates itself has to run: other packages have hooks, or the bundle was not built from the same files
// in the same order.
func (h *Host) updateStore(ctx context.Context) (updated bool, err error) {
	if hooks, err := os.ReadDir(h.joinRoot(storeHooks)); err == nil && len(hooks) > 0 || command.Find("restorecon") != "" {
		return false, nil
	}
	store, known, err := h.wantedStore()
	if err != nil || !known {
		return false, err
	}
	if err := h.relink(store.links); err != nil {
		return false, err
	}
	rehash := command.Cmd{Name: "openssl", Args: []string{"rehash", h.joinRoot(storeDir)}}
	if _, err := command.Run(ctx, rehash); err != nil {
		return false, err
	}
	return true, atomicfile.Write(h.joinRoot(storeBundle), store.bundle, 0o644)
}

// wantedStore returns the store with the certificates that the system and its administrators trust. known is false if
// the present bundle does not begin with those of the system, so that another program has built it.
func (h *Host) wantedStore() (store certificateStore, known bool, err error) {
	conf, err := h.read(storeConf)
	if err != nil {
		return store, false, err
	}
	store.links = map[string]string{}
	for line := range strings.Lines(string(conf)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "!") {
			continue
		}
		path := filepath.Join(storeSource, line)
		content, err := os.ReadFile(h.joinRoot(path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return store, false, err
		}
		store.add(path, content)
	}
	now, err := h.read(storeBundle)
	if err != nil || len(store.bundle) == 0 || !bytes.HasPrefix(now, store.bundle) {
		return store, false, err
	}
	local, err := h.localCertificates()
	for _, path := range local {
		content, err := os.ReadFile(h.joinRoot(path))
		if err != nil {
			return store, false, err
		}
		store.add(path, content)
	}
	return store, true, err
}

// localCertificates returns the paths of the certificates of administrators and of the deployment, in the order of the
// bundle.
func (h *Host) localCertificates() (paths []string, err error) {
	dir := h.joinRoot(certificateDir)
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".crt") {
			return err
		}
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
			return nil // like find -L -type f
		}
		paths = append(paths, certificateDir+strings.TrimPrefix(path, dir))
		return nil
	})
	slices.Sort(paths)
	return paths, err
}

// relink creates the links of the store, and removes outdated and broken ones.
func (h *Host) relink(wanted map[string]string) error {
	entries, err := os.ReadDir(h.joinRoot(storeDir))
	if err != nil {
		return err
	}
	have := map[string]string{}
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		full := filepath.Join(h.joinRoot(storeDir), e.Name())
		if have[e.Name()], err = os.Readlink(full); err != nil {
			return err
		}
		ours := strings.HasPrefix(have[e.Name()], storeSource) || strings.HasPrefix(have[e.Name()], certificateDir)
		if ours && wanted[e.Name()] != have[e.Name()] {
			delete(have, e.Name())
			if err := os.Remove(full); err != nil {
				return err
			}
		}
	}
	for name, target := range wanted {
		if have[name] == target {
			continue
		}
		full := filepath.Join(h.joinRoot(storeDir), name)
		if err := os.Remove(full); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink(target, full); err != nil {
			return err
		}
	}
	for name, target := range have {
		if !filepath.IsAbs(target) {
			target = filepath.Join(storeDir, target)
		}
		if _, err := os.Stat(h.joinRoot(target)); errors.Is(err, fs.ErrNotExist) {
			if err := os.Remove(filepath.Join(h.joinRoot(storeDir), name)); err != nil {
				return err
			}
		}
	}
	return nil
}
