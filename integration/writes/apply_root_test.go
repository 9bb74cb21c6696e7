//go:build root

package writes

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cambium/internal/blob"
	"cambium/jobs"
)

// memoryBlobs are archives by their ids.
type memoryBlobs map[string][]byte

func (m memoryBlobs) Open(_ context.Context, ref blob.Ref) (io.ReadCloser, error) {
	content, there := m[ref.ID]
	if !there {
		return nil, fmt.Errorf("no blob %s", ref.ID)
	}
	return ref.Digest.Verify(io.NopCloser(bytes.NewReader(content)))
}

func (m memoryBlobs) Remove(string) error { return nil }

// deployed is a version of an instance: a spec, and the files of what is installed for it.
type deployed struct {
	spec  jobs.Spec
	files map[string]map[string]string // by the path of a bundle's link below the base directory
}

var archives = memoryBlobs{}

// deployment makes a version with two jobs and two packages; of the latter, one is the same in all versions.
func deployment(version string) deployed {
	d := deployed{files: map[string]map[string]string{}}
	rendered := map[string]string{}
	name := "instance"
	d.spec = jobs.Spec{ConfigurationHash: version, Deployment: "dep", ID: "id-1", AZ: "z1", Name: name,
		Job: jobs.Job{Name: &name}, Packages: map[string]jobs.Package{}}
	for _, job := range []string{"web", "db"} {
		files := map[string]string{"monit": "check file x with path /" + version + "\n",
			"bin/run":         "#!/bin/sh\n# " + version + strings.Repeat("\n: x", 2000),
			"config/password": canary + " " + version}
		d.files["jobs/"+job] = files
		d.spec.Job.Templates = append(d.spec.Job.Templates, jobs.Template{Name: job, Version: version})
		for path, content := range files {
			rendered[job+"/"+path] = content
		}
	}
	for _, p := range []jobs.Package{{Name: "ruby", Version: version}, {Name: "libyaml", Version: "same"}} {
		files := map[string]string{}
		for n := range 12 {
			files[fmt.Sprintf("lib/f%d", n)] = strings.Repeat(p.Name+p.Version, 700*n)
		}
		d.files["packages/"+p.Name] = files
		p.Digest, p.BlobstoreID = stored(files)
		d.spec.Packages[p.Name] = p
	}
	digest, id := stored(rendered)
	d.spec.Archive = &jobs.Archive{Digest: &digest, BlobstoreID: id}
	return d
}

// stored puts an archive of files into the blobstore.
func stored(files map[string]string) (digest, id string) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(files[name]))})
		if _, writeErr := io.WriteString(w, files[name]); err != nil || writeErr != nil {
			panic(errors.Join(err, writeErr)) // into memory
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		panic(err)
	}
	digest = sum(b.Bytes())
	archives[digest] = b.Bytes()
	return digest, digest
}

var versions = map[string]deployed{"v1": deployment("v1"), "v2": deployment("v2")}

// applySpec: a machine with jobs of one version gets another one. Its own files and the jobs are on two disks.
var applySpec = &operation{
	name: "apply", source: "v1", blobs: archives,
	disks: []disk{rootDisk, {name: "data", size: 48 * mib}},
	prepare: func(m *machine) {
		m.ok(m.boot("v1"))
		m.ok(m.jobs.Apply(m.t.Context(), versions["v1"].spec))
		m.ok(m.jobs.Start(m.t.Context()))
	},
	do: func(m *machine) error {
		if err := m.jobs.Apply(m.t.Context(), versions["v2"].spec); err != nil {
			return err
		}
		m.mark("applied")
		return nil
	},
	booted: func(m *machine, reached map[string]bool) {
		spec, err := m.jobs.Spec()
		m.ok(err)
		if hash := spec.ConfigurationHash; hash != "v2" && (hash != "v1" || reached["applied"]) {
			m.t.Errorf("the spec is that of version %q", hash)
		}
		// A bundle that is there is complete, whichever version it has; what is in use is there.
		for link := range versions["v1"].files {
			m.installed(filepath.Join(m.dirs.Base(), link), link)
		}
		for store, links := range map[string]string{m.dirs.DataJobs(): "jobs", m.dirs.DataPackages(): "packages"} {
			all, err := filepath.Glob(filepath.Join(store, "*", "*"))
			m.ok(err)
			for _, dir := range all {
				m.installed(dir, filepath.Join(links, filepath.Base(filepath.Dir(dir))))
			}
		}
	},
	ended: func(m *machine) {
		spec, err := m.jobs.Spec()
		m.ok(err)
		if spec.ConfigurationHash != "v2" {
			m.t.Errorf("the spec is that of version %q", spec.ConfigurationHash)
		}
		for link := range versions["v2"].files {
			got := m.installed(filepath.Join(m.dirs.Base(), link), link)
			if got != "v2" && link != "packages/libyaml" { // which is the same in both
				m.t.Errorf("%s is of %q, want v2", link, got)
			}
		}
		m.ok(m.jobs.Start(m.t.Context()))
		for n, job := range []string{"db", "web"} {
			path := filepath.Join(m.dirs.MonitJobs(), fmt.Sprintf("%04d_%s.monitrc", n, job))
			want := versions["v2"].files["jobs/"+job]["monit"]
			if data, err := os.ReadFile(path); err != nil || string(data) != want {
				m.t.Errorf("%s holds %q: %v", path, data, err)
			}
		}
	},
}

// installed checks that a directory is a complete bundle of some version, and returns that.
func (m *machine) installed(dir, link string) string {
	m.t.Helper()
	var why []error
	for _, version := range []string{"v1", "v2"} {
		var faults []error
		for path, want := range versions[version].files[link] {
			data, err := os.ReadFile(filepath.Join(dir, path))
			if err == nil && string(data) != want {
				err = fmt.Errorf("%s differs in %d bytes", path, len(data))
			}
			faults = append(faults, err)
		}
		err := errors.Join(faults...)
		if err == nil {
			return version
		}
		why = append(why, err)
	}
	m.t.Errorf("%s is not complete: %v", dir, errors.Join(why...))
	return ""
}
