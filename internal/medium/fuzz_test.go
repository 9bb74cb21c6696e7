package medium

import (
	"bytes"
	"context"
	"io"
	"runtime"
	"testing"
	"time"
)

// changed is an image with other bytes in two places; cloning a large image for each try would
// be most of the work.
type changed struct {
	image []byte
	at    [2]int
	with  [2][]byte
}

func (c changed) ReadAt(p []byte, off int64) (int, error) {
	n, err := bytes.NewReader(c.image).ReadAt(p, off)
	for i, with := range c.with {
		if from := c.at[i] - int(off); from < n && from+len(with) > 0 {
			copy(p[max(from, 0):n], with[max(-from, 0):])
		}
	}
	return n, err
}

// exercise reads whatever can be read and checks the bounds that hold for any image.
func exercise(t *testing.T, image io.ReaderAt, size int) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	v, err := Open(ctx, image, int64(size))
	if err == nil {
		for _, name := range []string{"env", "ec2/latest/user-data", "ec2/latest/meta-data.json", "nothing"} {
			content, err := v.ReadFile(name, 64<<10)
			if err == nil && len(content) > 64<<10 {
				t.Fatalf("%s: %d bytes, over the limit", name, len(content))
			}
		}
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 512<<20 {
		t.Fatalf("allocated %d MiB for an image of %d KiB", used>>20, size>>10)
	}
	if took := time.Since(start); took > 8*time.Second {
		t.Fatalf("took %v", took)
	}
}

// smallDrive keeps the images small, so that the fuzzer has less to look at.
var smallDrive = map[string]string{"env": `{"agent_id":"x"}`, "ec2/latest/user-data": `{}`,
	"ec2/latest/meta-data.json": `{}`}

// condensed is an ISO image of which only the beginning of each sector is kept, and nothing of the system area: the
// fuzzer spends its time on bytes that mean something, and minimizes kilobytes.
type condensed []byte

const kept = 512 // bytes of each sector

func condense(image []byte) (c condensed) {
	for at := isoDescriptors; at < len(image); at += isoSector {
		c = append(c, image[at:min(at+kept, len(image))]...)
	}
	return c
}

func (c condensed) size() int { return isoDescriptors + (len(c)+kept-1)/kept*isoSector }

func (c condensed) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= int64(c.size()) {
		return 0, io.EOF
	}
	n := min(len(p), c.size()-int(off))
	clear(p[:n])
	for i := 0; i < n; {
		at := int(off) + i
		within := at % isoSector
		if from := (at-isoDescriptors)/isoSector*kept + within; at >= isoDescriptors && within < kept && from < len(c) {
			copy(p[i:min(n, i+kept-within)], c[from:])
		}
		i += isoSector - within
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func FuzzISO(f *testing.F) {
	for _, options := range [][]string{{"-r", "-J"}, {"-J"}, {"-r"}, {}} {
		c := condense(makeISO(f, smallDrive, append(options, "-no-pad")...))
		v, err := Open(f.Context(), c, int64(c.size()))
		if err != nil {
			f.Fatalf("a seed is not an image: %v", err)
		}
		if len(options) > 0 {
			if text, err := v.ReadFile("env", 1<<10); err != nil || string(text) != smallDrive["env"] {
				f.Fatalf("a seed cannot be read: %q, %v", text, err)
			}
		}
		f.Add([]byte(c))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := condensed(data)
		exercise(t, c, c.size())
	})
}

// FuzzISODirectory mutates what the walk reads: the fuzzer gives bytes and where to put them.
func FuzzISODirectory(f *testing.F) {
	image := makeISO(f, smallDrive, "-no-pad", "-r", "-J")
	f.Add(uint32(isoDescriptors), []byte{1})
	f.Add(uint32(isoDescriptors+156), []byte{34, 0, 255, 255, 255, 255})
	f.Add(uint32(len(image)-4096), []byte{0, 0})
	f.Fuzz(func(t *testing.T, at uint32, with []byte) {
		exercise(t, changed{image: image, at: [2]int{isoDescriptors + int(at)%(len(image)-isoDescriptors)},
			with: [2][]byte{with}}, len(image))
	})
}

func FuzzFAT(f *testing.F) {
	images := [][]byte{makeFAT(f, 12, 64, "CONFIG-2", smallDrive), makeFAT(f, 16, 9<<10, "CONFIG-2", smallDrive),
		makeFAT(f, 32, 34<<10, "CONFIG-2", smallDrive)}
	f.Add(uint8(0), uint32(11), []byte{0, 2}, uint32(512), []byte{0xf8})
	f.Add(uint8(1), uint32(13), []byte{128}, uint32(2048), []byte{4, 0, 4, 0})
	f.Add(uint8(255), uint32(36), []byte{255, 255, 255}, uint32(16384), []byte{2, 0, 0, 0})
	f.Fuzz(func(t *testing.T, which uint8, at uint32, with []byte, at2 uint32, with2 []byte) {
		// A FAT32 has at least 65,525 clusters, and its table is read whole: few tries go there.
		image := images[which%2]
		if which >= 250 {
			image = images[2]
		}
		exercise(t, changed{image: image, at: [2]int{int(at) % 512, int(at2) % len(image)}, with: [2][]byte{with, with2}},
			len(image))
	})
}
