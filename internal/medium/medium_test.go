package medium

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs"
	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/disk"
	"github.com/diskfs/go-diskfs/filesystem"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"

	"cambium/internal/fattest"
	"cambium/internal/skiptest"
)

// tool finds a program that makes images; without it the test is skipped, but not in CI.
func tool(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin") {
		if path := filepath.Join(dir, name); dir != "" {
			if info, err := os.Stat(path); err == nil && !info.IsDir() {
				return path
			}
		}
	}
	skiptest.Skip(t, name+" is not installed")
	return ""
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(tool(t, name), args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

var drive = map[string]string{
	"ec2/latest/meta-data.json":      `{"instance-id":"i-1"}`,
	"ec2/latest/user-data":           `{"agent_id":"ec2"}`,
	"openstack/latest/user_data":     strings.Repeat("x", 100_000),
	"openstack/content/0000/a/b/c/d": "deep",
	"env":                            `{"agent_id":"cd"}`,
	"empty":                          "",
}

func writeTree(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func makeISO(t testing.TB, files map[string]string, args ...string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.iso")
	run(t, "genisoimage", append(append([]string{"-quiet", "-o", out}, args...), writeTree(t, files))...)
	return read(t, out)
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// fillFAT writes files into a FAT image with go-diskfs: the judge for what mkfs.vfat made.
func fillFAT(t testing.TB, path string, files map[string]string) {
	t.Helper()
	d, err := diskfs.Open(path, diskfs.WithOpenMode(diskfs.ReadWrite))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f, err := d.GetFilesystem(0)
	if err != nil {
		t.Fatal(err)
	}
	fattest.Write(t, f, files)
}

func makeFAT(t testing.TB, bits, kib int, label string, files map[string]string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.fat")
	run(t, "mkfs.vfat", "-C", "-F", fmt.Sprint(bits), "-n", label, out, fmt.Sprint(kib))
	fillFAT(t, out, files)
	return read(t, out)
}

func open(t testing.TB, image []byte) *Volume {
	t.Helper()
	v, err := Open(context.Background(), bytes.NewReader(image), int64(len(image)))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func check(t *testing.T, v *Volume, files map[string]string) {
	t.Helper()
	for name, want := range files {
		got, err := v.ReadFile(name, 1<<20)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if string(got) != want {
			t.Errorf("%s: %d bytes %.40q, want %d bytes %.40q", name, len(got), got, len(want), want)
		}
	}
	if _, err := v.ReadFile("no/such", 1<<20); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: error %v, want fs.ErrNotExist", err)
	}
	if _, err := v.ReadFile("ec2", 1<<20); err == nil {
		t.Error("a directory was read as a file")
	}
	if _, err := v.ReadFile("openstack/latest/user_data", 4096); err == nil ||
		!strings.Contains(err.Error(), "too large") {
		t.Errorf("file over the limit: error %v, want too large", err)
	}
}

func TestISOByTools(t *testing.T) {
	deep := map[string]string{"1/2/3/4/5/6/7/8/9/10/deep-file": "relocated", strings.Repeat("long-name-", 20): "continued"}
	for name, content := range drive {
		deep[name] = content
	}
	cases := []struct {
		name  string
		args  []string
		files map[string]string
	}{
		{"rock ridge", []string{"-R"}, drive},
		{"rock ridge, rationalized", []string{"-r"}, drive},
		{"rock ridge, relocated directories and long names", []string{"-r", "-D"}, deep},
		{"joliet only", []string{"-J"}, drive},
		{"joliet and rock ridge", []string{"-J", "-r"}, drive},
		{"level 4", []string{"-iso-level", "4"}, drive},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			v := open(t, makeISO(t, c.files, append([]string{"-V", "config-2"}, c.args...)...))
			if v.Kind != "iso9660" || !v.HasLabel("config-2") || len(v.Labels) != 1 {
				t.Errorf("%s with labels %q, want iso9660 with config-2", v.Kind, v.Labels)
			}
			check(t, v, c.files)
		})
	}
	t.Run("rock ridge with relocation by xorriso", func(t *testing.T) {
		out := filepath.Join(t.TempDir(), "x.iso")
		run(t, "xorriso", "-report_about", "SORRY", "-as", "mkisofs", "-V", "CONFIG-2", "-r", "-o", out, writeTree(t, deep))
		v := open(t, read(t, out))
		if !v.HasLabel("config-2") {
			t.Errorf("labels %q, want CONFIG-2", v.Labels)
		}
		check(t, v, deep)
	})
	t.Run("joliet by xorriso", func(t *testing.T) {
		out := filepath.Join(t.TempDir(), "x.iso")
		run(t, "xorriso", "-report_about", "SORRY", "-rockridge", "off", "-outdev", out, "-volid", "config-2", "-joliet",
			"on", "-map", writeTree(t, drive), "/", "-commit")
		check(t, open(t, read(t, out)), drive)
	})
	t.Run("relocated directories by genisoimage", func(t *testing.T) {
		check(t, open(t, makeISO(t, deep, "-r")), deep)
	})
}

func TestDirectoryOfManySectors(t *testing.T) {
	files := map[string]string{}
	for i := range 300 {
		files[fmt.Sprintf("d/f%03d", i)] = fmt.Sprint(i)
	}
	for name, image := range map[string][]byte{"plain": makeISO(t, files), "rock ridge": makeISO(t, files, "-r"),
		"joliet": makeISO(t, files, "-J")} {
		v := open(t, image)
		for _, i := range []int{0, 77, 150, 299} {
			file := fmt.Sprintf("d/f%03d", i)
			if got, err := v.ReadFile(file, 1024); err != nil || string(got) != files[file] {
				t.Fatalf("%s: %s: %q, %v; want %q", name, file, got, err, files[file])
			}
		}
	}
}

func TestPlainISONamesMatchWithoutCase(t *testing.T) {
	v := open(t, makeISO(t, map[string]string{"env": `{"agent_id":"v"}`, "dir/a.b": "x"}))
	for name, want := range map[string]string{"env": `{"agent_id":"v"}`, "ENV": `{"agent_id":"v"}`,
		"ENV.;1": `{"agent_id":"v"}`, "/dir/a.b": "x"} {
		if got, err := v.ReadFile(name, 1024); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
}

func TestCutNamesAreReportedNotGuessed(t *testing.T) {
	v := open(t, makeISO(t, map[string]string{"ec2/latest/meta-data.json": "{}", "ec2/latest/user-data": "{}"}))
	_, err := v.ReadFile("ec2/latest/meta-data.json", 1024)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "META_DAT.JSO") ||
		!strings.Contains(err.Error(), "8.3") {
		t.Errorf("error %v, want one that names META_DAT.JSO and 8.3 names", err)
	}
}

func TestSymbolicLinkIsNotFollowed(t *testing.T) {
	dir := writeTree(t, map[string]string{"real": "x"})
	if err := os.Symlink("real", filepath.Join(dir, "env")); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "l.iso")
	run(t, "genisoimage", "-quiet", "-r", "-o", out, dir)
	if _, err := open(t, read(t, out)).ReadFile("env", 1024); err == nil ||
		!strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("error %v, want symbolic link", err)
	}
}

func TestISOByGoDiskfs(t *testing.T) {
	for _, rock := range []bool{false, true} {
		t.Run(fmt.Sprintf("rock ridge %v", rock), func(t *testing.T) {
			files := map[string]string{"env": `{"agent_id":"g"}`, "ec2/latest/user": "u"}
			image := makeGoDiskfsISO(t, files, rock)
			v := open(t, image)
			if !v.HasLabel("config-2") {
				t.Errorf("labels %q, want config-2", v.Labels)
			}
			for name, want := range files {
				if got, err := v.ReadFile(name, 1024); err != nil || string(got) != want {
					t.Errorf("%s: %q, %v; want %q", name, got, err, want)
				}
			}
			sameAsLibrary(t, image)
		})
	}
}

// sameAsLibrary compares every file that go-diskfs finds, and the label.
func sameAsLibrary(t *testing.T, image []byte) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "library.iso")
	if err := os.WriteFile(name, image, 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := file.OpenFromPath(name, true)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	lib, err := iso9660.Read(b, int64(len(image)), 0, 2048)
	if err != nil {
		t.Fatal(err)
	}
	v := open(t, image)
	if label := strings.TrimRight(lib.Label(), " \x00"); label != "" && !v.HasLabel(label) {
		t.Errorf("labels %q, go-diskfs says %q", v.Labels, label)
	}
	found := 0
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := lib.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			at := filepath.Join(dir, e.Name())
			if e.IsDir() {
				walk(at)
				continue
			}
			want, err := lib.ReadFile(at)
			if err != nil {
				t.Fatal(err)
			}
			found++
			if got, err := v.ReadFile(at, 1<<20); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes, %v; go-diskfs reads %d", at, len(got), err, len(want))
			}
		}
	}
	walk(".")
	if found == 0 {
		t.Error("go-diskfs found no file")
	}
}

func TestISOLikeTheLibrary(t *testing.T) {
	for name, args := range map[string][]string{"plain": nil, "rock ridge": {"-r"}, "both": {"-r", "-J"}} {
		t.Run(name, func(t *testing.T) {
			sameAsLibrary(t, makeISO(t, drive, append([]string{"-V", "CONFIG-2"}, args...)...))
		})
	}
}

func makeGoDiskfsISO(t testing.TB, files map[string]string, rock bool) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "g.iso")
	d, err := diskfs.Create(out, 2<<20, diskfs.SectorSizeDefault)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.LogicalBlocksize = 2048
	f, err := d.CreateFilesystem(disk.FilesystemSpec{Partition: 0, FSType: filesystem.TypeISO9660,
		VolumeLabel: "config-2"})
	if err != nil {
		t.Fatal(err)
	}
	fattest.Write(t, f, files)
	if err := f.(*iso9660.FileSystem).Finalize(iso9660.FinalizeOptions{RockRidge: rock,
		VolumeIdentifier: "config-2"}); err != nil {
		t.Fatal(err)
	}
	return read(t, out)
}

func TestFAT(t *testing.T) {
	for _, c := range []struct {
		bits, kib int
	}{{12, 2048}, {16, 16 << 10}, {32, 40 << 10}} {
		t.Run(fmt.Sprintf("FAT%d by mkfs.vfat", c.bits), func(t *testing.T) {
			v := open(t, makeFAT(t, c.bits, c.kib, "CONFIG-2", drive))
			if v.Kind != "vfat" || !v.HasLabel("config-2") {
				t.Errorf("%s with labels %q, want vfat with CONFIG-2", v.Kind, v.Labels)
			}
			check(t, v, drive)
		})
	}
	for kind, size := range map[filesystem.Type]int64{filesystem.TypeFat12: 2 << 20, filesystem.TypeFat16: 16 << 20,
		filesystem.TypeFat32: 40 << 20} {
		t.Run(fmt.Sprintf("type %d by go-diskfs", kind), func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "g.fat")
			fattest.Make(t, out, size, kind, "config-2", drive)
			v := open(t, read(t, out))
			if !v.HasLabel("config-2") {
				t.Errorf("labels %q, want config-2", v.Labels)
			}
			check(t, v, drive)
		})
	}
}

func TestFATWithoutLongNames(t *testing.T) {
	v := open(t, makeFAT(t, 12, 1024, "X", map[string]string{"ENV": "short"}))
	if got, err := v.ReadFile("env", 1024); err != nil || string(got) != "short" {
		t.Errorf("%q, %v; want the content of ENV", got, err)
	}
}

func TestNothingToRead(t *testing.T) {
	for name, image := range map[string][]byte{
		"empty":           nil,
		"one byte":        {0},
		"zeros":           make([]byte, 1<<20),
		"boot sector":     append(bytes.Repeat([]byte{0}, 510), 0x55, 0xaa),
		"truncated ISO":   append(make([]byte, 32769), "CD001"...),
		"partition table": append(bytes.Repeat([]byte{0xff}, 510), 0x55, 0xaa),
	} {
		if _, err := Open(t.Context(), bytes.NewReader(image), int64(len(image))); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: error %v, want ErrUnknown", name, err)
		}
	}
}

// failing is a device with a bad spot.
type failing struct {
	*bytes.Reader
	from, to int64
}

func (f failing) ReadAt(p []byte, off int64) (int, error) {
	if off < f.to && off+int64(len(p)) > f.from {
		return 0, errors.New("input/output error")
	}
	return f.Reader.ReadAt(p, off)
}

func TestReadErrorIsNotZeros(t *testing.T) {
	for name, image := range map[string][]byte{"FAT": makeFAT(t, 12, 1024, "X", drive), "ISO": makeISO(t, drive, "-r")} {
		at := int64(bytes.Index(image, []byte("xxxxxxxxxxxxxxxx")))
		r := failing{bytes.NewReader(image), at + 512, at + 1024}
		v, err := Open(t.Context(), r, int64(len(image)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.ReadFile("openstack/latest/user_data", 1<<20); err == nil ||
			!strings.Contains(err.Error(), "input/output error") {
			t.Errorf("%s: error %v, want the device's", name, err)
		}
		if got, err := v.ReadFile("env", 1<<20); err != nil || string(got) != drive["env"] {
			t.Errorf("%s: a good file after the bad one: %q, %v", name, got, err)
		}
	}
}

func TestCircularChainIsDamage(t *testing.T) {
	image := makeFAT(t, 16, 16<<10, "X", drive)
	g, err := readGeometry(newGuarded(t.Context(), bytes.NewReader(image), int64(len(image))))
	if err != nil {
		t.Fatal(err)
	}
	// Cluster 5 follows cluster 4 follows cluster 5.
	table := image[g.tableStart:]
	table[8], table[9], table[10], table[11] = 5, 0, 4, 0
	if _, err := Open(t.Context(), bytes.NewReader(image), int64(len(image))); !errors.Is(err, ErrDamaged) {
		t.Errorf("error %v, want damage", err)
	}
}

func TestEndOfContextStopsReading(t *testing.T) {
	image := makeISO(t, drive, "-r")
	ctx, cancel := context.WithCancel(t.Context())
	v, err := Open(ctx, bytes.NewReader(image), int64(len(image)))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := v.ReadFile("env", 1024); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want canceled", err)
	}
}
