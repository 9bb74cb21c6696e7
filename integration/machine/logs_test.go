//go:build machine

package machine

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"testing"

	"cambium/lab"
)

// logsOf returns the files that `bosh logs` fetches of a kind, agent or job, by their names in the archive.
func logsOf(t *testing.T, l *lab.Lab, i *lab.Instance, kind string) map[string]string {
	t.Helper()
	id := kind + "-logs"
	if _, err := i.Agent.Do(t.Context(), "fetch_logs_with_signed_url",
		map[string]any{"signed_url": l.Blobs.SignedURL("PUT", id), "log_type": kind, "filters": []string{}}); err != nil {
		t.Fatal(err)
	}
	archive, found := l.Blobs.Get(id)
	if !found {
		t.Fatal("the logs did not arrive")
	}
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	logs := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return logs
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			logs[h.Name] = string(data)
		}
	}
}
