package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// members are the files of a gzip tarball.
func members(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if all[filepath.Clean(h.Name)], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSourceRelease(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.tgz")
	write := func() []byte {
		t.Helper()
		if err := WebSource("1").Write(path); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	data := write()
	if !bytes.Equal(data, write()) {
		t.Error("the same release is not the same bytes")
	}
	files := members(t, data)
	var manifest struct {
		Name, Version  string
		Jobs, Packages []struct{ Name, SHA1, Fingerprint string }
	}
	if err := json.Unmarshal(files["release.MF"], &manifest); err != nil || manifest.Name != "web" ||
		len(manifest.Jobs) != 1 || len(manifest.Packages) != 1 {
		t.Fatalf("release.MF: %+v, %v", manifest, err)
	}
	// A Director checks the digests, and the fingerprint names the content in caches.
	for file, entry := range map[string]struct{ Name, SHA1, Fingerprint string }{"jobs/web.tgz": manifest.Jobs[0],
		"packages/web.tgz": manifest.Packages[0]} {
		sum := sha256.Sum256(files[file])
		if digest := hex.EncodeToString(sum[:]); entry.SHA1 != "sha256:"+digest || entry.Fingerprint != digest {
			t.Errorf("%s has digest %s, the manifest says %+v", file, digest, entry)
		}
	}
	job := members(t, files["jobs/web.tgz"])
	var spec struct{ Templates map[string]string }
	if err := json.Unmarshal(job["job.MF"], &spec); err != nil || job["monit"] == nil {
		t.Fatalf("job.MF %v, monit %q", err, job["monit"])
	}
	for template, target := range spec.Templates {
		if job["templates/"+template] == nil {
			t.Errorf("%s is to become %s and is not there", template, target)
		}
	}
	if members(t, files["packages/web.tgz"])["packaging"] == nil {
		t.Error("the package has no packaging script")
	}
}
