// Package release packs jobs and packages as a Director sends them to an agent: a gzip tarball for each compiled
// package, and one archive with the rendered templates of all jobs of an instance.
package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// Files maps paths in a job or package to contents. If the first line starts with "#!", the file is executable.
type Files map[string]string

// Job is a job with rendered templates, one of which is "monit".
type Job struct {
	Name  string `yaml:"name" json:"name"`
	Files Files  `yaml:"files" json:"files,omitempty"`
	Dir   string `yaml:"dir" json:"dir,omitempty"` // directory with additional files
}

// Package is a compiled package or, if it has a "packaging" script, a source package.
type Package struct {
	Name  string `yaml:"name" json:"name"`
	Files Files  `yaml:"files" json:"files,omitempty"`
	Dir   string `yaml:"dir" json:"dir,omitempty"`
}

// Load adds the files in dir, which is relative to base. It does nothing if dir is empty.
func (f Files) Load(base, dir string) (Files, error) {
	all := Files{}
	for path, content := range f {
		all[path] = content
	}
	if dir == "" {
		return all, nil
	}
	root := dir
	if !filepath.IsAbs(dir) {
		root = filepath.Join(base, dir)
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if info, err := d.Info(); err == nil && info.Mode()&0o111 != 0 && !strings.HasPrefix(string(data), "#!") {
			all[binary+name] = string(data)
			return nil
		}
		all[name] = string(data)
		return nil
	})
	return all, err
}

// binary is the suffix of paths of executables whose first line does not show that.
const binary = "\x00x"

func mode(path, content string) int64 {
	if strings.HasPrefix(path, binary) || strings.HasPrefix(content, "#!") {
		return 0o755
	}
	return 0o644
}

// archive writes files below a directory; "." means none.
func archive(w *tar.Writer, dir string, files Files) error {
	paths := make([]string, 0, len(files))
	for path := range files {
		paths = append(paths, path)
	}
	sort.Strings(paths)
	made := map[string]bool{}
	for _, path := range paths {
		name := "./" + filepath.ToSlash(filepath.Join(dir, strings.TrimPrefix(path, binary)))
		if strings.Contains(name, "/../") {
			return fmt.Errorf("path %q leaves the archive", path)
		}
		for i, c := range name {
			if parent := name[:i+1]; c == '/' && !made[parent] {
				made[parent] = true
				if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: parent, Mode: 0o755, ModTime: epoch}); err != nil {
					return err
				}
			}
		}
		content := files[path]
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode(path, content), Size: int64(len(content)),
			ModTime: epoch}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write([]byte(content)); err != nil {
			return err
		}
	}
	return nil
}

// epoch is the time of all files, so that archives are reproducible.
var epoch = time.Unix(1_700_000_000, 0)

func pack(fill func(*tar.Writer) error) ([]byte, error) {
	var b bytes.Buffer
	zip, err := gzip.NewWriterLevel(&b, gzip.BestSpeed) // most archives only go to VMs of this machine
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(zip)
	err = errors.Join(fill(w), w.Close(), zip.Close())
	return b.Bytes(), err
}

// Pack returns the archive of a package.
func (p Package) Pack(base string) ([]byte, error) {
	files, err := p.Files.Load(base, p.Dir)
	if err != nil {
		return nil, fmt.Errorf("package %s: %w", p.Name, err)
	}
	return pack(func(w *tar.Writer) error { return archive(w, ".", files) })
}

// Templates returns the archive with the rendered templates of all jobs.
func Templates(base string, jobs []Job) ([]byte, error) {
	return pack(func(w *tar.Writer) error {
		for _, j := range jobs {
			files, err := j.Files.Load(base, j.Dir)
			if err != nil {
				return fmt.Errorf("job %s: %w", j.Name, err)
			}
			if _, ok := files["monit"]; !ok {
				files["monit"] = ""
			}
			if err := archive(w, j.Name, files); err != nil {
				return fmt.Errorf("job %s: %w", j.Name, err)
			}
		}
		return nil
	})
}

// Fingerprint returns a version derived from content.
func Fingerprint(data []byte) string {
	sum := sha1.Sum(data)
	return hex.EncodeToString(sum[:])
}
