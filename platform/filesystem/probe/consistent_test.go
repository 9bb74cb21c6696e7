package probe

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"cambium/internal/looptest"
)

// Commands that find errors and change nothing.
var e2fsck, xfsRepair = []string{"e2fsck", "-n"}, []string{"xfs_repair", "-n", "-f"}

func unsealed([]byte) {}

// healthy lists file systems created by programs, first small ones with and without checksums. fix corrects the
// checksum of a superblock.
var healthy = []struct {
	name string
	kind Kind
	size int64
	make func(testing.TB, string)
	fix  func([]byte)
	sick []string // the program of the file system that finds errors
}{
	{"ext4 of 1 KiB blocks", Ext4, 64 << 20, run("mkfs.ext4", "-qF", "-b", "1024", "IMAGE"), fixExt, e2fsck},
	{"ext4, no checksums", Ext4, 64 << 20, run("mkfs.ext4", "-qF", "-O", "^metadata_csum", "IMAGE"), unsealed, e2fsck},
	{"xfs", XFS, 300 << 20, run("mkfs.xfs", "-q", "IMAGE"), fixXFS, xfsRepair},
	{"xfs without checksums", XFS, 300 << 20, run("mkfs.xfs", "-q", "-m", "crc=0", "IMAGE"), unsealed, xfsRepair},
	{"ext4", Ext4, 600 << 20, run("mkfs.ext4", "-qF", "-b", "4096", "IMAGE"), fixExt, e2fsck},
	{"ext4 of clusters", Ext4, 64 << 20, run("mkfs.ext4", "-qF", "-O", "bigalloc", "IMAGE"), fixExt, e2fsck},
	{"xfs of large sectors", XFS, 300 << 20, run("mkfs.xfs", "-q", "-s", "size=4096", "IMAGE"), fixXFS, xfsRepair},
}

func fixExt(head []byte) {
	sb := head[1024:2048]
	binary.LittleEndian.PutUint32(sb[0x3fc:], ^crc32.Checksum(sb[:0x3fc], crc32.MakeTable(crc32.Castagnoli)))
}

func fixXFS(head []byte) {
	clear(head[224:228])
	sector := binary.BigEndian.Uint16(head[102:])
	binary.LittleEndian.PutUint32(head[224:], crc32.Checksum(head[:sector], crc32.MakeTable(crc32.Castagnoli)))
}

// headOf reads the first bytes of an image.
func headOf(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	head := make([]byte, 128<<10)
	if _, err := f.ReadAt(head, 0); err != nil {
		t.Fatal(err)
	}
	return head
}

// alone reports whether the content is one file system and nothing else.
func alone(c Content, kind Kind) bool { return c.Kind == kind && len(c.Also) == 0 && c.Data() }

// TestEveryCountOfFreeInodesIsExt4: a counter changes with each file. With each value of its low half, the content is
// ext4 only.
func TestEveryCountOfFreeInodesIsExt4(t *testing.T) {
	const count, size = 1040, 128 << 10
	for i, c := range healthy[:2] {
		t.Run(c.name, func(t *testing.T) {
			path := looptest.Image(t, size)
			c.make(t, path)
			head := headOf(t, path)
			for n := range 1 << 16 {
				if high := n >> 8; i == 0 && high != 0x13 && high != 0x24 {
					continue // with checksums, those around the magics of minix do
				}
				binary.LittleEndian.PutUint16(head[count:], uint16(n))
				c.fix(head)
				if got, err := Identify(bytes.NewReader(head), size); err != nil || !alone(got, Ext4) {
					t.Fatalf("%#04x: %s, %v; want ext4 and nothing else", n, got, err)
				}
			}
		})
	}
}

// TestNoSignatureInsideAHealthyFileSystem: a signature inside a healthy file system is ignored. If it overwrites
// metadata, the file system's own program reports an error.
func TestNoSignatureInsideAHealthyFileSystem(t *testing.T) {
	for _, c := range healthy[:4] {
		t.Run(c.name, func(t *testing.T) {
			path := looptest.Image(t, c.size)
			c.make(t, path)
			looptest.Needs(t, c.sick[0])
			before := headOf(t, path)
			for _, s := range signatures {
				offset := s.offset
				if offset < 0 {
					offset += c.size / s.align * s.align
				}
				head := bytes.Clone(before)
				if offset < int64(len(head)) {
					copy(head[offset:], s.magic)
					c.fix(head)
				} else {
					put(offset, s.magic)(t, path)
				}
				put(0, string(head))(t, path)
				got, err := ofFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if !alone(got, c.kind) {
					out, err := exec.Command(c.sick[0], append(c.sick[1:], path)...).CombinedOutput()
					if err == nil && !strings.Contains(string(out), "trying backup blocks") {
						t.Errorf("%s at %d: %s; want %s and nothing else: it is healthy", s.kind, offset, got, c.kind)
					}
				}
				put(0, string(before))(t, path)
				if offset >= int64(len(head)) {
					put(offset, strings.Repeat("\x00", len(s.magic)))(t, path)
				}
			}
		})
	}
}

// sealedMD and the functions below return headers that their owners would accept, according to blkid.
func sealedMD(at int64) string {
	sb := make([]byte, 4096)
	copy(sb, "\xfc\x4e\x2b\xa9\x01")
	copy(sb[16:], "sixteen bytes id")
	sb[92], sb[220] = 2, 2
	binary.LittleEndian.PutUint64(sb[144:], uint64(at/512))
	total := uint64(0)
	for o := 0; o < 260; o += 4 {
		total += uint64(binary.LittleEndian.Uint32(sb[o:]))
	}
	binary.LittleEndian.PutUint32(sb[216:], uint32(total)+uint32(total>>32))
	return string(sb)
}

func sealedLVM(at int64) string {
	label := make([]byte, 512)
	copy(label, "LABELONE")
	binary.LittleEndian.PutUint64(label[8:], uint64(at/512))
	label[20] = 32
	copy(label[24:], "LVM2 001"+"ABCDEFGHIJKLMNOPQRSTUVWXYZ012345")
	crc := uint32(0xf597a6cf)
	for _, b := range label[20:] {
		crc ^= uint32(b)
		for range 8 {
			crc = crc>>1 ^ 0xedb88320&-(crc&1)
		}
	}
	binary.LittleEndian.PutUint32(label[16:], crc)
	return string(label)
}

func sealedBcache() string {
	sb := make([]byte, 512)
	sb[8], sb[16] = 8, 1
	copy(sb[24:], "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81")
	copy(sb[40:], "uuid of this oneuuid of the sets")
	crc := ^uint64(0)
	for _, b := range sb[8:208] {
		crc ^= uint64(b) << 56
		for range 8 {
			crc = crc<<1 ^ 0x42f0e1eba9ea3693&-(crc>>63)
		}
	}
	binary.LittleEndian.PutUint64(sb, ^crc)
	return string(sb)
}

// TestLayersThatProveThemselves: complete metadata of RAID, LVM or encryption written over a file system wins. Its
// signature alone does not.
func TestLayersThatProveThemselves(t *testing.T) {
	luks := func(kind string, from, to int) func(testing.TB, string) {
		return func(t testing.TB, path string) {
			t.Helper()
			other := looptest.Image(t, 32<<20)
			run("cryptsetup", "luksFormat", "--type", kind, "-q", "--pbkdf", "pbkdf2",
				"--pbkdf-force-iterations", "1000", "IMAGE")(t, other)
			put(int64(from), string(headOf(t, other)[from:to]))(t, path)
		}
	}
	for _, c := range []struct {
		name  string
		kind  Kind
		block string
		seal  func(testing.TB, string)
		judge string
		// broken is a byte whose change makes it nothing.
		broken int64
	}{
		{"md 1.2", MD, "1024", put(4096, sealedMD(4096)), "linux_raid_member", 4096 + 72},
		{"md 1.1", MD, "4096", put(0, sealedMD(0)[:1024]), "linux_raid_member", 72},
		{"LVM", LVM, "4096", put(512, sealedLVM(512)), "LVM2_member", 600},
		{"bcache", Bcache, "1024", put(4096, sealedBcache()), "bcache", 4096 + 100},
		{"LUKS 1", LUKS, "4096", luks("luks1", 0, 1024), "crypto_LUKS", 7},
		{"LUKS 2, its second header", LUKS, "4096", luks("luks2", 0x4000, 0x8000), "", 0x5000},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := looptest.Image(t, imageSize)
			c.seal(t, path)
			if judge := blkid(t, path); !strings.Contains(judge, c.judge) {
				t.Errorf("blkid says %q, want %s", judge, c.judge)
			}
			run("mkfs.ext4", "-qF", "-b", c.block, "IMAGE")(t, path)
			if got, err := ofFile(path); err != nil || !alone(got, Ext4) {
				t.Errorf("before: %s, %v; want ext4", got, err)
			}
			c.seal(t, path)
			if got, err := ofFile(path); err != nil || got.Kind != c.kind || got.Data() {
				t.Errorf("%s, %v; want %s, which must not be used", got, err, c.kind)
			}
			if check, err := exec.Command("dumpe2fs", "-h", path).CombinedOutput(); err != nil {
				t.Fatalf("the ext4 does not survive, so that this shows nothing: %v: %s", err, check)
			}
			put(c.broken, "\xff")(t, path)
			if got, err := ofFile(path); err != nil || !alone(got, Ext4) {
				t.Errorf("broken: %s, %v; want ext4", got, err)
			}
		})
	}
}

// TestInconsistentFileSystemsOwnLess: signatures written over the head of an inconsistent file system are found.
func TestInconsistentFileSystemsOwnLess(t *testing.T) {
	fat := put(0x36, "FAT16   ")
	for name, damage := range map[string]func(testing.TB, string){
		"checksum":              put(1040, "\x7f\x13"),
		"geometry":              put(1024, "\x01\x02\x03\x00"),
		"first group":           put(4096, "\xff\xff\xff\xff"),
		"larger than its image": func(t testing.TB, path string) { run("truncate", "-s", "590M", "IMAGE")(t, path) },
	} {
		t.Run(name, func(t *testing.T) {
			path := looptest.Image(t, 600<<20)
			run("mkfs.ext4", "-qF", "-b", "4096", "IMAGE")(t, path)
			damage(t, path)
			fat(t, path)
			if name != "checksum" {
				head := headOf(t, path)
				fixExt(head)
				put(0, string(head))(t, path)
			}
			if got, err := ofFile(path); err != nil || !slices.Contains(got.Also, FAT) || got.Data() {
				t.Errorf("%s, %v; want ext4 and FAT", got, err)
			}
		})
	}
}
