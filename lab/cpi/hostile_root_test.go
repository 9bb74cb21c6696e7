//go:build root

package cpi

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"

	"cambium/internal/skiptest"
	"cambium/lab/iaas"
)

// TestRootHostileArguments calls every method of an IaaS with hostile values in place of every value of its
// arguments, context and properties. Around the IaaS there are files in every directory that such a value could lead
// to; they do not change.
func TestRootHostileArguments(t *testing.T) {
	skiptest.WithoutRoot(t, "for network namespaces")
	base := t.TempDir()
	dir := filepath.Join(base, "a", "b", "c")
	sentinels(t, base, dir)
	log := logrus.New()
	log.SetOutput(io.Discard)
	name := fmt.Sprintf("h%d", os.Getpid())
	own := iaas.Directory(dir, name)
	i, err := iaas.Open(dir, name, logrus.NewEntry(log))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	})
	b := backend{IaaS: i}
	do := func(request []byte, image []byte) Reply {
		r, err := ReadRequest(request)
		if err != nil {
			return Failure(err)
		}
		reply, _ := b.do(t.Context(), r, iaas.AgentDefaults{}, bytes.NewReader(image))
		return reply
	}
	made := func(request string) string {
		t.Helper()
		r := do([]byte(request), rootTarball(t))
		data, err := json.Marshal(r.Result)
		if err != nil || r.Error != nil {
			t.Fatalf("%s: %+v, %v", request, r.Error, err)
		}
		return string(data)
	}
	stemcell := made(`{"method":"create_stemcell","arguments":["image",{}]}`)
	disk := made(`{"method":"create_disk","arguments":[16,{},null]}`)
	before := snapshot(t, base, own)
	calls := 0
	for _, request := range validRequests(stemcell, disk) {
		for _, value := range hostileValues(base) {
			mutations(t, request, value, func(_ string, hostile []byte) {
				calls++
				do(hostile, nil)
			})
			if after := snapshot(t, base, own); !maps.Equal(before, after) {
				t.Fatalf("%q in %s changes files outside of the IaaS:\n%s", value, request, difference(before, after))
			}
		}
	}
	t.Logf("%d calls", calls)
	for _, left := range []string{"vms", "networks", "snapshots"} {
		found, err := os.ReadDir(filepath.Join(own, left))
		if err != nil || left == "vms" && len(found) > 0 {
			t.Errorf("%s that are left: %v, %v", left, found, err)
		}
		for _, e := range found {
			if strings.Trim(e.Name(), "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
				t.Errorf("%s has a name that is not ours", e)
			}
		}
	}
}

// sentinels puts a file called sentinel into every directory from base to dir.
func sentinels(t *testing.T, base, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for at := dir; strings.HasPrefix(at, base); at = filepath.Dir(at) {
		if err := os.WriteFile(filepath.Join(at, "sentinel"), []byte(at), 0o640); err != nil {
			t.Fatal(err)
		}
	}
}

// snapshot maps each path below base to its inode, owner, mode, modification time and content. It skips the directory
// own.
func snapshot(t *testing.T, base, own string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == own {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		content := []byte(nil)
		if info.Mode().IsRegular() {
			if content, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		found[path] = fmt.Sprint(st.Ino, st.Uid, st.Gid, info.Mode(), info.ModTime(), string(content))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func difference(before, after map[string]string) string {
	text := ""
	for path := range before {
		if before[path] != after[path] {
			text += fmt.Sprintf("%s was %q and is %q\n", path, before[path], after[path])
		}
		delete(after, path)
	}
	return text + fmt.Sprint("new: ", after)
}

// rootTarball is an image with a root file system and without a disk.
func rootTarball(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	w := tar.NewWriter(zip)
	for _, name := range []string{"etc/passwd", "sbin/init"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
