//go:build root || nightly

package storage

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/internal/managedfs"
)

// layer is what is not zero on a disk or volume, in runs of sectors. Disks of the matrix are large and nearly empty: so they are kept
// in memory, put together and compared.
type layer []sectors

type sectors struct {
	at   int64
	data []byte
}

const sectorSize = 512

var zeroSector [sectorSize]byte

// add appends the sectors of data that are not zero.
func (l layer) add(at int64, data []byte) layer {
	for o := 0; o < len(data); o += sectorSize {
		s := data[o:min(o+sectorSize, len(data))]
		if bytes.Equal(s, zeroSector[:len(s)]) {
			continue
		}
		if n := len(l); n > 0 && l[n-1].at+int64(len(l[n-1].data)) == at+int64(o) {
			l[n-1].data = append(l[n-1].data, s...)
		} else {
			l = append(l, sectors{at + int64(o), slices.Clone(s)})
		}
	}
	return l
}

// without is the layer with zeros from a byte on to another.
func (l layer) without(from, to int64) (rest layer) {
	for _, s := range l {
		data := slices.Clone(s.data)
		if a, b := max(from-s.at, 0), min(to-s.at, int64(len(data))); a < b {
			clear(data[a:b])
		}
		rest = rest.add(s.at, data)
	}
	return rest
}

// moved is the layer as it is on a disk where it begins at offset.
func (l layer) moved(offset int64) (on layer) {
	for _, s := range l {
		on = append(on, sectors{s.at + offset, s.data})
	}
	return on
}

// equal compares two layers, in whatever order and runs their sectors are.
func (l layer) equal(other layer) bool {
	normal := func(l layer) (n layer) {
		for _, s := range slices.SortedFunc(slices.Values(l), func(a, b sectors) int { return cmp.Compare(a.at, b.at) }) {
			n = n.add(s.at, s.data)
		}
		return n
	}
	return slices.EqualFunc(normal(l), normal(other), func(a, b sectors) bool { return a.at == b.at && bytes.Equal(a.data, b.data) })
}

// contains says whether the sectors of another layer are in this one.
func (l layer) contains(other layer) bool {
	rest := l
	for _, s := range other {
		rest = rest.without(s.at, s.at+int64(len(s.data)))
	}
	return slices.Concat(rest, other).equal(l)
}

// write makes an image of the layer.
func (l layer) write(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = f.Truncate(size)
	for _, s := range l {
		_, writeErr := f.WriteAt(s.data, s.at)
		err = errors.Join(err, writeErr)
	}
	return errors.Join(err, f.Close())
}

// readLayer reads a sparse image.
func readLayer(path string) (l layer, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	buffer := make([]byte, 1<<20)
	for at := int64(0); ; {
		from, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return l, nil
		}
		if err != nil {
			return nil, err
		}
		if at, err = f.Seek(from, unix.SEEK_HOLE); err != nil {
			return nil, err
		}
		for ; from < at; from += int64(len(buffer)) {
			n, err := f.ReadAt(buffer[:min(at-from, int64(len(buffer)))], from)
			if err != nil && !errors.Is(err, io.EOF) {
				return nil, err
			}
			l = l.add(from, buffer[:n])
		}
	}
}

// oracle is what other programs say about the parts that disks of the matrix are made of. Each part is judged once.
type oracle struct {
	t       testing.TB
	scratch string
	volumes map[[2]int]judgedVolume // by content and damage
	tables  map[*matrixTable]judgedTable

	sync.Mutex
	confirmed map[[3]int]error // by content, table and damage
}

// judgedVolume is a volume in the eyes of blkid, wipefs, e2fsck and xfs_repair.
type judgedVolume struct {
	layer layer
	// found is what it holds, empty for zeros.
	found string
	// sound says that it is an ext4 or xfs without errors, and nothing else.
	sound bool
}

// judgedTable is a partition table in the eyes of sfdisk.
type judgedTable struct {
	layer layer
	// id is that of the table, empty where it has none.
	id         string
	partitions int
	// one says that the first partition is the only one, and that the volume is in it; name is that of the partition.
	one  bool
	name string
}

func newOracle(t testing.TB) *oracle {
	t.Helper()
	o := &oracle{t: t, scratch: filepath.Join(t.TempDir(), "scratch.img"), volumes: map[[2]int]judgedVolume{}, tables: map[*matrixTable]judgedTable{}, confirmed: map[[3]int]error{}}
	for i, content := range matrixContents {
		disk := o.made(content)
		for d, damage := range matrixDamages {
			l := disk
			switch {
			case damage.to > 0 && content.make == nil:
				continue
			case damage.magic:
				l = disk.without(content.magic+damage.from, content.magic+damage.to)
			case damage.to > 0:
				l = disk.without(damage.from, damage.to)
			case d > 0:
				o.volumes[[2]int{i, d}] = o.volumes[[2]int{i, 0}]
				continue
			}
			o.volumes[[2]int{i, d}] = o.judgeVolume(l)
		}
	}
	for _, table := range matrixTables {
		o.tables[table] = o.judgeTable(table)
	}
	return o
}

// made is a content as its own tool makes it.
func (o *oracle) made(content *matrixContent) layer {
	o.t.Helper()
	if err := (layer{}).write(o.scratch, matrixVolume); err != nil {
		o.t.Fatal(err)
	}
	if content.make != nil {
		content.make(o.t, o.scratch)
	}
	if content.tail > 0 {
		signature(matrixVolume-content.tail, content.signed)(o.t, o.scratch)
	}
	return o.read()
}

func (o *oracle) read() layer {
	o.t.Helper()
	l, err := readLayer(o.scratch)
	if err != nil {
		o.t.Fatal(err)
	}
	return l
}

func (o *oracle) judgeVolume(l layer) (v judgedVolume) {
	o.t.Helper()
	if err := l.write(o.scratch, matrixVolume); err != nil {
		o.t.Fatal(err)
	}
	v.layer = l
	if len(l) == 0 {
		return v
	}
	v.found = fmt.Sprintf("it holds data at byte %d", l[0].at)
	found, err := o.signatures()
	if err != nil {
		o.t.Fatal(err)
	}
	if found == "" {
		return v
	}
	v.found = "it holds " + found
	if f, managed := managedfs.Find(found); managed {
		v.sound = exec.Command(f.Check[0], append(slices.Clone(f.Check[1:]), o.scratch)...).Run() == nil
	}
	return v
}

// signatures is what blkid and wipefs find on the scratch image, without partition tables.
func (o *oracle) signatures() (string, error) {
	out, err := exec.Command("blkid", "-p", "-o", "value", "-s", "TYPE", o.scratch).Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 2 && exit.ExitCode() != 8) {
		return "", fmt.Errorf("blkid: %w", err)
	}
	kinds := strings.Fields(string(out))
	if exit != nil && exit.ExitCode() == 8 {
		kinds = append(kinds, "several things, according to blkid")
	}
	if out, err = exec.Command("wipefs", "-n", "--noheadings", "-O", "TYPE", o.scratch).Output(); err != nil {
		return "", fmt.Errorf("wipefs: %w", err)
	}
	for _, kind := range strings.Fields(string(out)) {
		if !slices.Contains([]string{"gpt", "dos", "PMBR"}, kind) && !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	return strings.Join(kinds, " and "), nil
}

func (o *oracle) judgeTable(table *matrixTable) (j judgedTable) {
	o.t.Helper()
	if err := (layer{}).write(o.scratch, table.size()); err != nil {
		o.t.Fatal(err)
	}
	if table.script == "" {
		return j
	}
	if table.older {
		made("mkfs.ext4", "-qF")(o.t, o.scratch)
		if err := o.read().without(1<<20, table.size()).write(o.scratch, table.size()); err != nil {
			o.t.Fatal(err)
		}
	}
	cmd := exec.Command("sfdisk", "-q", "--wipe", "never", "--wipe-partitions", "never", o.scratch)
	cmd.Stdin = strings.NewReader(table.script)
	if out, err := cmd.CombinedOutput(); err != nil {
		o.t.Fatalf("%s: sfdisk: %v: %s", table.name, err, out)
	}
	j.layer = o.read()
	for i := 0; i < len(table.lost); i += 2 {
		from := table.lost[i]
		if from < 0 {
			from += table.size()
		}
		j.layer = j.layer.without(from, from+table.lost[i+1])
	}
	if err := j.layer.write(o.scratch, table.size()); err != nil {
		o.t.Fatal(err)
	}
	out, err := exec.Command("sfdisk", "--json", o.scratch).Output()
	if err != nil {
		return j // there is none
	}
	var read struct {
		Table struct {
			ID         string `json:"id"`
			Partitions []struct {
				Node  string `json:"node"`
				Start int64  `json:"start"`
				Name  string `json:"name"`
			} `json:"partitions"`
		} `json:"partitiontable"`
	}
	if err := json.Unmarshal(out, &read); err != nil {
		o.t.Fatal(err)
	}
	if id := strings.TrimPrefix(read.Table.ID, "0x"); strings.Trim(id, "0") != "" {
		j.id = id
	}
	if j.partitions = len(read.Table.Partitions); j.partitions == 1 {
		p := read.Table.Partitions[0]
		number, err := strconv.Atoi(strings.TrimPrefix(strings.TrimPrefix(p.Node, o.scratch), "p"))
		if err != nil {
			o.t.Fatal(err)
		}
		j.one, j.name = number == 1 && p.Start == table.start, p.Name
	}
	return j
}

// disk puts a cell's disk together.
func (o *oracle) disk(c matrixCell) layer {
	content, table := c.content(), c.table()
	judged, start := o.tables[table], table.start*sectorSize
	volume := o.volumes[[2]int{c[0], c[2]}].layer.moved(start)
	if content.tail > 0 {
		// After its partition, or where a partition would have ended.
		end := start + matrixVolume
		if table.script != "" && judged.partitions == 0 {
			end = table.size() - 1<<20
		}
		volume = volume.moved(end - start - matrixVolume)
	}
	return slices.Concat(judged.layer, volume)
}

// judge says what forbids to format a disk, why it has to be mounted or finished, and whether it has to be formatted.
func (o *oracle) judge(c matrixCell) (held, ours string, blank bool) {
	content, table, volume := c.content(), o.tables[c.table()], o.volumes[[2]int{c[0], c[2]}]
	nothing := content.name == "zeros"
	neverUsed := nothing || strings.HasPrefix(content.name, "new ")
	if table.one && neverUsed && c.prepared() {
		ours = "its preparation is unfinished"
	} else {
		held = volume.found
		blank = nothing && !c.table().preformatted && (table.partitions == 0 || table.one && strings.HasPrefix(table.name, "bosh-partition"))
	}
	if volume.sound && (table.one || c.table().preformatted) {
		ours = volume.found
	}
	return held, ours, blank
}

// compare says what the outcome for a disk is, and why it is wrong if it is.
func (o *oracle) compare(c matrixCell, formatted bool, refusal error) (outcome, error) {
	held, ours, blank := o.judge(c)
	switch {
	case formatted && held != "":
		return heldAnything, fmt.Errorf("formatted, but %s", held)
	case formatted && refusal != nil:
		return broken, refusal
	case formatted:
		return prepares, o.confirmNothing(c)
	case refusal == nil && ours == "" && !c.table().preformatted:
		return neither, errors.New("mounted, and not ours")
	case refusal == nil:
		return mounts, nil
	case ours != "" || blank:
		return blankOrOurs, fmt.Errorf("refused, but it is blank (%v) or ours (%s): %w", blank, ours, refusal)
	}
	return refuses, nil
}

// confirmNothing has blkid and wipefs look at a disk that was formatted, as it was before.
func (o *oracle) confirmNothing(c matrixCell) error {
	if _, ours, _ := o.judge(c); ours != "" {
		return nil // its preparation was begun
	}
	o.Lock()
	defer o.Unlock()
	key := [3]int{c[0], c[1], c[2]}
	if err, known := o.confirmed[key]; known {
		return err
	}
	err := o.disk(c).write(o.scratch, c.size())
	var found string
	if err == nil {
		found, err = o.signatures()
	}
	if found != "" {
		err = fmt.Errorf("formatted, but the disk held %s", found)
	}
	o.confirmed[key] = err
	return err
}

// signature makes a volume with some bytes at one place.
func signature(offset int64, magic string) func(testing.TB, string) {
	return func(t testing.TB, path string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt([]byte(magic), offset)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// made makes a volume with a program.
func made(name string, args ...string) func(testing.TB, string) {
	return func(t testing.TB, path string) {
		t.Helper()
		cmd := exec.Command(name, append(slices.Clone(args), path)...)
		cmd.Stdin = strings.NewReader("secret")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
	}
}

// withFile makes a file system with the file in it.
func withFile(kind string, args ...string) func(testing.TB, string) {
	return func(t testing.TB, path string) {
		t.Helper()
		dev := looptest.Attach(t, path)
		mkfs(t, dev.Path, kind, args...)
		filledBy(t, dev.Path, kind, func(dir string) { write(t, filepath.Join(dir, "data"), matrixFile) })
		dev.Release(t)
	}
}
