//go:build root

package storage

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"cambium/internal/looptest"
	"cambium/internal/managedfs"
	"cambium/platform/disk"
	"cambium/storage/decide"
)

// poke writes bytes to a device, like an accident or another program. A negative offset counts from the end.
func poke(t testing.TB, path string, offset int64, data []byte) {
	t.Helper()
	if err := looptest.Guard(path); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if offset < 0 {
		end, err := f.Seek(0, 2)
		if err != nil {
			t.Fatal(err)
		}
		offset += end
	}
	if _, err := f.WriteAt(data, offset); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// filled creates a file system with a file on a partition.
func filled(t testing.TB, part, kind string) {
	t.Helper()
	mkfs(t, part, kind)
	filledBy(t, part, kind, func(dir string) { write(t, filepath.Join(dir, "data"), "precious") })
}

// commands returns the commands in an error's advice, which are between single quotes.
func commands(err error) (all []string) {
	for _, found := range regexp.MustCompile(`'([^']+)'`).FindAllStringSubmatch(err.Error(), -1) {
		all = append(all, found[1])
	}
	return all
}

// writes matches the beginnings of advised commands that write. Each has a test of its own.
var writes = regexp.MustCompile(`^(agent disk format|e2fsck -[bf]|xfs_repair /)`)

// lookAround runs the commands in an error's advice that only read, and checks that no byte of the disk changes. It
// returns the commands that write.
func lookAround(t testing.TB, dev *looptest.Device, err error) (writing []string) {
	t.Helper()
	if err := looptest.Guard(dev.Path); err != nil {
		t.Fatal(err)
	}
	before := checksum(t, dev)
	for _, command := range commands(err) {
		if writes.MatchString(command) {
			writing = append(writing, command)
			continue
		}
		dir := t.TempDir()
		shown := strings.Replace(command, " /mnt", " "+dir, 1)
		// What a check finds is told by its exit code.
		out, err := exec.Command("sh", "-c", shown).CombinedOutput()
		if mounts := shown != command; mounts {
			if err != nil {
				t.Errorf("%s: %v: %s", command, err, out)
				continue
			}
			if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
				t.Fatalf("umount: %v: %s", err, out)
			}
		}
		if strings.Contains(string(out), "not found") || strings.Contains(string(out), "sage:") {
			t.Errorf("%s: %s", command, out)
		}
	}
	if checksum(t, dev) != before {
		t.Errorf("%v: the advice changed the disk", err)
	}
	return writing
}

// TestRootDamagedSuperblockIsRefused: mount_disk and a boot refuse a file system whose first superblock is damaged,
// with the command that repairs it.
func TestRootDamagedSuperblockIsRefused(t *testing.T) {
	for _, c := range []struct {
		name, kind string
		size       int64
		damage     func(t *testing.T, part string)
	}{
		{"ext4, two bytes", "ext4", 128 << 20, func(t *testing.T, part string) { poke(t, part, 1080, make([]byte, 2)) }},
		{"ext4 of 4 KiB blocks, two bytes", "ext4", 600 << 20, func(t *testing.T, part string) {
			poke(t, part, 1080, make([]byte, 2))
		}},
		{"xfs, two bytes", "xfs", 400 << 20, func(t *testing.T, part string) { poke(t, part, 0, make([]byte, 2)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(c.size, "vol-1")
			part := partitioned(t, dev, "label: gpt\nstart=2048, name=\"bosh-partition-0\"\n")
			filled(t, part, c.kind)
			c.damage(t, part)
			refused(t, b, dev, "partition 1 has no file system")
			before := checksum(t, dev)
			b.records.mounted = "vol-1"
			if err := boot(b.disks()); err == nil {
				t.Error("boot takes the disk for blank")
			}
			if checksum(t, dev) != before {
				t.Fatal("boot changed the disk")
			}
			err := b.Mount(ctx, "vol-1")
			b.fails(err, "take a snapshot of the disk first")
			repairs := lookAround(t, dev, err)[0]
			// Without -y, e2fsck asks; it says with 1 that it has corrected errors.
			repairs = strings.Replace(repairs, "e2fsck ", "e2fsck -y ", 1)
			if out, err := exec.Command("sh", "-c", repairs+"; test $? -le 1").CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", repairs, err, out)
			}
			b.ok(b.Mount(ctx, "vol-1"))
			if got := read(t, filepath.Join(b.Dirs.Store(), "data")); got != "precious" {
				t.Errorf("data is %q after %s", got, repairs)
			}
		})
	}
}

// TestRootLostTableIsNoBlankDisk: the file system of a disk whose table is lost is found where partitions begin, and
// the advised commands show its files.
func TestRootLostTableIsNoBlankDisk(t *testing.T) {
	const size = 64 << 20
	head := func(t *testing.T, dev *looptest.Device) { poke(t, dev.Path, 0, make([]byte, 34*512)) }
	for _, c := range []struct {
		name, script string
		damage       func(t *testing.T, dev *looptest.Device)
		begins       string
	}{
		{"DOS at sector 63", "label: dos\nstart=63\n", func(t *testing.T, dev *looptest.Device) {
			poke(t, dev.Path, 0, make([]byte, 512))
		}, "ext4 begins at byte 32256"},
		{"GPT, grown, then the head", "label: gpt\nstart=2048\n", func(t *testing.T, dev *looptest.Device) {
			dev.Grow(t, 2*size)
			head(t, dev)
		}, "ext4 begins at byte 1048576"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(size, "vol-1")
			filled(t, partitioned(t, dev, c.script), "ext4")
			c.damage(t, dev)
			b.ok(disk.Announce(ctx, dev.Path)) // as after a reboot, the kernel has no partitions either
			refused(t, b, dev, c.begins)
			err := b.Mount(ctx, "vol-1")
			lookAround(t, dev, err)
			dir := t.TempDir()
			tool(t, dev.Path, "sh", "-c", strings.Replace(commands(err)[0], "/mnt", dir, 1))
			if got := read(t, filepath.Join(dir, "data")); got != "precious" {
				t.Errorf("data is %q", got)
			}
			tool(t, dev.Path, "umount", dir)
		})
	}
}

// TestRootFileSystemBeginsAfterItsPartition: the refusal contains the offset of a file system that begins after the
// start of its partition, and the advice does not move it.
func TestRootFileSystemBeginsAfterItsPartition(t *testing.T) {
	b := newBench(t, Options{})
	dev := b.disk(64<<20, "vol-1")
	filled(t, partitioned(t, dev, "label: gpt\nstart=4096\n"), "ext4")
	partitioned(t, dev, "label: gpt\nstart=2048, name=\"bosh-partition-0\"\n")
	refused(t, b, dev, "partition 1 has no file system, but ext4 begins at byte 2097152")
	if writing := lookAround(t, dev, b.Mount(ctx, "vol-1")); len(writing) != 1 {
		t.Errorf("commands that write: %q, want 'agent disk format' alone", writing)
	}
}

// TestRootNoise: the settings can declare that new volumes contain noise; the refusal names the setting.
func TestRootNoise(t *testing.T) {
	noise := make([]byte, 16<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	b := newBench(t, Options{})
	dev := b.disk(int64(len(noise)), "vol-1")
	poke(t, dev.Path, 0, noise)
	refused(t, b, dev, "env.persistent_disk_blank: noise", "Platform.Linux.BlankDisks")
	b.Persistent.Blank = func() string { return "noise" }
	b.ok(b.Mount(ctx, "vol-1"))
	b.unmounted("vol-1", "Unmounted partition of vol-1")
	b.Persistent.Blank = func() string { return "" }
	b.ok(b.Mount(ctx, "vol-1"))
}

// TestRootNothingIsDiscarded: creating a file system overwrites what it needs but discards nothing, so that data put
// there by mistake can be recovered.
func TestRootNothingIsDiscarded(t *testing.T) {
	const size, every = 400 << 20, 4 << 20
	mark := []byte("not needed by a new file system")
	for _, kind := range managedfs.Names() {
		t.Run(kind, func(t *testing.T) {
			b := newBench(t, Options{})
			dev := b.disk(size, "vol-1")
			p := b.records.disks["vol-1"]
			p.FileSystem = kind
			b.records.disks["vol-1"] = p
			// What was proven to be nothing has been wiped, and its preparation was interrupted.
			part := partitioned(t, dev, "label: gpt\nstart=2048, name=\""+decide.PreparingName+"\"\n")
			for at := int64(6 << 20); at < size-6<<20; at += every {
				poke(t, part, at+12345, mark)
			}
			b.ok(b.Mount(ctx, "vol-1"))
			b.unmounted("vol-1", "Unmounted partition of vol-1")
			if !strings.Contains(tool(t, part, "blkid", "-p", part), `TYPE="`+kind+`"`) {
				t.Fatalf("no %s was made", kind)
			}
			f, err := os.Open(part)
			b.ok(err)
			defer f.Close()
			kept, all := 0, 0
			for at := int64(6 << 20); at < size-6<<20; at += every {
				got := make([]byte, len(mark))
				_, err := f.ReadAt(got, at+12345)
				b.ok(err)
				all++
				if string(got) == string(mark) {
					kept++
				}
			}
			// Some marks lie where the new file system writes its metadata.
			if kept < all*3/4 {
				t.Errorf("%d of %d marks are left", kept, all)
			}
		})
	}
}
