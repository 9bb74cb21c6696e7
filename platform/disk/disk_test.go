package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/platform/disk/layout"
	"cambium/platform/filesystem/probe"
)

func tool(t testing.TB, stdin, name string, args ...string) string {
	t.Helper()
	looptest.Needs(t, name)
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func observe(t testing.TB, path string) layout.State {
	t.Helper()
	s, err := inspectDisk(path, func(layout.Table) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func contains(t testing.TB, what, text string, wanted ...string) {
	t.Helper()
	for _, w := range wanted {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), w) {
			t.Errorf("%s lacks %q:\n%s", what, w, text)
		}
	}
}

var ctx = context.Background()

func TestCreateGPT(t *testing.T) {
	path := looptest.Image(t, 100*layout.MiB)
	guid := "11111111-2222-4333-8444-555555555555"
	parts := []layout.Partition{{Number: 1, Start: layout.MiB, Size: 10 * layout.MiB, Name: "bosh-partition-x-0"},
		{Number: 2, Start: 11 * layout.MiB, Size: 88 * layout.MiB, Name: "bosh-partition-x-1"}}
	if err := Create(ctx, path, layout.GPT, guid, parts); err != nil {
		t.Fatal(err)
	}
	s := observe(t, path)
	if s.Table.Label != layout.GPT || !strings.EqualFold(s.Table.GUID, guid) || len(s.Table.Partitions) != 2 ||
		s.Content.Kind != probe.GPT {
		t.Errorf("read back %+v", s)
	}
	contains(t, "sfdisk", tool(t, "", "sfdisk", "--dump", path), "label: gpt", "label-id: "+guid,
		"start= 2048, size= 20480, type="+layout.LinuxGPT, `name="bosh-partition-x-1"`)
	contains(t, "sgdisk", tool(t, "", "sgdisk", "--verify", path), "No problems found")
	contains(t, "parted", tool(t, "", "parted", "-ms", path, "unit", "B", "print"),
		"1:1048576B:11534335B:10485760B::bosh-partition-x-0:", ":gpt:")
	contains(t, "blkid", tool(t, "", "blkid", "-p", "-o", "export", path), "PTTYPE=gpt")
}

func TestCreateMBR(t *testing.T) {
	path := looptest.Image(t, 100*layout.MiB)
	parts := []layout.Partition{{Number: 1, Start: layout.MiB, Size: 10 * layout.MiB, Type: layout.SwapMBR},
		{Number: 2, Start: 11 * layout.MiB, Size: 88 * layout.MiB}}
	if err := Create(ctx, path, layout.MBR, "cafe0123", parts); err != nil {
		t.Fatal(err)
	}
	if s := observe(t, path); s.Table.Label != layout.MBR || s.Table.GUID != "cafe0123" ||
		len(s.Table.Partitions) != 2 {
		t.Errorf("read back %+v", s.Table)
	}
	contains(t, "sfdisk", tool(t, "", "sfdisk", "--dump", path), "label: dos", "label-id: 0xcafe0123",
		"start= 2048, size= 20480, type=82", "start= 22528, size= 180224, type=83")
	contains(t, "parted", tool(t, "", "parted", "-ms", path, "unit", "s", "print"), ":msdos:", "2:22528s:202751s:180224s")
}

// TestNameInMBR names the single partition of a DOS table and removes the name again. Other tools see a partition of raw
// data, and a table that they write has no name.
func TestNameInMBR(t *testing.T) {
	path := looptest.Image(t, 100*layout.MiB)
	part := layout.Partition{Number: 1, Start: layout.MiB, Size: 98 * layout.MiB, Name: "in the making"}
	if err := Create(ctx, path, layout.MBR, "0000cafe", []layout.Partition{part}); err != nil {
		t.Fatal(err)
	}
	look := func(want, kind string) {
		t.Helper()
		s, err := Inspect(path)
		if err != nil || len(s.Table.Partitions) != 1 || s.Table.GUID != "0000cafe" || s.Table.Partitions[0].Name != want ||
			s.Table.Partitions[0].Type != kind {
			t.Fatalf("on the disk is %+v, %v; want %q with type %s", s.Table, err, want, kind)
		}
	}
	look(part.Name, layout.LinuxMBR)
	if dump := tool(t, "", "sfdisk", "--dump", path); !strings.Contains(dump, "type=da") {
		t.Errorf("others see %s", dump)
	}
	tool(t, "", "sfdisk", "-q", "--no-tell-kernel", "--part-type", path, "1", "83")
	look("", layout.LinuxMBR)
	tool(t, "", "sfdisk", "-q", "--no-tell-kernel", "--part-type", path, "1", "da")
	look(part.Name, layout.LinuxMBR)
	if err := Grow(ctx, path, 1, 100*layout.MiB); err != nil {
		t.Fatal(err)
	}
	look(part.Name, layout.LinuxMBR)
	if err := Rename(ctx, path, 1, ""); err != nil {
		t.Fatal(err)
	}
	look("", layout.LinuxMBR)
	if all, err := os.ReadFile(path); err != nil || !bytes.Equal(all[:440], make([]byte, 440)) {
		t.Errorf("boot code: %q, %v", all[:440], err)
	}
	pokeImage(t, path, 0, []byte("\xeb\x63\x90 boot code"))
	if err := Rename(ctx, path, 1, "x"); err == nil || !strings.Contains(err.Error(), "there is boot code") {
		t.Errorf("Rename = %v, want the boot code kept", err)
	}
	tool(t, "", "sfdisk", "-q", "--no-tell-kernel", "--part-type", path, "1", "da")
	look("", layout.NamedMBR)
	two := []layout.Partition{{Number: 1, Start: layout.MiB, Size: layout.MiB, Name: "x"},
		{Number: 2, Start: 2 * layout.MiB, Size: layout.MiB}}
	if err := Create(ctx, path, layout.MBR, "", two); err == nil || !strings.Contains(err.Error(), "cannot be named") {
		t.Errorf("Create of two = %v, want no name", err)
	}
}

func TestHistoricalLayouts(t *testing.T) {
	for _, c := range []struct {
		name, script string
		label        layout.Label
		start, size  int64
	}{
		{"trusty: DOS from sector 1, short of the end", "label: dos\nstart=1, size=190000, type=83\n", layout.MBR,
			512, 190000 * 512},
		{"DOS from sector 63", "label: dos\nstart=63, size=190000, type=83\n", layout.MBR, 63 * 512, 190000 * 512},
		{"DOS aligned", "label: dos\nstart=2048, type=83\n", layout.MBR, layout.MiB, 99 * layout.MiB},
		{"GPT by sfdisk", "label: gpt\nstart=2048, size=190000\n", layout.GPT, layout.MiB, 190000 * 512},
		{"GPT with a name", "label: gpt\nstart=2048, size=190000, name=\"bosh-partition-0\"\n", layout.GPT,
			layout.MiB, 190000 * 512},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := looptest.Image(t, 100*layout.MiB)
			tool(t, c.script, "sfdisk", "-q", "--no-tell-kernel", path)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			s := observe(t, path)
			if s.Table.Label != c.label || len(s.Table.Partitions) != 1 {
				t.Fatalf("table %+v, want one partition in %s", s.Table, c.label)
			}
			if p := s.Table.Partitions[0]; p.Start != c.start || p.Size != c.size {
				t.Errorf("partition at %d, %d bytes; want %d, %d", p.Start, p.Size, c.start, c.size)
			}
			after, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(before, after) {
				t.Errorf("reading changed the disk (%v)", err)
			}
		})
	}
}

func TestGrowMovesTheBackup(t *testing.T) {
	path := looptest.Image(t, 100*layout.MiB)
	tool(t, "label: gpt\nstart=2048, size=190000, name=\"data\", attrs=\"LegacyBIOSBootable\"\n",
		"sfdisk", "-q", "--no-tell-kernel", path)
	id := observe(t, path).Table.Partitions[0].GUID
	if err := os.Truncate(path, 200*layout.MiB); err != nil {
		t.Fatal(err)
	}
	s := observe(t, path)
	if !s.Table.Moved {
		t.Error("a grown disk was not noticed")
	}
	end := layout.UsableEnd(layout.GPT, 200*layout.MiB, 512) / layout.MiB * layout.MiB
	if err := Grow(ctx, path, 1, end); err != nil {
		t.Fatal(err)
	}
	s = observe(t, path)
	if p := s.Table.Partitions[0]; s.Table.Moved || p.End() != end || p.GUID != id || p.Name != "data" {
		t.Errorf("after growing: %+v", s.Table)
	}
	contains(t, "sgdisk", tool(t, "", "sgdisk", "--verify", path), "No problems found")
	contains(t, "sfdisk", tool(t, "", "sfdisk", "--dump", path), `attrs="LegacyBIOSBootable"`)
	if err := Grow(ctx, path, 1, end-layout.MiB); err == nil {
		t.Error("shrinking was allowed")
	}
	if err := Grow(ctx, path, 2, end); err == nil {
		t.Error("a partition that is not there was grown")
	}
}

// TestGrowKeepsTheFirstSector: the boot code, boot flag and hybrid entries in the first sector are preserved when a
// partition is grown.
func TestGrowKeepsTheFirstSector(t *testing.T) {
	for name, hybrid := range map[string]bool{"boot flag": false, "hybrid": true} {
		t.Run(name, func(t *testing.T) {
			path := looptest.Image(t, 100*layout.MiB)
			tool(t, "label: gpt\nstart=2048, size=190000\n", "sfdisk", "-q", "--no-tell-kernel", path)
			if hybrid {
				tool(t, "", "sgdisk", "--hybrid", "1", path)
			}
			poke(t, path, 0, []byte("boot code")...)
			poke(t, path, 446, 0x80)
			head := func() []byte {
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				return data[:512]
			}
			want := head()
			if err := os.Truncate(path, 200*layout.MiB); err != nil {
				t.Fatal(err)
			}
			if err := Grow(ctx, path, 1, layout.UsableEnd(layout.GPT, 200*layout.MiB, 512)); err != nil {
				t.Fatal(err)
			}
			if !hybrid { // it covers the whole disk
				binary.LittleEndian.PutUint32(want[458:], 200*layout.MiB/512-1)
			}
			if got := head(); !bytes.Equal(got, want) {
				t.Errorf("the first sector is\n%x\nwant\n%x", got, want)
			}
		})
	}
}

func TestAppendAndRename(t *testing.T) {
	path := looptest.Image(t, 100*layout.MiB)
	tool(t, "label: dos\nstart=1, size=20000, type=83, bootable\n", "sfdisk", "-q", "--no-tell-kernel", path)
	if err := Append(ctx, path, []layout.Partition{{Number: 2, Start: 20 * layout.MiB,
		Size: 80 * layout.MiB}}); err != nil {
		t.Fatal(err)
	}
	contains(t, "sfdisk", tool(t, "", "sfdisk", "--dump", path), "start= 1, size= 20000, type=83, bootable",
		"start= 40960, size= 163840, type=83")
	if err := Rename(ctx, path, 1, "x"); err == nil {
		t.Error("a DOS partition got a name")
	}

	path = looptest.Image(t, 100*layout.MiB)
	if err := Create(ctx, path, layout.GPT, "", []layout.Partition{{Number: 1, Start: layout.MiB, Size: layout.MiB,
		Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	if err := Rename(ctx, path, 1, "b"); err != nil {
		t.Fatal(err)
	}
	contains(t, "sgdisk", tool(t, "", "sgdisk", "-i", "1", path), "Partition name: 'b'")
}

func TestWritingRefuses(t *testing.T) {
	over := []layout.Partition{{Number: 1, Start: layout.MiB, Size: 20 * layout.MiB}, {Number: 2,
		Start: 10 * layout.MiB, Size: 20 * layout.MiB}}
	for _, c := range []struct {
		name  string
		size  int64
		label layout.Label
		parts []layout.Partition
		want  string
	}{
		{"overlap", 100 * layout.MiB, layout.GPT, over, "overlap"},
		{"over the backup GPT", 100 * layout.MiB, layout.GPT, []layout.Partition{{Number: 1, Start: layout.MiB,
			Size: 99 * layout.MiB}}, "beyond the last usable byte"},
		{"over the end", 100 * layout.MiB, layout.MBR, []layout.Partition{{Number: 1, Start: layout.MiB,
			Size: 100 * layout.MiB}}, "beyond the last usable byte"},
		{"DOS beyond 2 TiB", 3 << 40, layout.MBR, []layout.Partition{{Number: 1, Start: layout.MiB,
			Size: 3<<40 - 2*layout.MiB}}, "attach a new disk, which gets a GPT"},
		{"five DOS partitions", 100 * layout.MiB, layout.MBR, []layout.Partition{{Number: 5, Start: layout.MiB,
			Size: layout.MiB}}, "a dos table holds at most 4"},
		{"half sectors", 100 * layout.MiB, layout.GPT, []layout.Partition{{Number: 1, Start: layout.MiB,
			Size: 1000}}, "not whole sectors"},
		{"no label", 100 * layout.MiB, "bsd", nil, "not supported"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := looptest.Image(t, c.size)
			err := Create(ctx, path, c.label, "", c.parts)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Create = %v, want %q", err, c.want)
			}
		})
	}
	t.Run("no table", func(t *testing.T) {
		if err := Grow(ctx, looptest.Image(t, layout.MiB), 1, layout.MiB); err == nil ||
			!strings.Contains(err.Error(), "no partition table") {
			t.Errorf("Grow = %v", err)
		}
	})
	t.Run("extended partition", func(t *testing.T) {
		path := looptest.Image(t, 100*layout.MiB)
		tool(t, "label: dos\nsize=20000, type=83\nsize=60000, type=5\nsize=20000, type=83\n",
			"sfdisk", "-q", "--no-tell-kernel", path)
		if err := Append(ctx, path, []layout.Partition{{Number: 4, Start: 90 * layout.MiB,
			Size: layout.MiB}}); err == nil || !strings.Contains(err.Error(), "extended") {
			t.Errorf("Append = %v, want a refusal", err)
		}
	})
}

func TestBeyondTwoTiB(t *testing.T) {
	path := looptest.Image(t, 3<<40)
	if err := Create(ctx, path, layout.GPT, "", []layout.Partition{{Number: 1, Start: layout.MiB,
		Size: 3<<40 - 2*layout.MiB, Name: "big"}}); err != nil {
		t.Fatal(err)
	}
	contains(t, "sgdisk", tool(t, "", "sgdisk", "--verify", path), "No problems found")
	if s := observe(t, path); s.Table.Partitions[0].Size != 3<<40-2*layout.MiB {
		t.Errorf("size %d", s.Table.Partitions[0].Size)
	}
	var sector [512]byte
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(sector[:], 0); err != nil {
		t.Fatal(err)
	}
	if n := binary.LittleEndian.Uint32(sector[458:]); n != 1<<32-1 {
		t.Errorf("the protective MBR covers %d sectors, want all that it can express", n)
	}
}

func poke(t testing.TB, path string, offset int64, b ...byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b, offset); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedTables(t *testing.T) {
	made := func(t *testing.T) string {
		path := looptest.Image(t, 100*layout.MiB)
		if err := Create(ctx, path, layout.GPT, "", []layout.Partition{{Number: 1, Start: layout.MiB,
			Size: 90 * layout.MiB, Name: "data"}}); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Run("first copy broken: the second is used", func(t *testing.T) {
		path := made(t)
		poke(t, path, 512+8, 0xff)
		if s := observe(t, path); s.Table.Lost != layout.FirstCopy || len(s.Table.Partitions) != 1 {
			t.Errorf("table %+v, want the second copy", s.Table)
		}
	})
	t.Run("second copy broken: the first is used", func(t *testing.T) {
		path := made(t)
		poke(t, path, 100*layout.MiB-512+8, 0xff)
		if s := observe(t, path); s.Table.Lost != layout.SecondCopy || len(s.Table.Partitions) != 1 {
			t.Errorf("table %+v, want the first copy", s.Table)
		}
		if err := Repair(ctx, path); err != nil {
			t.Fatal(err)
		}
		if s := observe(t, path); s.Table.Lost != "" {
			t.Errorf("table %+v after repair", s.Table)
		}
		contains(t, "sgdisk", tool(t, "", "sgdisk", "--verify", path), "No problems found")
	})
	t.Run("both broken", func(t *testing.T) {
		path := made(t)
		poke(t, path, 512+8, 0xff)
		poke(t, path, 100*layout.MiB-512+8, 0xff)
		if _, err := Inspect(path); !errors.Is(err, layout.ErrDamaged) {
			t.Errorf("Observe = %v, want ErrDamaged", err)
		}
	})
	t.Run("both wiped, protective MBR left", func(t *testing.T) {
		path := made(t)
		poke(t, path, 512, make([]byte, 8)...)
		poke(t, path, 100*layout.MiB-512, make([]byte, 8)...)
		if _, err := Inspect(path); !errors.Is(err, layout.ErrDamaged) {
			t.Errorf("Observe = %v, want ErrDamaged", err)
		}
	})
	t.Run("second copy alone, as after a crash", func(t *testing.T) {
		path := made(t)
		poke(t, path, 0, make([]byte, 1024)...)
		if s := observe(t, path); s.Table.Lost != layout.ProtectiveEntry || len(s.Table.Partitions) != 1 {
			t.Fatalf("table %+v, want the second copy", s.Table)
		}
		if err := Repair(ctx, path); err != nil {
			t.Fatal(err)
		}
		if s := observe(t, path); s.Table.Lost != "" || len(s.Table.Partitions) != 1 || s.Table.Partitions[0].Name != "data" {
			t.Errorf("table %+v after repair", s.Table)
		}
		contains(t, "sgdisk", tool(t, "", "sgdisk", "--verify", path), "No problems found")
	})
	t.Run("second copy of a table that a file system has replaced", func(t *testing.T) {
		path := made(t)
		poke(t, path, 0, make([]byte, 1<<20)...)
		tool(t, "", "mkfs.ext4", "-qF", path, "50m")
		if s := observe(t, path); s.Table.Label != layout.None || s.Content.Kind != probe.Ext4 {
			t.Errorf("found %+v, want a file system and no table", s)
		}
	})
	t.Run("absurd number of entries", func(t *testing.T) {
		path := made(t)
		poke(t, path, 512+80, 0xff, 0xff, 0xff, 0xff)
		if _, err := Inspect(path); !errors.Is(err, layout.ErrDamaged) {
			t.Errorf("Observe = %v, want ErrDamaged", err)
		}
	})
}

// TestNewPartitionsShowNothingOld: old content must not appear in new partitions, wherever they begin.
func TestNewPartitionsShowNothingOld(t *testing.T) {
	parts := []layout.Partition{{Number: 1, Start: layout.MiB, Size: 30 * layout.MiB}, {Number: 2,
		Start: 31 * layout.MiB, Size: 60 * layout.MiB}}
	content := func(path string, p layout.Partition) probe.Content {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c, err := probe.Identify(section{f, p.Start}, p.Size)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	filled := func() string {
		path := looptest.Image(t, 100*layout.MiB)
		for _, p := range parts {
			tool(t, "", "mkfs.ext4", "-qF", "-E", fmt.Sprintf("offset=%d", p.Start), path, fmt.Sprintf("%dm",
				p.Size/layout.MiB))
			if !content(path, p).Data() {
				t.Fatal("the test's own file system is not there")
			}
		}
		return path
	}
	path := filled()
	if err := Create(ctx, path, layout.GPT, "", parts); err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if c := content(path, p); !c.Blank() {
			t.Errorf("new partition %d shows %s", p.Number, c)
		}
	}
	path = filled()
	tool(t, "label: dos\nstart=2048, size=61440, type=83\n",
		"sfdisk", "-q", "--no-tell-kernel", "--wipe", "never", path)
	if err := Append(ctx, path, parts[1:]); err != nil {
		t.Fatal(err)
	}
	if !content(path, parts[0]).Data() || !content(path, parts[1]).Blank() {
		t.Errorf("first partition %s, appended one %s; want data kept and blank", content(path, parts[0]),
			content(path, parts[1]))
	}
}

type section struct {
	f     *os.File
	start int64
}

func (s section) ReadAt(b []byte, o int64) (int, error) { return s.f.ReadAt(b, s.start+o) }

func FuzzRead(f *testing.F) {
	for _, label := range []layout.Label{layout.GPT, layout.MBR} {
		path := looptest.Image(f, 2*layout.MiB+512*40)
		if err := Create(ctx, path, label, "", []layout.Partition{{Number: 1, Start: layout.MiB,
			Size: 512 * 100, Name: "x"}}); err != nil {
			f.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data[:4096], data[len(data)-4096:])
	}
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, head, tail []byte) {
		const size = 2*layout.MiB + 512*40
		disk := ends{head: head, tail: tail, size: size}
		for _, sector := range []int{512, 4096} {
			table, err := read(disk, size, sector)
			if err == nil {
				for _, p := range table.Partitions {
					if p.Start < 0 || p.Size <= 0 || p.End() > size {
						t.Fatalf("partition %+v is outside the disk", p)
					}
				}
			}
		}
	})
}

// ends is a disk with content at its beginning and end only.
type ends struct {
	head, tail []byte
	size       int64
}

func (e ends) ReadAt(b []byte, o int64) (int, error) {
	clear(b)
	if o < int64(len(e.head)) {
		copy(b, e.head[o:])
	}
	if first := e.size - int64(len(e.tail)); o+int64(len(b)) > first && first >= 0 {
		if o >= first {
			copy(b, e.tail[o-first:])
		} else {
			copy(b[first-o:], e.tail)
		}
	}
	return len(b), nil
}

// TestLockOfAnotherProgram: the wait for a program that holds the lock of a disk is bounded.
func TestLockOfAnotherProgram(t *testing.T) {
	path := looptest.Image(t, layout.MiB)
	other, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	limit := lockLimit
	lockLimit = 20 * time.Millisecond
	defer func() { lockLimit = limit }()
	if err := Repair(ctx, path); err == nil ||
		!strings.Contains(err.Error(), "another program has held its lock for 20ms") {
		t.Errorf("Repair = %v, want an error that names the lock", err)
	}
}
