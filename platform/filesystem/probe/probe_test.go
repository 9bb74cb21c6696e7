package probe

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"cambium/internal/looptest"
)

const imageSize = 64 << 20

// blkid returns the result of libblkid's low-level probe, or "" if it finds nothing.
func blkid(t testing.TB, path string) string {
	t.Helper()
	looptest.Needs(t, "blkid")
	cmd := exec.Command("blkid", "-p", "-o", "export", path)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return string(out)
	case errors.As(err, &exit) && exit.ExitCode() == 2 && stderr.Len() == 0:
		return ""
	case errors.As(err, &exit) && exit.ExitCode() == 8:
		return "ambivalent"
	}
	t.Fatalf("blkid: %v: %s", err, stderr.String())
	return ""
}

// ofFile identifies the content of an image.
func ofFile(path string) (Content, error) {
	f, err := os.Open(path)
	if err != nil {
		return Content{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Content{}, err
	}
	return Identify(f, info.Size())
}

func put(offset int64, text string) func(testing.TB, string) {
	return func(t testing.TB, path string) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if offset < 0 {
			offset += imageSize
		}
		if _, err := f.WriteAt([]byte(text), offset); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func run(name string, args ...string) func(testing.TB, string) {
	return func(t testing.TB, path string) {
		t.Helper()
		looptest.Needs(t, name)
		all := make([]string, len(args))
		for i, a := range args {
			all[i] = strings.ReplaceAll(a, "IMAGE", path)
		}
		cmd := exec.Command(name, all...)
		cmd.Stdin = strings.NewReader("label: gpt\n,,\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
}

// cases lists images created by the programs that own the formats or, if these need a block device, with documented
// magic numbers.
var cases = []struct {
	name  string
	make  func(testing.TB, string)
	want  Kind
	judge string // what blkid says; "" means that it need not know a bare magic number
}{
	{"nothing", func(testing.TB, string) {}, Blank, ""},
	{"random bytes elsewhere", put(5<<20, "not a signature, just data"), Blank, ""},
	{"ext2", run("mkfs.ext2", "-qF", "IMAGE"), Ext2, "TYPE=ext2"},
	{"ext3", run("mkfs.ext3", "-qF", "IMAGE"), Ext3, "TYPE=ext3"},
	{"ext4", run("mkfs.ext4", "-qF", "-L", "data", "IMAGE"), Ext4, "TYPE=ext4"},
	{"ext4 with small blocks", run("mkfs.ext4", "-qF", "-b", "1024", "IMAGE"), Ext4, "TYPE=ext4"},
	{"xfs", run("mkfs.xfs", "-q", "--unsupported", "-L", "data", "IMAGE"), XFS, "TYPE=xfs"},
	{"btrfs", run("mkfs.btrfs", "-q", "--mixed", "IMAGE"), Btrfs, "TYPE=btrfs"},
	{"swap", run("mkswap", "IMAGE"), Swap, "TYPE=swap"},
	{"luks1", run("cryptsetup", "luksFormat", "--type", "luks1", "-q", "--pbkdf-force-iterations", "1000", "IMAGE"),
		LUKS, "TYPE=crypto_LUKS"},
	{"luks2", run("cryptsetup", "luksFormat", "--type", "luks2", "-q", "--pbkdf", "pbkdf2",
		"--pbkdf-force-iterations", "1000", "IMAGE"), LUKS, "TYPE=crypto_LUKS"},
	{"fat16", run("mkfs.vfat", "-F", "16", "IMAGE"), FAT, "TYPE=vfat"},
	{"fat32", run("mkfs.vfat", "-F", "32", "IMAGE"), FAT, "TYPE=vfat"},
	{"ntfs", run("mkfs.ntfs", "-q", "-F", "-f", "IMAGE"), NTFS, "TYPE=ntfs"},
	{"iso9660", run("genisoimage", "-quiet", "-o", "IMAGE", "-V", "cidata", "/usr/share/doc/libc6"), ISO9660,
		"TYPE=iso9660"},
	{"gpt", run("sfdisk", "-q", "IMAGE"), GPT, "PTTYPE=gpt"},
	{"lvm", put(512, "LABELONE\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x20\x00\x00\x00LVM2 001"), LVM, ""},
	{"md 1.2", put(4096, "\xfc\x4e\x2b\xa9\x01\x00\x00\x00"), MD, ""},
	{"md 1.0", put(-8192, "\xfc\x4e\x2b\xa9\x01\x00\x00\x00"), MD, ""},
	{"md 0.90", put(-65536, "\xfc\x4e\x2b\xa9\x00\x00\x00\x00\x5a\x00\x00\x00"), MD, ""},
	{"bcache", put(4096+24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"), Bcache, ""},
	{"ext superblock of nonsense", put(1080, "\x53\xef"), Unknown, ""},
	{"xfs superblock of nonsense", put(0, "XFSB"), Unknown, ""},
	{"dos table", put(510, "\x55\xaa"), DOS, ""},
	{"backup gpt only", put(-512, "EFI PART"), GPT, ""},
}

func TestIdentify(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := looptest.Image(t, imageSize)
			c.make(t, path)
			got, err := ofFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got.Kind != c.want {
				t.Errorf("Probe = %s, want %s", got, c.want)
			}
			judge := blkid(t, path)
			if c.judge != "" && !strings.Contains(judge, c.judge) {
				t.Errorf("blkid says %q, want %q", judge, c.judge)
			}
			if got.Blank() && judge != "" {
				t.Errorf("blank, but blkid finds %q", judge)
			}
			if wantData := c.want == Ext4 || c.want == XFS; got.Data() != wantData {
				t.Errorf("Data = %v, want %v (%s)", got.Data(), wantData, got)
			}
		})
	}
}

func TestIdentifyReadsSuperblocks(t *testing.T) {
	for _, kind := range []Kind{Ext4, XFS} {
		path := looptest.Image(t, 300<<20)
		run("mkfs."+string(kind), map[Kind][]string{Ext4: {"-qF", "-L", "data", "IMAGE"}, XFS: {"-q", "-L", "data",
			"IMAGE"}}[kind]...)(t, path)
		c, err := ofFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if c.Label != "data" || c.Bytes != 300<<20 || c.Errors || c.Incomplete {
			t.Errorf("%s: %+v; want label data, %d bytes, no errors, complete", kind, c, 300<<20)
		}
		if !strings.Contains(blkid(t, path), "UUID="+c.UUID) {
			t.Errorf("%s: UUID %s is not blkid's", kind, c.UUID)
		}
	}
	t.Run("errors", func(t *testing.T) {
		looptest.Needs(t, "debugfs")
		path := looptest.Image(t, 64<<20)
		run("mkfs.ext4", "-qF", "IMAGE")(t, path)
		run("debugfs", "-w", "-R", "ssv state 2", "IMAGE")(t, path)
		if c, err := ofFile(path); err != nil || !c.Errors || !c.NeverMounted {
			t.Errorf("Probe = %+v, %v; want recorded errors, never mounted", c, err)
		}
	})
	t.Run("half grown", func(t *testing.T) {
		path := looptest.Image(t, 300<<20)
		run("mkfs.xfs", "-q", "-d", "agcount=4", "IMAGE")(t, path)
		put(3*75<<20+8, "\x00\x00\x00\x00\x00\x00\x70\x00")(t, path) // fewer blocks in the copy of the last group
		if c, err := ofFile(path); err != nil || c.Bytes != 300<<20 {
			t.Errorf("Probe = %+v, %v; want the length of the first superblock", c, err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r := &groupReader{ReaderAt: f}
		if half, err := HalfGrown(r); err != nil || !half || r.groups != 3 {
			t.Errorf("HalfGrown = %v, %v after %d groups; want it half grown, and each group read once", half, err, r.groups)
		}
		if _, err := Identify(r, 300<<20); err != nil || r.groups != 3 {
			t.Errorf("Identify read %d groups: %v; want none", r.groups-3, err)
		}
	})
}

// groupReader counts the reads of the second, third and fourth group of an xfs of 300 MiB.
type groupReader struct {
	io.ReaderAt
	groups int
}

func (r *groupReader) ReadAt(b []byte, at int64) (int, error) {
	if at > 0 && at%(75<<20) == 0 {
		r.groups++
	}
	return r.ReaderAt.ReadAt(b, at)
}

// TestRAIDWinsOverItsContent: a RAID member must not be taken for the file system inside it.
func TestRAIDWinsOverItsContent(t *testing.T) {
	path := looptest.Image(t, imageSize)
	run("mkfs.ext4", "-qF", "IMAGE", "63M")(t, path)
	put(-8192, "\xfc\x4e\x2b\xa9\x01\x00\x00\x00")(t, path)
	c, err := ofFile(path)
	if err != nil || c.Kind != MD || c.Data() {
		t.Errorf("Probe = %s, %v, Data %v; want a RAID member", c, err, c.Data())
	}
}

func TestWipeLeavesNothing(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := looptest.Image(t, imageSize)
			c.make(t, path)
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			info, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			if err := Wipe(f, 0, info.Size()); err != nil {
				t.Fatal(err)
			}
			if got, err := ofFile(path); err != nil || !got.Blank() {
				t.Errorf("Probe = %s, %v; want blank", got, err)
			}
			if judge := blkid(t, path); judge != "" {
				t.Errorf("blkid finds %q", judge)
			}
		})
	}
}

func TestWipeStaysInside(t *testing.T) {
	data := bytes.Repeat([]byte{0xa5}, 8<<20)
	b := &memory{data: bytes.Clone(data)}
	if err := Wipe(b, 2<<20, 3<<20); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.data[:2<<20], data[:2<<20]) || !bytes.Equal(b.data[5<<20:], data[5<<20:]) {
		t.Error("bytes outside the range were changed")
	}
}

type memory struct{ data []byte }

func (m *memory) ReadAt(b []byte, o int64) (int, error) {
	return bytes.NewReader(m.data).ReadAt(b, o)
}
func (m *memory) WriteAt(b []byte, o int64) (int, error) { return copy(m.data[o:], b), nil }

func TestReadErrorIsNeverBlank(t *testing.T) {
	broken := errors.New("medium error")
	for at := int64(0); at < 2<<20; at += 64 << 10 {
		c, err := Identify(failing{from: at, err: broken}, 4<<20)
		if err == nil && at == 0 {
			t.Fatalf("read errors from %d on: %s, want an error", at, c)
		}
		if err == nil && c.Blank() && at < 1<<20 {
			t.Errorf("read errors from %d on gave blank", at)
		}
	}
}

type failing struct {
	from int64
	err  error
}

func (f failing) ReadAt(b []byte, o int64) (int, error) {
	if o+int64(len(b)) > f.from {
		return 0, f.err
	}
	clear(b)
	return len(b), nil
}

// TestEverythingElseIsBytes: content without a known kind is not blank either, as blkid confirms.
func TestEverythingElseIsBytes(t *testing.T) {
	for _, c := range []struct {
		judge string
		make  func(testing.TB, string)
	}{
		{"squashfs", run("mksquashfs", "/usr/share/doc/libc6", "IMAGE", "-noappend", "-quiet", "-no-progress",
			"-no-strip")},
		{"minix", run("mkfs.minix", "IMAGE")},
		{"cramfs", run("mkfs.cramfs", "/usr/share/doc/libc6", "IMAGE")},
		{"zfs_member", func(t testing.TB, path string) {
			for slot := int64(128 << 10); slot < 256<<10; slot += 1 << 10 {
				put(slot, "\x0c\xb1\xba\x00\x00\x00\x00\x00")(t, path)
			}
		}},
		{"udf", func(t testing.TB, path string) {
			for i, magic := range []string{"BEA01", "NSR02", "TEA01"} {
				put(32<<10+int64(i)*2048+1, magic)(t, path)
			}
		}},
		{"adaptec_raid_member", put(-512, "\x37\xfc\x4d\x1e")},
	} {
		t.Run(c.judge, func(t *testing.T) {
			path := looptest.Image(t, imageSize)
			c.make(t, path)
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			info, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			if found, err := Survey(t.Context(), f, info.Size(), nil); err != nil || found.IsEmpty() || found.Noise {
				t.Errorf("Survey = %+v, %v; blkid says %q", found, err, blkid(t, path))
			}
		})
	}
}

func FuzzIdentify(f *testing.F) {
	head := make([]byte, 4096)
	f.Add(head, int64(1<<20))
	for _, s := range signatures {
		if s.offset >= 0 && s.offset+int64(len(s.magic)) <= 4096 {
			b := bytes.Clone(head)
			copy(b[s.offset:], s.magic)
			f.Add(b, int64(1<<20))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, size int64) {
		if size < 0 || size > 1<<24 {
			return
		}
		c, err := Identify(sparse{data: data, size: size}, size)
		if err != nil {
			t.Fatalf("a readable device gave %v", err)
		}
		if c.Kind == "" || c.Kind == extFamily || c.Bytes < 0 {
			t.Fatalf("bad content %+v", c)
		}
		_ = c.String()
	})
}

// sparse is a reader of data followed by zeros up to size.
type sparse struct {
	data []byte
	size int64
}

func (s sparse) ReadAt(b []byte, o int64) (int, error) {
	clear(b)
	if o < int64(len(s.data)) {
		copy(b, s.data[o:])
	}
	if o+int64(len(b)) > s.size {
		return int(max(s.size-o, 0)), io.EOF
	}
	return len(b), nil
}
