package upload

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cambium/internal/looptest"
)

func tarball(t *testing.T, files map[string][]byte, order ...string) string {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	w := tar.NewWriter(zip)
	for _, name := range order {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "upload")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUnpack(t *testing.T) {
	looptest.Needs(t, "qemu-img")
	raw := make([]byte, 1<<20)
	raw[510], raw[511] = 0x55, 0xaa
	made := filepath.Join(t.TempDir(), "made")
	rawDisk := filepath.Join(t.TempDir(), "raw")
	if err := os.WriteFile(rawDisk, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	qemuImg := func(args ...string) []byte {
		t.Helper()
		if out, err := exec.Command("qemu-img", append(args, made)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		data, err := os.ReadFile(made)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	converted := qemuImg("convert", "-O", "qcow2", rawDisk)
	layered := qemuImg("create", "-q", "-f", "qcow2", "-F", "raw", "-b", rawDisk)
	vhd := qemuImg("convert", "-O", "vpc", "-o", "subformat=dynamic,force_size=on", rawDisk)
	vmdk := qemuImg("convert", "-O", "vmdk", "-o", "subformat=streamOptimized", rawDisk)
	outside := qemuImg("convert", "-O", "qcow2", "-o", "data_file="+filepath.Join(t.TempDir(), "data"), rawDisk)
	// A description that has QEMU copy a file of the host, which has a partition table.
	description := []byte("# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"monolithicFlat\"\nRW 2048 FLAT \"" + rawDisk + "\" 0\n")
	// QEMU would wait for the other end of this one.
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	waiting := bytes.ReplaceAll(description, []byte(rawDisk), []byte(fifo))
	inside := bytes.Clone(vmdk)
	copy(inside[12:20], make([]byte, 8)) // without a capacity QEMU follows the description inside
	copy(inside[512*binary.LittleEndian.Uint64(inside[28:]):], append(waiting, 0))
	for name, c := range map[string]struct {
		upload string
		want   string // the file that is there afterwards
		err    string
	}{
		"VMDK of a FIFO":    {tarball(t, map[string][]byte{"a.vmdk": waiting}, "a.vmdk"), "", "another file"},
		"VMDK, FIFO inside": {tarball(t, map[string][]byte{"a.vmdk": inside}, "a.vmdk"), "", "another file"},
		"raw disk":          {rawDisk, Disk, ""},
		"root.img, raw":     {tarball(t, map[string][]byte{"root.img": raw}, "root.img"), Disk, ""},
		"root.img, qcow2":   {tarball(t, map[string][]byte{"root.img": converted}, "root.img"), Disk, ""},
		"disk.raw":          {tarball(t, map[string][]byte{"./disk.raw": raw}, "./disk.raw"), Disk, ""},
		"root.vhd":          {tarball(t, map[string][]byte{"root.vhd": vhd}, "root.vhd"), Disk, ""},
		"VMDK of an OVF": {tarball(t, map[string][]byte{"image.ovf": nil, "image.mf": nil, "image-disk1.vmdk": vmdk},
			"image.ovf", "image.mf", "image-disk1.vmdk"), Disk, ""},
		"VMDK of a host file": {tarball(t, map[string][]byte{"image-disk1.vmdk": description}, "image-disk1.vmdk"), "",
			"another file"},
		"data in a host file": {tarball(t, map[string][]byte{"root.img": outside}, "root.img"), "", "another file"},
		"root file system": {tarball(t, map[string][]byte{"etc/passwd": nil, "sbin/init": nil}, "etc/passwd",
			"sbin/init"), Tree, ""},
		"layer over a file": {tarball(t, map[string][]byte{"root.img": layered}, "root.img"), "", "another file"},
		"no partition table": {tarball(t, map[string][]byte{"root.img": []byte(strings.Repeat("x", 4096))}, "root.img"),
			"", "partition table"},
		"tarball of something": {tarball(t, map[string][]byte{"readme": nil}, "readme"), "", "neither a disk"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			upload := filepath.Join(t.TempDir(), "copy")
			data, err := os.ReadFile(c.upload)
			if err == nil {
				err = os.WriteFile(upload, data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			within, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err = Unpack(within, upload, dir)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v, want an error with %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.Stat(filepath.Join(dir, c.want))
			if err != nil || c.want == Disk && got.Size() != int64(len(raw)) {
				t.Errorf("%s: %v, %v", c.want, got, err)
			}
		})
	}
}

// TestTreesHaveABound: an upload of a few bytes unpacks to no more than its bound, and nothing passes for complete.
func TestTreesHaveABound(t *testing.T) {
	files := map[string][]byte{"etc/zeros": make([]byte, 1<<20), "sbin/init": nil}
	for name, c := range map[string]struct {
		most bound
		err  string
	}{
		"within":           {bound{2 << 20, 10}, ""},
		"too many bytes":   {bound{1 << 20, 10}, "bytes"},
		"too many members": {bound{2 << 20, 1}, "files"},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := os.Open(tarball(t, files, "etc/zeros", "sbin/init"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			dir := filepath.Join(t.TempDir(), "tree")
			err = unpackTree(t.Context(), f, dir, c.most)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, want an error with %q", err, c.err)
				}
				return
			}
			data, readErr := os.ReadFile(filepath.Join(dir, "etc/zeros"))
			if err := errors.Join(err, readErr); err != nil || len(data) != 1<<20 {
				t.Errorf("%d bytes, %v", len(data), err)
			}
		})
	}
}

// A root file system is unpacked below its directory, whatever its members are called and link to.
func TestHostileTrees(t *testing.T) {
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	const up = "../../../../../../../../../../../.."
	link := func(name, target string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
	}
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o777} }
	hard := func(name, target string) tar.Header {
		return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}
	}
	for name, members := range map[string][]tar.Header{
		"link to a directory":          {link("a", outside), file("a/victim"), file("a/new")},
		"relative link to a directory": {link("a", up+outside), file("a/victim"), file("a/new")},
		"link to a link":               {link("a", "b"), link("b", outside), file("a/new"), file("b/victim")},
		"link to a file":               {link("a", victim), file("a")},
		"hard link to a link":          {link("a", victim), hard("b", "a"), file("b")},
		"hard link to a file":          {hard("a", victim), file("a")},
		"hard link, relative":          {hard("a", up+victim), file("a")},
		"hard link through a link":     {link("d", outside), hard("a", "d/victim"), file("a")},
		"absolute":                     {file(victim), file(outside + "/new")},
		"upwards":                      {file(up + victim), file("x/../" + up + outside + "/new")},
		"a directory's mode":           {link("a", outside), {Typeflag: tar.TypeDir, Name: "a", Mode: 0o777}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(victim, []byte("content"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(outside, 0o755); err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			err := Unpack(t.Context(), special(t, append(members, file("etc/x"), file("sbin/init"))), dir)
			t.Log(err) // some are refused
			content, readErr := os.ReadFile(victim)
			info, statErr := os.Stat(victim)
			parent, parentErr := os.Stat(outside)
			left, listErr := os.ReadDir(outside)
			if err := errors.Join(readErr, statErr, parentErr, listErr); err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("%s %s %o %o", left, content, info.Mode().Perm(), parent.Mode().Perm())
			if want := "[- victim] content 600 755"; got != want {
				t.Errorf("outside is %s, want %s", got, want)
			}
		})
	}
}

// special is a tarball of members without content.
func special(t *testing.T, members []tar.Header) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "upload")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	zip := gzip.NewWriter(f)
	w := tar.NewWriter(zip)
	for _, h := range members {
		err = errors.Join(err, w.WriteHeader(&h))
	}
	if err := errors.Join(err, w.Close(), zip.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}
