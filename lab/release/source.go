package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Source is a release for `bosh upload-release` and `bosh create-env`: templates that are not rendered and packages
// that are not compiled.
type Source struct {
	Name     string
	Version  string
	Jobs     []SourceJob
	Packages []Package // each with a "packaging" script
}

// SourceJob is a job of a Source. Its files are templates, by the path of the rendered file.
type SourceJob struct {
	Job
	Packages   []string
	Properties map[string]Property
}

// Property describes a property for a job's templates.
type Property struct {
	Description string `json:"description"`
	Default     any    `json:"default,omitempty"`
}

// part is an archive in the release with its entry in the manifest.
type part struct {
	path  string
	data  []byte
	entry map[string]any
}

func (s Source) parts() (jobs, packages []part, err error) {
	for _, p := range s.Packages {
		data, err := p.Pack(".")
		if err != nil {
			return nil, nil, err
		}
		packages = append(packages, newPart("packages/"+p.Name+".tgz", data,
			map[string]any{"name": p.Name, "dependencies": []string{}}))
	}
	for _, j := range s.Jobs {
		data, err := j.pack()
		if err != nil {
			return nil, nil, fmt.Errorf("job %s: %w", j.Name, err)
		}
		jobs = append(jobs, newPart("jobs/"+j.Name+".tgz", data, map[string]any{"name": j.Name, "packages": j.Packages}))
	}
	return jobs, packages, nil
}

// newPart adds the fingerprint to a manifest entry. Callers cache compiled packages by the fingerprint, so it is
// derived from the content.
func newPart(path string, data []byte, entry map[string]any) part {
	sum := sha256.Sum256(data)
	digest := hex.EncodeToString(sum[:])
	entry["version"], entry["fingerprint"], entry["sha1"] = digest, digest, "sha256:"+digest
	return part{path, data, entry}
}

// pack returns the archive of a job: its manifest, monit, and the templates.
func (j SourceJob) pack() ([]byte, error) {
	given, err := j.Files.Load(".", j.Dir)
	if err != nil {
		return nil, err
	}
	files, templates := Files{"monit": given["monit"]}, map[string]string{}
	for target, content := range given {
		if target == "monit" {
			continue
		}
		template := strings.ReplaceAll(target, "/", "_") + ".erb"
		files["templates/"+template], templates[template] = content, target
	}
	manifest, err := json.MarshalIndent(map[string]any{"name": j.Name, "templates": templates, "packages": j.Packages,
		"properties": j.Properties}, "", "  ")
	if err != nil {
		return nil, err
	}
	files["job.MF"] = string(manifest) // JSON is YAML
	return pack(func(w *tar.Writer) error { return archive(w, ".", files) })
}

// Write writes the tarball of the release.
func (s Source) Write(path string) (err error) {
	jobs, packages, err := s.parts()
	if err != nil {
		return err
	}
	manifest := map[string]any{"name": s.Name, "version": s.Version}
	for key, parts := range map[string][]part{"jobs": jobs, "packages": packages} {
		entries := []any{}
		for _, p := range parts {
			entries = append(entries, p.entry)
		}
		manifest[key] = entries
	}
	data, err := json.MarshalIndent(manifest, "", "  ")
	if err != nil {
		return err
	}
	var b bytes.Buffer
	// The parts are compressed already.
	zip, err := gzip.NewWriterLevel(&b, gzip.NoCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(zip)
	for _, p := range append([]part{{path: "release.MF", data: data}}, append(jobs, packages...)...) {
		if err := w.WriteHeader(&tar.Header{Name: p.path, Mode: 0o644, Size: int64(len(p.data)),
			ModTime: epoch}); err != nil {
			return err
		}
		if _, err := io.Copy(w, bytes.NewReader(p.data)); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(temporary, b.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// WebSource returns the demo's release as a Source.
func WebSource(version string) Source {
	jobs, packages := web()
	s := Source{Name: "web", Version: version}
	for _, j := range jobs {
		s.Jobs = append(s.Jobs, SourceJob{Job: j, Packages: []string{"web"}})
	}
	for _, p := range packages {
		p.Files["packaging"] = `set -eu
# Checks the program where it is going to run.
perl -c bin/web
mkdir -p "$BOSH_INSTALL_TARGET/bin"
cp bin/web "$BOSH_INSTALL_TARGET/bin/web"
`
		s.Packages = append(s.Packages, p)
	}
	return s
}
