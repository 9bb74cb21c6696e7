//go:build vm && !root

package storage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cambium/internal/atomicfile"
	"cambium/internal/vcap"
	"cambium/lab/testvm"
	"cambium/platform/device"
	"cambium/platform/disk/layout"
	"cambium/platform/mount"
	"cambium/settings"
)

// TestVMPowerCut kills virtual machines at random moments of mount_disk on a blank disk and of a migration.
// What the guest's kernel had not handed to the disks is lost. The next boot must bring the sequence to its
// end, with every file as it was.
func TestVMPowerCut(t *testing.T) { powerCut(t, 1) }

func powerCut(t *testing.T, count int) {
	testvm.Needs(t, "mkfs.ext4", "sfdisk", "sgdisk", "e2fsck", "ldd", "cp")
	dir := t.TempDir()
	image := testvm.Machine{Modules: []string{"virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk"},
		Programs: []string{"mkfs.ext4", "e2fsck"}}.Image(t)
	tree := filepath.Join(dir, "tree")
	userTree(t, tree)
	sum, err := sumOf(tree)
	if err != nil {
		t.Fatal(err)
	}
	testvm.Host(t, "sh", "-ec", `cd "$0"; truncate -s 24M records; truncate -s 96M new; truncate -s 128M old; mkfs.ext4 -q -F records
printf 'label: gpt\nstart=2048, name="bosh-partition-0"\n' | sfdisk -q old; mkfs.ext4 -q -F -d tree -E offset=1048576 old 120m`, dir)
	for _, flow := range []string{"mount", "migrate"} {
		t.Run(flow, func(t *testing.T) {
			p := &powered{t: t, dir: dir, image: image, flow: flow, sum: sum}
			p.renew()
			took, done := p.boot(0)
			if !done {
				t.Fatal("the sequence does not end even with power")
			}
			for n := range count {
				after := 1 + time.Duration(rand.Int64N(int64(took)))
				t.Run(fmt.Sprintf("%d after %v", n, after.Round(time.Millisecond)), func(t *testing.T) {
					p := *p
					p.t = t
					p.renew()
					_, ended := p.boot(after)
					if _, done := p.boot(0); !done {
						t.Fatal("the sequence does not end after the power cut")
					}
					t.Logf("before the power cut it had ended: %v", ended)
					testvm.Host(t, "sh", "-ec", `sgdisk --verify "$0" | grep -q 'No problems found'; e2fsck -nf "$0?offset=1048576"`, filepath.Join(dir, "run-new"))
				})
			}
		})
	}
}

// userTree makes a user's files.
func userTree(t *testing.T, dir string) {
	t.Helper()
	for n := range 60 {
		write(t, filepath.Join(dir, fmt.Sprint("d", n%7), fmt.Sprint(n)), strings.Repeat(fmt.Sprint(n), 700*n))
	}
	write(t, filepath.Join(dir, "large"), strings.Repeat("0123456789abcdef", 3<<16*4))
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o640)); err != nil {
		t.Fatal(err)
	}
}

// powered is a machine that may lose its power.
type powered struct {
	t              *testing.T
	image          testvm.Image
	dir, flow, sum string
}

var poweredDisks = []string{"records", "old", "new"}

// renew gives the disks their state from before the first boot.
func (p *powered) renew() {
	p.t.Helper()
	for _, name := range poweredDisks {
		testvm.Host(p.t, "cp", "--sparse=always", filepath.Join(p.dir, name), filepath.Join(p.dir, "run-"+name))
	}
}

// boot runs the machine until its sequence has ended or, if cut is not 0, until so long after its begin. It
// reports how long the sequence took and whether it ended.
func (p *powered) boot(cut time.Duration) (took time.Duration, done bool) {
	p.t.Helper()
	var qemu []string
	for _, name := range poweredDisks {
		qemu = append(qemu, "-drive", "if=none,id="+name+",format=raw,cache=directsync,file="+filepath.Join(p.dir, "run-"+name),
			"-device", "virtio-blk-pci,serial=vol-"+name+",drive="+name)
	}
	var begin time.Time
	log := p.image.Boot(p.t, qemu, []string{"CAMBIUM_FLOW=" + p.flow, "CAMBIUM_SUM=" + p.sum}, func(word, rest string, off func()) {
		switch {
		case word == "FAIL":
			p.t.Error(rest)
		case word == "ASK" && rest == "start":
			begin = time.Now()
			if cut > 0 {
				time.AfterFunc(cut, off)
			}
		case word == "ASK" && rest == "done":
			took = time.Since(begin)
		case word == "PASS":
			done = true
		}
	})
	if begin.IsZero() || cut == 0 && !done {
		p.t.Fatalf("the machine did not get far:\n%s", log)
	}
	return took, done
}

// sumOf is over the names, modes and content of a tree.
func sumOf(dir string) (string, error) {
	all := sha256.New()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if rel == "lost+found" {
			return fs.SkipDir
		}
		if e.IsDir() {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil {
			fmt.Fprintf(all, "%s %v %x\n", rel, info.Mode(), sha256.Sum256(content))
		}
		return err
	})
	return fmt.Sprintf("%x", all.Sum(nil)), err
}

// guestFlow is what the machine with the power cuts does at every boot, as the agent would:
// first what is on record, then what the Director asks for again.
func guestFlow(ctx context.Context, flow, sum string) error {
	r, err := device.New(device.Options{Type: "virtio"}, guestLog())
	if err != nil {
		return err
	}
	dirs := vcap.New("")
	records, err := r.Resolve(ctx, device.Hint{CID: "vol-records"})
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(dirs.Bosh(), 0o755), mount.Device(ctx, records.Path, dirs.Bosh(), "ext4", nil)); err != nil {
		return err
	}
	kept := &durableRecords{path: filepath.Join(dirs.Bosh(), "mounted")}
	kept.disks = map[string]settings.PersistentDisk{}
	for _, cid := range []string{"vol-old", "vol-new"} {
		kept.disks[cid] = settings.PersistentDisk{CID: cid, Hint: settings.DiskHint{Path: "/dev/sdz"}}
	}
	d := New(Config{Dirs: dirs, Resolver: r, Records: kept, Program: "/proc/self/exe", Log: guestLog()})
	testvm.Ask("start")
	if err := boot(d); err != nil {
		return err
	}
	if flow == "mount" {
		err = d.Persistent.Mount(ctx, "vol-new")
	} else {
		// A reboot in the middle must have brought back a whole store, whichever disk it is.
		if _, there, _ := mount.At(dirs.Store()); there {
			if got, err := sumOf(dirs.Store()); err != nil || got != sum {
				return fmt.Errorf("with %q on record the store is not whole (%v)", kept.onRecord(), err)
			}
		}
		if kept.onRecord() != "vol-new" {
			if err := errors.Join(d.Persistent.Mount(ctx, "vol-old"), d.Persistent.Mount(ctx, "vol-new")); err != nil {
				return err
			}
		}
		err = d.Migration.Migrate(ctx, "", "")
	}
	if err != nil {
		return err
	}
	testvm.Ask("done")
	store, there, err := mount.At(dirs.Store())
	if err != nil || !there {
		return fmt.Errorf("nothing is on the store (%v)", err)
	}
	fresh, err := r.Resolve(ctx, device.Hint{CID: "vol-new"})
	if err != nil || store.Source != layout.PartitionPath(fresh.Path, 1) || kept.onRecord() != "vol-new" {
		return fmt.Errorf("the store is %s with %q on record, want the new disk (%v)", store.Source, kept.onRecord(), err)
	}
	if flow == "migrate" {
		if got, err := sumOf(dirs.Store()); err != nil || got != sum {
			return fmt.Errorf("the files are not what they were (%v)", err)
		}
	}
	return errors.Join(mount.Unmount(ctx, dirs.Store()), mount.Unmount(ctx, dirs.StoreMigrationTarget()), mount.Unmount(ctx, dirs.Bosh()))
}

// durableRecords keep the disk on record as the agent's store does.
type durableRecords struct {
	records
	path string
}

func (r *durableRecords) MountedCID() (string, error) {
	data, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(data), err
}

func (r *durableRecords) onRecord() string {
	cid, _ := r.MountedCID()
	return cid
}
func (r *durableRecords) SetMountedCID(cid string) error {
	return atomicfile.Write(r.path, []byte(cid), 0o600)
}
func (r *durableRecords) ClearMountedCID() error { return os.Remove(r.path) }
