//go:build root || nightly

package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cambium/internal/looptest"
	"cambium/internal/managedfs"
	"cambium/platform/device"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/record"
)

// The matrix has mount_disk decide about disks that are generated from four axes: what the volume holds, the partition
// table around it, what happened to the disk since, and whether its preparation is on record. What happens to each disk
// is judged without the agent's own classifier: by blkid, wipefs, sfdisk, e2fsck and xfs_repair, a test for zeros, and
// a comparison of bytes. Three figures count, and each must be 0: disks that were formatted although they held
// anything, disks that were refused although they are blank or ours, and disks that were mounted although they are
// neither.
//
// This shows that what is on a disk is observed, and that what was decided is done. What else is on record, what
// settings and operators allow, and whether it is a boot are axes of TestMatrix in package decide, which has the whole
// product.
//
// TestRootMatrix covers all pairs of the axes' values, and the combinations in which data can be lost.
// TestNightlyMatrix is the whole product.

// matrixVolume is what each volume has; the smallest xfs has 300 MiB. A partition begins within the first MiB, or at 4 MiB, and
// ends one MiB before its disk.
const matrixVolume = 314 << 20

// matrixContent is a row of the first axis.
type matrixContent struct {
	name string
	// make gets a sparse file of the volume's size.
	make func(t testing.TB, path string)
	// used says that it was mounted and holds the file.
	used bool
	// magic is where its signature begins.
	magic int64
	// tail is metadata that lies this many bytes before the end of the volume.
	tail   int64
	signed string
	// plain says that it has no signature, or one of two bytes.
	plain bool
	// rare kinds are looked at in a few tables, and in all of them at night.
	rare bool

	sync.Mutex // an xfs is mounted once at a time
}

// matrixContents are the first axis. Kinds that only tools of their own make are their signatures alone.
var matrixContents = withManaged([]*matrixContent{
	{name: "zeros"},
	{name: "ext4 of 4 KiB blocks with files", make: withFile("ext4", "-b", "4096"), used: true, magic: extMagic},
	{name: "ext3", make: made("mkfs.ext3", "-qF"), magic: extMagic, rare: true},
	{name: "btrfs", make: made("mkfs.btrfs", "-qf"), magic: 0x10040},
	{name: "swap", make: made("mkswap", "-q"), magic: 4086, rare: true},
	{name: "NTFS", make: made("mkfs.ntfs", "-qFf"), magic: 3, rare: true},
	{name: "FAT", make: made("mkfs.vfat"), magic: 0x36, rare: true},
	{name: "LUKS", make: made("cryptsetup", "luksFormat", "--type", "luks2", "-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"), rare: true},
	{name: "LVM", make: signature(512, "LABELONE\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x20\x00\x00\x00LVM2 001"), magic: 512},
	{name: "md 1.2", make: signature(4096, "\xfc\x4e\x2b\xa9\x01\x00\x00\x00"), magic: 4096, rare: true},
	{name: "md 1.0", tail: 8192, signed: "\xfc\x4e\x2b\xa9\x01\x00\x00\x00", rare: true},
	{name: "bcache", make: signature(4096+24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"), magic: 4096 + 24, rare: true},
	{name: "DM snapshot", make: signature(0, "SnAp"), rare: true},
	{name: "vxfs", make: signature(1024, "\xf5\xfc\x01\xa5"), magic: 1024, rare: true},
	{name: "ReFS", make: signature(0, "\x00\x00\x00ReFS\x00"), magic: 3, rare: true},
	{name: "UBI", make: signature(0, "UBI#"), rare: true},
	{name: "Adaptec RAID", tail: 512, signed: "\x37\xfc\x4d\x1e", rare: true},
	{name: "LSI RAID", tail: 512, signed: "$XIDE$", rare: true},
	{name: "nForce RAID", tail: 1024, signed: "NVIDIA, ", rare: true},
	{name: "Promise RAID", tail: 63 * 512, signed: "Promise Technology, Inc.", rare: true},
	{name: "VIA RAID", tail: 512, signed: "\x55\xaa", rare: true, plain: true},
	{name: "JMicron RAID", tail: 512, signed: "JM", rare: true, plain: true},
	{name: "a byte of text", make: signature(5*512, "x"), magic: 5 * 512, rare: true, plain: true},
	{name: "records of a database", make: signature(40<<10, "records of a database"), magic: 40 << 10, rare: true, plain: true},
})

// extMagic is where ext has its magic; others have it in the beginning.
const extMagic = 1024 + 56

// withManaged appends each file system of the agent, with the file and new.
func withManaged(contents []*matrixContent) []*matrixContent {
	for _, f := range managedfs.All {
		magic := map[string]int64{"ext4": extMagic}[f.Name]
		contents = append(contents,
			&matrixContent{name: f.Name + " with files", make: withFile(f.Name), used: true, magic: magic},
			&matrixContent{name: "new " + f.Name, make: made(f.Make[0], f.Make[1:]...), magic: magic})
	}
	return contents
}

// matrixTable is a row of the second axis. The volume begins at sector start, whether or not the table says so.
type matrixTable struct {
	name   string
	script string // for sfdisk
	start  int64
	// lost are the places that are zeroed afterwards, as pairs of offset and length; an offset below 0 counts from the end.
	lost []int64
	// preformatted is what the stemcell says about its disks.
	preformatted bool
	// older says that the disk had a file system before, whose head is left beneath the table.
	older bool
	// cleared tables are looked at with file systems that are intact, and with nothing on record.
	cleared bool
}

// clearedStarts are the sectors at which a file system begins whose table was cleared, or whose entry was deleted:
// where partitions begin by the habits of all ages, and at whole MiB.
var clearedStarts = []int64{1, 2, 34, 40, 63, 64, 128, 256, 512, 1008, 2040, 2048, 2056, 4096, 8064, 8192, 14336, 16065,
	5 << 11, 6 << 11, 8 << 11, 10 << 11, 16 << 11, 17 << 11, 32 << 11, 50 << 11, 64 << 11, 99 << 11, 100 << 11,
	101 << 11, 128 << 11, 200 << 11, 256 << 11, 333 << 11, 400 << 11, 500 << 11, 512 << 11, 777 << 11, 1000 << 11,
	1023 << 11}

// withCleared appends the tables that were cleared: in turn nothing is left of them, or an empty GPT.
func withCleared(tables []*matrixTable) []*matrixTable {
	for i, start := range clearedStarts {
		t := &matrixTable{name: fmt.Sprintf("table cleared, at sector %d", start), start: start, cleared: true}
		if i%2 == 1 && start >= 34 {
			t.name, t.script = fmt.Sprintf("entry deleted, at sector %d", start), "label: gpt\n"
		}
		tables = append(tables, t)
	}
	return tables
}

// matrixTables are the second axis.
var matrixTables = withCleared([]*matrixTable{
	{name: "no table"},
	{name: "GPT of this agent", script: "label: gpt\nstart=2048, size=643072, name=\"bosh-partition-0\"\n", start: 2048},
	{name: "GPT emptied, at 1 MiB", script: "label: gpt\n", start: 2048},
	{name: "no table, preformatted", preformatted: true},
	{name: "GPT of this agent, being prepared", script: "label: gpt\nstart=2048, size=643072, name=\"" + decide.PreparingName + "\"\n", start: 2048},
	{name: "GPT of parted", script: "label: gpt\nstart=2048, size=643072, name=\"primary\"\n", start: 2048},
	{name: "GPT at sector 34", script: "label: gpt\nfirst-lba: 34\nstart=34, size=643072\n", start: 34},
	{name: "GPT with one good copy", script: "label: gpt\nstart=2048, size=643072, name=\"bosh-partition-0\"\n", start: 2048, lost: []int64{512, 33 * 512}},
	{name: "GPT of two partitions", script: "label: gpt\nstart=2048, size=643072, name=\"bosh-partition-0\"\nstart=645120, size=1024\n", start: 2048},
	{name: "GPT with the second partition alone", script: "label: gpt\n2: start=2048, size=643072, name=\"bosh-partition-0\"\n", start: 2048},
	{name: "DOS of trusty at sector 1", script: "label: dos\nstart=1, size=643072, type=83\n", start: 1},
	{name: "DOS at sector 63", script: "label: dos\nstart=63, size=643072, type=83\n", start: 63},
	{name: "DOS of sfdisk at 1 MiB", script: "label: dos\nstart=2048, size=643072, type=83\n", start: 2048},
	{name: "DOS of sfdisk over an older ext4", script: "label: dos\nstart=2048, size=643072, type=83\n", start: 2048,
		older: true},
	{name: "GPT lost", script: "label: gpt\nstart=2048, size=643072\n", start: 2048, lost: []int64{0, 34 * 512, -33 * 512, 33 * 512}},
	{name: "GPT without its headers", script: "label: gpt\nstart=2048, size=643072\n", start: 2048, lost: []int64{512, 512, -512, 512}},
	{name: "DOS at sector 63 lost", script: "label: dos\nstart=63, size=643072\n", start: 63, lost: []int64{0, 512}},
	{name: "DOS emptied, at sector 128", script: "label: dos\n", start: 128},
})

// matrixDamage is a row of the third axis.
type matrixDamage struct {
	name string
	// lost are the bytes of the volume that are zeroed, from and to; magic moves them to the signature.
	from, to int64
	magic    bool
	grown    bool
}

// matrixDamages are the third axis.
var matrixDamages = []matrixDamage{
	{name: "intact"},
	{name: "two bytes lost", to: 2, magic: true},
	{name: "head lost", to: 64 << 10},
	{name: "first 2 MiB lost", to: 2 << 20},
	{name: "grown by the IaaS", grown: true},
}

// matrixCell is one disk of the matrix: an index into each axis. The fourth is 1 if its preparation is on record.
type matrixCell [4]int

func (c matrixCell) content() *matrixContent { return matrixContents[c[0]] }
func (c matrixCell) table() *matrixTable     { return matrixTables[c[1]] }
func (c matrixCell) damage() matrixDamage    { return matrixDamages[c[2]] }

func (c matrixCell) String() string {
	return fmt.Sprintf("%s; %s; %s; unfinished %d", c.content().name, c.table().name, c.damage().name, c[3])
}

// prepared says that the table reports a preparation that is not finished, or the record if it has no names.
func (c matrixCell) prepared() bool {
	script := c.table().script
	return c[3] == 1 && !strings.HasPrefix(script, "label: gpt") || strings.Contains(script, decide.PreparingName)
}

// possible leaves out what cannot be. What a disk held is wiped before its preparation is told of, which ends before the disk is mounted:
// traces on such a disk are those of the agent's own mkfs.
func (c matrixCell) possible() bool {
	content, damage := c.content(), c.damage()
	switch {
	case c.table().cleared && (c[2] > 0 || c[3] > 0 || !content.used):
		return false // that is for the other tables
	case c.table().older && c.prepared():
		return false // this agent wipes before it makes a table
	case content.make == nil && damage.to > 0:
		return false // there is nothing to damage
	case content.tail > 0 && damage.grown:
		return false // what lies at the former end of a disk is not found by anything, its own tools included
	}
	return !c.prepared() || damage.to == 0 && !content.plain || strings.HasPrefix(content.name, "new ")
}

// needsDevice says that the decision depends on what only a device shows: of disks without a table, and of an ext4 that was never
// mounted, which e2fsck looks at.
func (c matrixCell) needsDevice() bool {
	return c.table().preformatted || c.prepared() && c.content().name == "new ext4" && c.damage().to == 0
}

// dangerous are cells that a choice of pairs must not leave out: what was used, in every table, and damaged in the
// first three.
func (c matrixCell) dangerous() bool {
	return c.content().used && !c.content().rare && c[3] == 0 && (c[2] == 0 || c[1] < 3)
}

// matrixCells are the disks to look at: all, or those that are dangerous and as many more as it takes to have every pair of
// values of two axes. Of the rare contents, only pairs with the first three tables and the first two damages count.
func matrixCells(all bool) (cells []matrixCell) {
	type pair struct{ axis, value, otherAxis, otherValue int }
	seen := map[pair]bool{}
	// missing marks the pairs of a cell as seen, and says whether one was not.
	missing := func(c matrixCell) (found bool) {
		for a := range c {
			for b := range a {
				p := pair{b, c[b], a, c[a]}
				found = found || !seen[p]
				seen[p] = true
			}
		}
		return found
	}
	var others []matrixCell
	for content := range matrixContents {
		for table := range matrixTables {
			for damage := range matrixDamages {
				for record := range 2 {
					c := matrixCell{content, table, damage, record}
					switch {
					case !c.possible():
					case all || c.dangerous():
						missing(c)
						cells = append(cells, c)
					case !c.content().rare || table < 3 && damage < 2 && record == 0:
						others = append(others, c)
					}
				}
			}
		}
	}
	for _, c := range others {
		if missing(c) {
			cells = append(cells, c)
		}
	}
	return cells
}

func TestRootMatrix(t *testing.T)    { runMatrix(t, matrixCells(false)) }
func TestNightlyMatrix(t *testing.T) { runMatrix(t, matrixCells(true)) }

// matrixWorkers is how many disks are looked at at a time.
const matrixWorkers = 4

// runMatrix has every disk decided about, as an image. Those that are prepared or mounted are then prepared and
// mounted, on loop devices, one for each table, outcome, and whether it has grown: in turn with the first and the last
// content.
func runMatrix(t *testing.T, cells []matrixCell) {
	looptest.Require(t)
	looptest.Needs(t, "sfdisk", "blkid", "wipefs", "e2fsck", "tune2fs", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "mkfs.ntfs", "mkfs.vfat", "cryptsetup", "xfs_repair")
	// Where there is memory for it, no test has to wait for a disk.
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		t.Setenv("TMPDIR", "/dev/shm")
	}
	begin := time.Now()
	o := newOracle(t)
	var counts [outcomes]atomic.Int64
	var found sync.Map // outcomes by cell
	t.Logf("the oracle takes %v", time.Since(begin).Round(time.Second/10))
	each := func(t *testing.T, cells []matrixCell, look func(*matrixWorker, matrixCell) (outcome, error)) {
		begin := time.Now()
		queue := make(chan matrixCell)
		var workers sync.WaitGroup
		for range matrixWorkers {
			w := newMatrixWorker(t, o)
			workers.Go(func() {
				for c := range queue {
					got, err := look(w, c)
					if err != nil {
						t.Errorf("%s: %v", c, err)
					}
					counts[got].Add(1)
					found.Store(c, got)
				}
			})
		}
		for _, c := range cells {
			queue <- c
		}
		close(queue)
		workers.Wait()
		t.Logf("%d disks in %v", len(cells), time.Since(begin).Round(time.Second/10))
	}
	var onImages, onDevices []matrixCell
	for _, c := range cells {
		if c.needsDevice() {
			onDevices = append(onDevices, c)
		} else {
			onImages = append(onImages, c)
		}
	}
	t.Run("decided", func(t *testing.T) { each(t, onImages, (*matrixWorker).decide) })
	t.Run("done", func(t *testing.T) {
		kinds := map[[3]any]matrixCell{}
		for _, c := range onImages {
			got, _ := found.Load(c)
			kind := [3]any{c[1], got, c.damage().grown}
			if _, known := kinds[kind]; (got == prepares || got == mounts) && (!known || c[1]%2 == 1) {
				kinds[kind] = c
			}
		}
		onDevices = slices.AppendSeq(onDevices, maps.Values(kinds))
		each(t, onDevices, (*matrixWorker).do)
	})
	t.Logf("%d prepared, %d mounted, %d refused; %d formatted that held anything, %d refused that are blank or ours, %d mounted that are neither",
		counts[prepares].Load(), counts[mounts].Load(), counts[refuses].Load(), counts[heldAnything].Load(), counts[blankOrOurs].Load(), counts[neither].Load())
	for _, o := range []outcome{prepares, mounts, refuses} {
		if counts[o].Load() == 0 {
			t.Errorf("no disk was seen for outcome %d", o)
		}
	}
}

// outcome is what happened to a disk, in the eyes of the oracle.
type outcome int

const (
	prepares     outcome = iota // formatted, rightly
	mounts                      // as it is, rightly
	refuses                     // rightly
	heldAnything                // and was formatted
	blankOrOurs                 // and was refused
	neither                     // and was mounted
	broken                      // the test could not be done
	outcomes
)

// matrixWorker looks at one disk after another.
type matrixWorker struct {
	t      *testing.T
	oracle *oracle
	image  string
	// benches are by whether disks are preformatted, and devices is how they find disks.
	benches map[bool]*bench
	devices Resolver
}

func newMatrixWorker(t *testing.T, o *oracle) *matrixWorker {
	w := &matrixWorker{t: t, oracle: o, image: filepath.Join(t.TempDir(), "disk.img"), benches: map[bool]*bench{
		false: newBench(t, Options{}), true: newBench(t, Options{UsePreformattedPersistentDisk: true})}}
	w.devices = w.benches[false].Persistent.Resolver.(Resolver)
	return w
}

// atPath finds the disk at one path, which may be an image.
type atPath string

func (p atPath) Look(device.Hint) (device.Device, error) { return device.Device{Path: string(p)}, nil }
func (p atPath) Resolve(context.Context, device.Hint) (device.Device, error) {
	return p.Look(device.Hint{})
}

// decide has the agent plan what mount_disk does with an image.
func (w *matrixWorker) decide(c matrixCell) (outcome, error) {
	b := w.benches[false]
	err := w.oracle.disk(c).write(w.image, c.size())
	if err == nil {
		err = w.know(b, c, w.image)
	}
	if err != nil {
		return broken, err
	}
	b.Persistent.Resolver = atPath(w.image)
	changes, refusal := b.PlanMount(context.Background())
	formatted := false
	for _, change := range changes {
		formatted = formatted || change.Op == decide.CreateTable || change.Op == decide.MakeFileSystem
		if change.Op == decide.Reject && strings.HasSuffix(change.What, "will be refused") {
			refusal = errors.New(change.String())
		}
	}
	return w.oracle.compare(c, formatted, refusal)
}

// do has a disk mounted.
func (w *matrixWorker) do(c matrixCell) (outcome, error) {
	if c.content().make != nil {
		c.content().Lock()
		defer c.content().Unlock()
	}
	b := w.benches[c.table().preformatted]
	if err := w.oracle.disk(c).write(w.image, c.size()); err != nil {
		return broken, err
	}
	dev := looptest.Attach(w.t, w.image)
	defer dev.Release(w.t)
	if err := w.know(b, c, dev.Path); err != nil {
		return broken, err
	}
	b.Persistent.Resolver = w.devices
	formatted := false
	b.CrashPoint = func(step string) {
		formatted = formatted || step == string(decide.CreateTable) || step == string(decide.MakeFileSystem)
	}
	refusal := b.Mount(context.Background(), "vol-1")
	got, err := w.oracle.compare(c, formatted, refusal)
	if err != nil {
		return got, err
	}
	if refusal == nil && mountedSource(w.t, b.Dirs.Store()) == "" {
		return broken, errors.New("nothing is mounted")
	}
	if got == mounts && c.content().used {
		if data, err := os.ReadFile(filepath.Join(b.Dirs.Store(), "data")); err != nil || string(data) != matrixFile {
			return broken, fmt.Errorf("mounted, and its file is not what it was: %w", err)
		}
	}
	if refusal == nil {
		if err := mount.Unmount(context.Background(), b.Dirs.Store()); err != nil {
			return broken, err
		}
	}
	dev.Release(w.t)
	after, err := readLayer(w.image)
	switch table := w.oracle.tables[c.table()]; {
	case err != nil:
		return broken, err
	case got == refuses && !after.equal(w.oracle.disk(c)):
		return broken, errors.New("refused, and changed")
	case got == mounts && !c.damage().grown && len(c.table().lost) == 0 && table.name != decide.PreparingName && !after.contains(table.layer):
		return broken, errors.New("mounted, and its partition table was written")
	}
	return got, nil
}

// know makes the disk known, and its preparation if the cell says so.
func (w *matrixWorker) know(b *bench, c matrixCell, path string) error {
	if err := os.Remove(b.Dirs.DiskRecord()); err != nil && !os.IsNotExist(err) {
		return err
	}
	b.records.disks = map[string]settings.PersistentDisk{"vol-1": {CID: "vol-1", Hint: settings.DiskHint{Path: path}}}
	b.records.mounted = ""
	if c[3] == 0 {
		return nil
	}
	return b.Record.Update(func(r *record.Record) { r.Unfinished["vol-1"] = w.oracle.tables[c.table()].id })
}

// size is how large the disk is.
func (c matrixCell) size() int64 {
	if c.damage().grown {
		return 2 * c.table().size()
	}
	return c.table().size()
}

// size is how large a disk with such a table is, until it grows.
func (t *matrixTable) size() int64 {
	if t.script == "" && !t.cleared {
		return matrixVolume
	}
	return (t.start*sectorSize+1<<20-1)>>20<<20 + matrixVolume + 1<<20
}

var matrixFile = strings.Repeat("precious ", 10_000)
