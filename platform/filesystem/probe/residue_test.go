package probe

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/internal/skiptest"
)

func surveyed(t *testing.T, path string, starts ...int64) Residue {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	r, err := Survey(t.Context(), f, info.Size(), starts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestSurveyFindsBackups: file systems with damage are found, with their offsets.
func TestSurveyFindsBackups(t *testing.T) {
	cleared := func(n int) func(testing.TB, string) { return put(0, strings.Repeat("\x00", n)) }
	for _, c := range []struct {
		name   string
		size   int64
		make   func(testing.TB, string)
		damage func(testing.TB, string)
		want   Superblock
		repair string
	}{
		{"ext4, its magic lost", 64 << 20, run("mkfs.ext4", "-qF", "-b", "1024", "IMAGE"), put(1080, "\x00\x00"),
			Superblock{Kind: Ext4, Backup: 8193 << 10, Block: 1024, Bytes: 64 << 20}, "e2fsck -b 8193 -B 1024 DEV"},
		{"ext4 of 4 KiB blocks, 4 MiB lost", 300 << 20, run("mkfs.ext4", "-qF", "-b", "4096", "IMAGE"),
			cleared(4 << 20), Superblock{Kind: Ext4, Backup: 128 << 20, Block: 4096, Bytes: 300 << 20},
			"e2fsck -b 32768 -B 4096 DEV"},
		{"ext4 of 2 KiB blocks, 4 MiB lost", 64 << 20, run("mkfs.ext4", "-qF", "-b", "2048", "IMAGE"),
			cleared(4 << 20), Superblock{Kind: Ext4, Backup: 32 << 20, Block: 2048, Bytes: 64 << 20},
			"e2fsck -b 16384 -B 2048 DEV"},
		{"xfs, 4 MiB lost", 300 << 20, run("mkfs.xfs", "-q", "IMAGE"), cleared(4 << 20), Superblock{Kind: XFS,
			Backup: 75 << 20, Bytes: 300 << 20}, "xfs_repair DEV"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := looptest.Image(t, c.size)
			c.make(t, path)
			whole, err := ofFile(path)
			if err != nil {
				t.Fatal(err)
			}
			c.want.UUID = whole.UUID
			c.damage(t, path)
			if found, err := ofFile(path); err != nil || !found.Blank() {
				t.Fatalf("Probe = %s, %v; want the damage to hide it", found, err)
			}
			r := surveyed(t, path)
			if len(r.Found) != 1 || r.Found[0] != c.want || r.Noise || r.IsEmpty() {
				t.Fatalf("%+v, want %+v", r, c.want)
			}
			device, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			found, err := SearchSuperblocks(t.Context(), bytes.NewReader(device), c.size, nil)
			if err != nil || len(found) != 1 || found[0] != c.want {
				t.Errorf("superblocks %+v, %v; want %+v", found, err, c.want)
			}
			if got := r.Found[0].RepairCommand("DEV", false); got != c.repair {
				t.Errorf("repair %q, want %q", got, c.repair)
			}
		})
	}
}

// extImage returns the head of a new ext4.
func extImage(t *testing.T) string {
	t.Helper()
	path := looptest.Image(t, 16<<20)
	run("mkfs.ext4", "-qF", "IMAGE")(t, path)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data[:64<<10])
}

func TestSurveyJudgesBytes(t *testing.T) {
	const size = 8 << 20
	noise := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(noise)
	for _, c := range []struct {
		name    string
		content string
		change  func(testing.TB, string)
		nonZero int64
		noise   bool
		found   Kind
	}{
		{"zeros", "", func(testing.TB, string) {}, -1, false, ""},
		{"a byte in the head", "", put(70000, "x"), 70000, false, ""},
		{"a byte in the tail", "", put(size-1, "x"), size - 1, false, ""},
		{"a byte between them", "", put(3<<20, "x"), 3 << 20, false, ""},
		{"ext4 at sector 63", "", put(63*512, extImage(t)), 63*512 + 1025, false, Ext4},
		{"noise", string(noise), func(testing.TB, string) {}, 0, true, ""},
		{"noise with an accident", string(noise), put(1080, "\x53\xef"), 0, true, ""},
		{"noise and zeros", string(noise[:size/2]), func(testing.TB, string) {}, 0, true, ""},
		{"noise with a signature", string(noise), put(0, "LUKS\xba\xbe"), 0, false, LUKS},
		{"noise with text", string(noise), put(4096, strings.Repeat("text", 100)), 0, false, ""},
		{"text", strings.Repeat("text", size/4), func(testing.TB, string) {}, 0, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := looptest.Image(t, size)
			put(0, c.content)(t, path)
			c.change(t, path)
			r := surveyed(t, path)
			found := Kind("")
			if len(r.Found) > 0 {
				found = r.Found[0].Kind
			}
			if r.NonZero != c.nonZero && c.nonZero != 0 || r.Noise != c.noise || found != c.found {
				t.Errorf("%+v; want byte %d, noise %v, %q", r, c.nonZero, c.noise, c.found)
			}
		})
	}
}

// countedReader is a device of zeros that counts reads. Each read takes latency, and reads after the first hang never
// return.
type countedReader struct {
	reads   atomic.Int64
	latency time.Duration
	hang    int64
	text    int64 // from there on, up to its tail, it holds text
	size    int64
	// reading counts the bytes being read at the moment, and most is its maximum.
	reading, most atomic.Int64
}

func (c *countedReader) ReadAt(b []byte, offset int64) (int, error) {
	c.reads.Add(1)
	now := c.reading.Add(int64(len(b)))
	defer c.reading.Add(-int64(len(b)))
	for most := c.most.Load(); now > most && !c.most.CompareAndSwap(most, now); most = c.most.Load() {
	}
	time.Sleep(c.latency)
	if c.hang > 0 && offset >= c.hang && offset < c.size-surveyedTail {
		time.Sleep(24 * time.Hour)
	}
	clear(b)
	quarter := offset > c.size/4-8*mib && offset < c.size/4+8*mib
	if c.text > 0 && offset >= c.text && offset < c.size-surveyedTail && !quarter {
		for i := range b {
			b[i] = 'x'
		}
	}
	return len(b), nil
}

// TestSurveyIsBounded: some thousand reads suffice for a device of any size, and all of them are made.
func TestSurveyIsBounded(t *testing.T) {
	for _, size := range []int64{4 << 10, 1 << 20, 8 << 20, 10<<20 + 4096, 1 << 30, 10 << 30, 3 << 40, 64 << 40} {
		r := &countedReader{size: size}
		got, err := Survey(t.Context(), r, size, nil)
		if n := r.reads.Load(); err != nil || !got.IsEmpty() || n > 2200 {
			t.Errorf("%d bytes: %+v, %v after %d reads; want zeros after at most 2200", size, got, err, n)
		}
		r.reads.Store(0)
		found, err := SearchSuperblocks(t.Context(), r, size, nil)
		if n := r.reads.Load(); err != nil || len(found) > 0 || n > 1200 {
			t.Errorf("%d bytes: superblocks %+v, %v after %d reads; want none after at most 1200", size, found, err, n)
		}
	}
}

// TestSurveyNeedsAMegabyte: the buffers of all readers of a slow device add up to at most one MiB.
func TestSurveyNeedsAMegabyte(t *testing.T) {
	const size = 10 << 30
	r := &countedReader{size: size, latency: time.Millisecond}
	if _, err := Survey(t.Context(), r, size, nil); err != nil {
		t.Fatal(err)
	}
	if most := r.most.Load(); most > 1<<20 || most < 512<<10 {
		t.Errorf("%d bytes were read at the same time, want 0.5 to 1 MiB", most)
	}
}

// TestSurveyDoesNotDependOnSpeed: the result does not depend on the speed of a device: data that was not read never
// counts as zeros.
func TestSurveyDoesNotDependOnSpeed(t *testing.T) {
	const size = 100 << 30
	for _, latency := range []time.Duration{0, 10 * time.Millisecond, 70 * time.Millisecond, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			r := &countedReader{size: size, latency: latency, text: scanned + 64*mib}
			begin := time.Now()
			got, err := Survey(t.Context(), r, size, nil)
			if err != nil || got.IsEmpty() {
				t.Errorf("%v for a read: %+v, %v: a disk of text counts as blank", latency, got, err)
			}
			if took := time.Since(begin); latency == 10*time.Millisecond && took > 3*time.Second {
				t.Errorf("%v for a read: the survey took %v", latency, took)
			}
		})
	}
}

// TestSurveyOfAHangingDevice: a survey that does not finish in time reports how far it got.
func TestSurveyOfAHangingDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		got, err := Survey(ctx, &countedReader{size: 3 << 30, hang: 2 << 30}, 3<<30, nil)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "looked at 1") {
			t.Errorf("%+v, %v; want the deadline, and how far it came", got, err)
		}
		if took := time.Since(begin); took != time.Minute {
			t.Errorf("returned after %v, want the deadline", took)
		}
		time.Sleep(25 * time.Hour) // reads that were left behind end
	})
}

// TestSurveyIsNotReadAhead: with a file as the device, the kernel does not read much more than was requested.
func TestSurveyIsNotReadAhead(t *testing.T) {
	const size, most = 1 << 30, 128 << 20
	f, err := os.Open(looptest.Image(t, size))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := Survey(t.Context(), f, size, nil); err != nil {
		t.Fatal(err)
	}
	var cached unix.Cachestat_t
	if err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Len: size}, &cached, 0); err != nil {
		skiptest.Skip(t, err) // before Linux 6.5
	}
	if got := cached.Cache * uint64(os.Getpagesize()); got > most {
		t.Errorf("%d MiB were read, want at most %d", got>>20, most>>20)
	}
}

// TestSurveySamples: a byte where nothing is read is overlooked; one byte in each hundred MiB of data is always found.
func TestSurveySamples(t *testing.T) {
	const size = 3 << 30
	path := looptest.Image(t, size)
	put(2<<30, strings.Repeat("x", 8<<20))(t, path)
	synctest.Test(t, func(t *testing.T) {
		first := surveyed(t, path)
		if first.NonZero < 2<<30 || first.NonZero >= 2<<30+8<<20 || first.Noise {
			t.Errorf("%+v, want the data at 2 GiB", first)
		}
		if again := surveyed(t, path); again.NonZero != first.NonZero {
			t.Errorf("data at byte %d, then at %d", first.NonZero, again.NonZero)
		}
	})
}

func TestTrailer(t *testing.T) {
	for want, magic := range map[Kind]func(testing.TB, string){
		MD: put(-8192, "\xfc\x4e\x2b\xa9"), DRBD: put(-4096+60, "\x83\x74\x02\x6d"), RAID: put(-1024,
			"Intel Raid ISM Cfg Sig. "), "": put(4096, "\xfc\x4e\x2b\xa9"),
	} {
		path := looptest.Image(t, imageSize)
		magic(t, path)
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Trailer(f, imageSize); err != nil || got != want {
			t.Errorf("Trailer = %q, %v; want %q", got, err, want)
		}
		_ = f.Close()
	}
}
