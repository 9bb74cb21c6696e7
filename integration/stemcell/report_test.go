//go:build vm || nightly || bench

package stemcell

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"path"
	"strings"
	"testing"
	"time"

	"cambium/lab"
	"cambium/lab/image"
	"cambium/lab/labtest"
	"cambium/lab/machine/qemu"
	"cambium/lab/release"
)

// kind are the machines of these tests: virtual ones with the disk of a stemcell.
func kind(disk string, uefi bool) labtest.Kind {
	return labtest.Kind{Engine: qemu.Engine{Image: image.Image{Disk: disk}, UEFI: uefi}, Letter: "n",
		Timeout: 10 * time.Minute}
}

// member is a file of a gzipped tarball, or nothing.
func member(t testing.TB, archive []byte, name string) string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return ""
		}
		if err != nil {
			t.Fatal(err)
		}
		if path.Base(h.Name) == name {
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		}
	}
}

// compileReport has the agent compile a package with the given script and returns what its files hold.
func compileReport(t testing.TB, l *lab.Lab, i *lab.Instance, packaging string) func(name string) string {
	t.Helper()
	source, err := release.Package{Name: "report", Files: release.Files{"packaging": packaging}}.Pack("")
	if err != nil {
		t.Fatal(err)
	}
	id, digest, err := l.Blobs.Put(source)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.Agent.Do(t.Context(), "compile_package_with_signed_url",
		map[string]any{"package_get_signed_url": l.Blobs.SignedURL("GET", id),
			"upload_signed_url": l.Blobs.SignedURL("PUT", "report"), "digest": digest, "name": "report", "version": "1",
			"deps": map[string]any{}}); err != nil {
		t.Fatal(err)
	}
	content, found := l.Blobs.Get("report")
	if !found {
		t.Fatal("the report did not arrive")
	}
	return func(name string) string { return strings.TrimSpace(member(t, content, name)) }
}
