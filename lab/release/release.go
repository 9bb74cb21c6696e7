// Package release packs jobs and packages as a Director hands them to an agent: compiled
// packages as gzip tars of their own, the rendered templates of all jobs of an instance in one
// archive.
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

// Files are the contents of a job or package by path. A first line of "#!" makes a program.
type Files map[string]string

// Job is a job with its templates already rendered; "monit" is one of them.
type Job struct {
	Name  string `yaml:"name" json:"name"`
	Files Files  `yaml:"files" json:"files,omitempty"`
	Dir   string `yaml:"dir" json:"dir,omitempty"` // read in addition to Files
}

// Package is a compiled package, or with a "packaging" script one to be compiled.
type Package struct {
	Name  string `yaml:"name" json:"name"`
	Files Files  `yaml:"files" json:"files,omitempty"`
	Dir   string `yaml:"dir" json:"dir,omitempty"`
}

// Load reads dir, if any, below base into the files.
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

// binary marks the path of a program whose first line does not tell.
const binary = "\x00x"

func mode(path, content string) int64 {
	if strings.HasPrefix(path, binary) || strings.HasPrefix(content, "#!") {
		return 0o755
	}
	return 0o644
}

// archive packs files below a directory, "." for none.
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
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode(path, content), Size: int64(len(content)), ModTime: epoch}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write([]byte(content)); err != nil {
			return err
		}
	}
	return nil
}

// epoch is the time of all files: equal content makes equal archives.
var epoch = time.Unix(1_700_000_000, 0)

func pack(fill func(*tar.Writer) error) ([]byte, error) {
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	w := tar.NewWriter(zip)
	err := errors.Join(fill(w), w.Close(), zip.Close())
	return b.Bytes(), err
}

// Pack makes the archive of a package.
func (p Package) Pack(base string) ([]byte, error) {
	files, err := p.Files.Load(base, p.Dir)
	if err != nil {
		return nil, fmt.Errorf("package %s: %w", p.Name, err)
	}
	return pack(func(w *tar.Writer) error { return archive(w, ".", files) })
}

// Templates makes the archive of the rendered templates of all jobs.
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

// Fingerprint is a version derived from content.
func Fingerprint(data []byte) string {
	sum := sha1.Sum(data)
	return hex.EncodeToString(sum[:])
}
