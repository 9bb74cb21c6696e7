//go:build root

package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cambium/internal/looptest"
	"cambium/internal/managedfs"
	"cambium/platform/device"
	"cambium/platform/disk"
	"cambium/platform/disk/layout"
	"cambium/platform/mount"
	"cambium/settings"
	"cambium/storage/decide"
)

// TestRootMatrix shows that the content of disks is observed and that decisions are carried out. mount_disk decides
// about disks created by programs: each kind of content in each partition table, damaged file systems, disks that have
// grown, and tables cleared with file systems at 40 offsets. The axes define the expected results. TestMatrix in
// package decide combines observations with records, settings and operators.
func TestRootMatrix(t *testing.T) {
	looptest.Require(t)
	looptest.Needs(t, "sfdisk", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "mkfs.ntfs", "mkfs.vfat", "cryptsetup")
	m := newMatrix(t)
	counts, done := map[outcome]int{}, map[string]matrixCell{}
	cells := matrixCells()
	for _, c := range cells {
		want := c.want()
		counts[want]++
		// Of disks without a table, and of an ext4 that was never mounted, only a device shows what is decided.
		if c.table.preformatted || c.preparing() {
			done[c.String()] = c
			continue
		}
		m.decide(c)
		if c.table.cleared {
			continue // refusing one is like refusing another
		}
		done[fmt.Sprint(c.table.name, want, c.damage.grown)] = c
	}
	t.Logf("%d refusals with commands of their own", len(m.followed))
	for _, c := range done {
		m.do(c)
	}
	t.Logf("%d disks: %v; %d of them done", len(cells), counts, len(done))
}

// outcome names the decision about a disk.
type outcome string

const (
	isFormatted outcome = "formatted"
	isMounted   outcome = "mounted"
	isRefused   outcome = "refused"
)

// matrixVolume is the size of each volume in bytes, since the smallest xfs needs 300 MiB. A partition begins within the
// first MiB or at 4 MiB, and ends one MiB before the end of its disk.
const matrixVolume = 314 << 20

// matrixContent fills a volume. Without make, the volume contains zeros.
type matrixContent struct {
	name string
	make func(t testing.TB, path string)
	// sound is an ext4 or xfs; used says that it was mounted and holds the file.
	sound, used bool
	// magic is the offset of the content's signature.
	magic int64
	// rare kinds are tried in the first three tables only.
	rare bool
}

const extMagic = 1024 + 56

// matrixContents is the first axis. Kinds for which only their own tools exist are represented by their signatures.
var matrixContents = withManaged([]*matrixContent{
	{name: "zeros"},
	{name: "ext4 of 4 KiB blocks with files", make: withFile("ext4", "-b", "4096"), sound: true, used: true,
		magic: extMagic},
	{name: "ext3", make: made("mkfs.ext3", "-qF"), rare: true},
	{name: "btrfs", make: made("mkfs.btrfs", "-qf")},
	{name: "swap", make: made("mkswap", "-q"), rare: true},
	{name: "NTFS", make: made("mkfs.ntfs", "-qFf"), rare: true},
	{name: "FAT", make: made("mkfs.vfat"), rare: true},
	{name: "LUKS", make: made("cryptsetup", "luksFormat", "--type", "luks2", "-q", "--pbkdf", "pbkdf2",
		"--pbkdf-force-iterations", "1000"), rare: true},
	{name: "LVM", make: bytesAt(512, "LABELONE\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x20\x00\x00\x00LVM2 001"), rare: true},
	{name: "md 1.2", make: bytesAt(4096, "\xfc\x4e\x2b\xa9\x01\x00\x00\x00"), rare: true},
	{name: "md 1.0", make: bytesAt(matrixVolume-8192, "\xfc\x4e\x2b\xa9\x01\x00\x00\x00"), rare: true},
	{name: "bcache", make: bytesAt(4096+24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"), rare: true},
	{name: "a byte of text", make: bytesAt(5*512, "x"), rare: true},
	{name: "records of a database", make: bytesAt(40<<10, "records of a database"), rare: true},
})

// withManaged appends the agent's file systems, with a file and new.
func withManaged(contents []*matrixContent) []*matrixContent {
	for _, f := range managedfs.All {
		magic := map[string]int64{"ext4": extMagic}[f.Name]
		contents = append(contents,
			&matrixContent{name: f.Name + " with files", make: withFile(f.Name), sound: true, used: true, magic: magic},
			&matrixContent{name: "new " + f.Name, make: made(f.Make[0], f.Make[1:]...), sound: true})
	}
	return contents
}

// matrixTable is a row of the second axis. The volume begins at sector start, whether or not the table says so.
type matrixTable struct {
	name   string
	script string // for sfdisk
	before string // the same, of an older table
	boot   string // the boot code
	start  int64
	// lost are the places that are zeroed afterwards, as pairs of offset and length; an offset below 0 counts from the end.
	lost []int64
	// blank is the expected outcome for a volume of zeros, and sound that for an ext4 or xfs.
	blank, sound outcome
	// preformatted is set if the stemcell says that its disks come with a file system.
	preformatted bool
	// older says that the disk had a file system before, whose head is left beneath the table.
	older bool
	// cleared tables are looked at with file systems that are intact.
	cleared bool
}

func one(label, entry string) string { return "label: " + label + "\nstart=" + entry + "\n" }

const agentsEntry = `2048, size=643072, name="bosh-partition-0"`

// matrixTables is the second axis.
var matrixTables = withCleared([]*matrixTable{
	{name: "no table", blank: isFormatted, sound: isRefused},
	{name: "GPT of this agent", script: one("gpt", agentsEntry), start: 2048, blank: isFormatted, sound: isMounted},
	{name: "GPT emptied, at 1 MiB", script: "label: gpt\n", start: 2048, blank: isFormatted, sound: isRefused},
	{name: "no table, preformatted", preformatted: true, blank: isRefused, sound: isMounted},
	{name: "GPT of this agent, being prepared", script: one("gpt", `2048, size=643072, name="`+decide.PreparingName+`"`),
		start: 2048, blank: isFormatted, sound: isMounted},
	{name: "GPT of parted", script: one("gpt", `2048, size=643072, name="primary"`), start: 2048, blank: isRefused,
		sound: isMounted},
	{name: "GPT at sector 34", script: "label: gpt\nfirst-lba: 34\nstart=34, size=643072\n", start: 34, blank: isRefused,
		sound: isMounted},
	{name: "GPT with one good copy", script: one("gpt", agentsEntry), start: 2048, lost: []int64{512, 33 * 512},
		blank: isFormatted, sound: isMounted},
	{name: "GPT without its second copy", script: one("gpt", agentsEntry), start: 2048, lost: []int64{-33 * 512, 33 * 512},
		blank: isFormatted, sound: isMounted},
	{name: "GPT without its protective entry", script: one("gpt", agentsEntry), start: 2048, lost: []int64{0, 512},
		blank: isFormatted, sound: isMounted},
	{name: "DOS over the remains of a GPT", before: one("gpt", "2048, size=643072"),
		script: one("dos", "2048, size=643072, type=83"), start: 2048, blank: isRefused, sound: isMounted},
	{name: "GPT of two partitions", script: one("gpt", agentsEntry) + "start=645120, size=1024\n", start: 2048,
		blank: isRefused, sound: isRefused},
	{name: "GPT with the second partition alone", script: "label: gpt\n2: start=" + agentsEntry + "\n", start: 2048,
		blank: isRefused, sound: isRefused},
	{name: "DOS of trusty at sector 1", script: one("dos", "1, size=643072, type=83"), start: 1, blank: isRefused,
		sound: isMounted},
	{name: "DOS at sector 63", script: one("dos", "63, size=643072, type=83"), start: 63, blank: isRefused,
		sound: isMounted},
	{name: "DOS of sfdisk at 1 MiB", script: one("dos", "2048, size=643072, type=83"), start: 2048, blank: isRefused,
		sound: isMounted},
	{name: "DOS of this agent, being prepared", script: one("dos", "2048, size=643072, type=da"), boot: decide.PreparingName,
		start: 2048, blank: isFormatted, sound: isMounted},
	{name: "DOS of raw data", script: one("dos", "2048, size=643072, type=da"), start: 2048, blank: isRefused,
		sound: isMounted},
	{name: "DOS of raw data, with boot code", script: one("dos", "2048, size=643072, type=da"), start: 2048,
		boot: decide.PreparingName + "\x00\x01", blank: isRefused, sound: isMounted},
	{name: "DOS of another program after this agent", script: one("dos", "2048, size=643072, type=83"), start: 2048,
		boot: decide.PreparingName, blank: isRefused, sound: isMounted},
	{name: "DOS of sfdisk over an older ext4", script: one("dos", "2048, size=643072, type=83"), start: 2048,
		older: true, blank: isRefused, sound: isMounted},
	{name: "GPT lost", script: one("gpt", "2048, size=643072"), start: 2048,
		lost: []int64{0, 34 * 512, -33 * 512, 33 * 512}, blank: isFormatted, sound: isRefused},
	{name: "GPT without its headers", script: one("gpt", "2048, size=643072"), start: 2048,
		lost: []int64{512, 512, -512, 512}, blank: isRefused, sound: isRefused},
	{name: "DOS at sector 63 lost", script: one("dos", "63, size=643072"), start: 63, lost: []int64{0, 512},
		blank: isFormatted, sound: isRefused},
	{name: "DOS emptied, at sector 128", script: "label: dos\n", start: 128, blank: isFormatted, sound: isRefused},
})

// clearedStarts lists the sectors at which file systems begin in cleared tables or deleted entries: the usual starts of
// partitions through the ages, and whole MiB.
var clearedStarts = []int64{1, 2, 34, 40, 63, 64, 128, 256, 512, 1008, 2040, 2048, 2056, 4096, 8064, 8192, 14336, 16065,
	5 << 11, 6 << 11, 8 << 11, 10 << 11, 16 << 11, 17 << 11, 32 << 11, 50 << 11, 64 << 11, 99 << 11, 100 << 11,
	101 << 11, 128 << 11, 200 << 11, 256 << 11, 333 << 11, 400 << 11, 500 << 11, 512 << 11, 777 << 11, 1000 << 11,
	1023 << 11}

// withCleared appends the cleared tables: by turns, nothing is left of them, or an empty GPT.
func withCleared(tables []*matrixTable) []*matrixTable {
	for i, start := range clearedStarts {
		t := &matrixTable{name: fmt.Sprintf("table cleared, at sector %d", start), start: start, cleared: true,
			sound: isRefused}
		if i%2 == 1 && start >= 34 {
			t.name, t.script = fmt.Sprintf("entry deleted, at sector %d", start), "label: gpt\n"
		}
		tables = append(tables, t)
	}
	return tables
}

// matrixDamage zeroes the first bytes of a volume or, with magic set, those of its signature. With grown set it only
// enlarges the disk.
type matrixDamage struct {
	name         string
	to           int64
	magic, grown bool
}

var matrixDamages = []matrixDamage{{name: "two bytes lost", to: 2, magic: true}, {name: "head lost", to: 64 << 10},
	{name: "first 2 MiB lost", to: 2 << 20}, {name: "grown by the IaaS", grown: true}}

// matrixCell is a disk of the matrix.
type matrixCell struct {
	content *matrixContent
	table   *matrixTable
	damage  matrixDamage
}

func (c matrixCell) String() string {
	return fmt.Sprintf("%s; %s; %s", c.content.name, c.table.name, c.damage.name)
}

// preparing reports whether the table says that the disk is being prepared.
func (c matrixCell) preparing() bool {
	return strings.Contains(c.table.script, decide.PreparingName) ||
		c.table.boot == decide.PreparingName && strings.Contains(c.table.script, "type=da")
}

// want returns the expected outcome for the disk.
func (c matrixCell) want() outcome {
	switch {
	case c.preparing() && c.content.make == nil:
		return isFormatted // a complete file system is finished, whatever the table says
	case c.damage.to > 0:
		return isRefused
	case c.content.make == nil:
		return c.table.blank
	case c.content.sound:
		return c.table.sound
	case c.table.preformatted:
		return isMounted // whatever the kernel mounts
	}
	return isRefused
}

// matrixCells returns all disks: each content in each table, damaged variants of used file systems in three of them,
// and grown ones where they are mounted.
func matrixCells() (cells []matrixCell) {
	for i, table := range matrixTables {
		for _, content := range matrixContents {
			c := matrixCell{content: content, table: table}
			switch {
			case table.cleared:
				if content.used && content.name != "ext4 of 4 KiB blocks with files" {
					cells = append(cells, c)
				}
				continue
			case content.rare && i > 2:
				continue
			}
			cells = append(cells, c)
			for _, c.damage = range matrixDamages {
				if content.used && (i < 3 || c.damage.grown && table.sound == isMounted) && !c.preparing() {
					cells = append(cells, c)
				}
			}
		}
	}
	return cells
}

// matrix creates the disks and lets the agent decide about them.
type matrix struct {
	t       *testing.T
	volumes map[*matrixContent]string
	older   string
	image   string
	// benches are keyed by whether disks are preformatted, and devices is the Resolver with which they find disks.
	benches map[bool]*bench
	devices Resolver
	other   *bench // of an agent without persistent disks
	// followed are the refusals whose commands were run.
	followed map[string]bool
}

func newMatrix(t *testing.T) *matrix {
	t.Helper()
	dir := t.TempDir()
	m := &matrix{t: t, followed: map[string]bool{}, volumes: map[*matrixContent]string{},
		image: filepath.Join(dir, "disk.img"),
		older: filepath.Join(dir, "older.img"), other: newBench(t, Options{}),
		benches: map[bool]*bench{false: newBench(t, Options{}),
			true: newBench(t, Options{UsePreformattedPersistentDisk: true})}}
	m.devices = m.benches[false].Persistent.Resolver.(Resolver)
	volume := func(path string, fill func(testing.TB, string)) {
		f, err := os.Create(path)
		if err := errors.Join(err, f.Truncate(matrixVolume), f.Close()); err != nil {
			t.Fatal(err)
		}
		fill(t, path)
	}
	volume(m.older, made("mkfs.ext4", "-qF"))
	for i, c := range matrixContents {
		if c.make != nil {
			m.volumes[c] = filepath.Join(dir, fmt.Sprintf("%d.img", i))
			volume(m.volumes[c], c.make)
		}
	}
	return m
}

// size returns the size of the disk in bytes.
func (c matrixCell) size() int64 {
	size := int64(matrixVolume)
	if c.table.script != "" || c.table.cleared {
		size += (c.table.start*512+1<<20-1)>>20<<20 + 1<<20
	}
	if c.damage.grown {
		return 2 * size
	}
	return size
}

// make creates a cell's disk.
func (m *matrix) make(c matrixCell) {
	m.t.Helper()
	f, err := os.Create(m.image)
	if err := errors.Join(err, f.Truncate(c.size())); err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	run := func(stdin, name string, args ...string) {
		m.t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Stdin = strings.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			m.t.Fatalf("%s: %s: %v: %s", c, name, err, out)
		}
	}
	put := func(from string, length, at int64) {
		m.t.Helper()
		if err := copyData(f, from, length, at); err != nil {
			m.t.Fatal(err)
		}
	}
	zero := func(at, length int64) {
		m.t.Helper()
		if _, err := f.WriteAt(make([]byte, length), at); err != nil {
			m.t.Fatal(err)
		}
	}
	start := c.table.start * 512
	if c.table.older {
		put(m.older, 1<<20, 0)
	}
	if from := m.volumes[c.content]; from != "" {
		put(from, matrixVolume, start)
	}
	if c.damage.magic {
		zero(start+c.content.magic, c.damage.to)
	} else {
		zero(start, c.damage.to)
	}
	before := c // the table is of the time before the disk grew
	before.damage.grown = false
	if c.table.script != "" {
		if err := f.Truncate(before.size()); err != nil {
			m.t.Fatal(err)
		}
		for _, script := range []string{c.table.before, c.table.script} {
			if script != "" { // it would sleep before it tells the kernel
				run(script, "sfdisk", "-q", "--no-reread", "--no-tell-kernel", "--wipe", "never", "--wipe-partitions",
					"never", m.image)
			}
		}
	}
	if _, err := f.WriteAt([]byte(c.table.boot), 0); err != nil {
		m.t.Fatal(err)
	}
	for i := 0; i < len(c.table.lost); i += 2 {
		at := c.table.lost[i]
		if at < 0 {
			at += before.size()
		}
		zero(at, c.table.lost[i+1])
	}
	if err := f.Truncate(c.size()); err != nil {
		m.t.Fatal(err)
	}
}

// copyData copies the beginning of an image, except for its holes, to an offset of another.
func copyData(to *os.File, from string, length, offset int64) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	for at := int64(0); at < length; {
		data, err := f.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && data >= length {
			return nil
		}
		if err != nil {
			return err
		}
		if at, err = f.Seek(data, unix.SEEK_HOLE); err != nil {
			return err
		}
		part := io.NewSectionReader(f, data, min(at, length)-data)
		if _, err := io.Copy(io.NewOffsetWriter(to, offset+data), part); err != nil {
			return err
		}
	}
	return nil
}

// know makes the disk known to the agent.
func (m *matrix) know(b *bench, path string) {
	m.t.Helper()
	if err := os.Remove(b.Dirs.DiskRecord()); err != nil && !os.IsNotExist(err) {
		m.t.Fatal(err)
	}
	b.records.disks = map[string]settings.PersistentDisk{"vol-1": {CID: "vol-1", Hint: settings.DiskHint{Path: path}}}
	b.records.mounted = ""
}

// atPath is a resolver that finds the disk at a path, which may be an image.
type atPath string

func (p atPath) ResolveOnce(device.Hint) (device.Device, error) {
	return device.Device{Path: string(p)}, nil
}
func (p atPath) Resolve(context.Context, device.Hint) (device.Device, error) {
	return p.ResolveOnce(device.Hint{})
}

// decide lets the agent plan mount_disk for an image.
func (m *matrix) decide(c matrixCell) {
	m.t.Helper()
	b := m.benches[false]
	m.make(c)
	m.know(b, m.image)
	b.Persistent.Resolver = atPath(m.image)
	changes, refusal := b.PlanMount(context.Background())
	got := isMounted
	for _, change := range changes {
		switch {
		case change.Op == decide.CreateTable || change.Op == decide.MakeFileSystem:
			got = isFormatted
		case change.Op == decide.Reject && strings.Contains(change.What, "will be refused"):
			refusal = errors.New(change.String())
			m.follow(change.What)
		}
	}
	if refusal != nil {
		got = isRefused
	}
	if got != c.want() {
		m.t.Errorf("%s: to be %s, want %s: %v %v", c, got, c.want(), changes, refusal)
	}
}

// follow runs the commands of a refusal on a device, unless another refusal had the same commands.
func (m *matrix) follow(advice string) {
	m.t.Helper()
	if m.followed[advice] {
		return
	}
	m.followed[advice] = true
	dev := looptest.Attach(m.t, m.image)
	defer dev.Release(m.t)
	if s, err := disk.Inspect(dev.Path); err == nil && len(s.Table.Partitions) > 0 {
		if err := disk.Announce(ctx, dev.Path); err != nil {
			m.t.Fatal(err)
		}
	}
	part := layout.PartitionPath(m.image, 1)
	lookAround(m.t, dev, errors.New(strings.NewReplacer(part, dev.Path+"p1", m.image, dev.Path).Replace(advice)))
}

// do mounts the disk.
func (m *matrix) do(c matrixCell) {
	m.t.Helper()
	b := m.benches[c.table.preformatted]
	m.make(c)
	dev := looptest.Attach(m.t, m.image)
	defer dev.Release(m.t)
	m.replace(c, dev)
	m.know(b, dev.Path)
	b.Persistent.Resolver = m.devices
	got, before := isMounted, checksum(m.t, dev)
	b.CrashPoint = func(step string) {
		if step == string(decide.CreateTable) || step == string(decide.MakeFileSystem) {
			got = isFormatted
		}
	}
	err := b.Mount(context.Background(), "vol-1")
	if err != nil {
		got = isRefused
	}
	if got != c.want() {
		m.t.Errorf("%s: %s, want %s: %v", c, got, c.want(), err)
	}
	switch {
	case got == isRefused && checksum(m.t, dev) != before:
		m.t.Errorf("%s: refused, and changed", c)
	case got == isRefused:
		lookAround(m.t, dev, err)
	case got != isRefused && mountedSource(m.t, b.Dirs.Store()) == "":
		m.t.Errorf("%s: nothing is mounted", c)
	case got == isMounted && c.content.used && read(m.t, filepath.Join(b.Dirs.Store(), "data")) != matrixFile:
		m.t.Errorf("%s: the file is not what it was", c)
	case got == isMounted && c.damage.grown && bytesOf(m.t, b.Dirs.Store()) < c.size()*4/5:
		m.t.Errorf("%s: the file system has not grown", c)
	}
	if err == nil {
		b.ok(mount.Unmount(context.Background(), b.Dirs.Store()))
	}
}

// replace lets the agent plan the use of the disk as an ephemeral one: files are never replaced, and blank disks always
// are.
func (m *matrix) replace(c matrixCell, dev *looptest.Device) {
	m.t.Helper()
	if !c.content.used && c.content.make != nil {
		return
	}
	hint := settings.DiskHint{Path: dev.Path}
	_, err := m.other.Ephemeral.Setup(ctx, &hint, nil, "agent-1", false)
	blank := c.content.make == nil && c.table.script == ""
	if c.content.used && err == nil || blank && err != nil {
		m.t.Errorf("%s: as an ephemeral disk: %v", c, err)
	}
	if err != nil {
		lookAround(m.t, dev, err)
	}
}

var matrixFile = strings.Repeat("precious ", 10_000)

// bytesAt creates a volume with some bytes at an offset.
func bytesAt(offset int64, text string) func(testing.TB, string) {
	return func(t testing.TB, path string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt([]byte(text), offset)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// made creates a volume with a program.
func made(name string, args ...string) func(testing.TB, string) {
	return func(t testing.TB, path string) {
		t.Helper()
		cmd := exec.Command(name, append(args[:len(args):len(args)], path)...)
		cmd.Stdin = strings.NewReader("secret")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
	}
}

// withFile creates a file system that contains the file.
func withFile(kind string, args ...string) func(testing.TB, string) {
	return func(t testing.TB, path string) {
		t.Helper()
		dev := looptest.Attach(t, path)
		mkfs(t, dev.Path, kind, args...)
		filledBy(t, dev.Path, kind, func(dir string) { write(t, filepath.Join(dir, "data"), matrixFile) })
		dev.Release(t)
	}
}
