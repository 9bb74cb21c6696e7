//go:build root

package device

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/blkdev"
	"cambium/internal/looptest"
)

// tree is a root directory with nodes of loop devices.
type tree struct {
	t    testing.TB
	root string
}

func (r tree) node(path string, n blkdev.Number) {
	r.t.Helper()
	full := filepath.Join(r.root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(full), 0o755),
		unix.Mknod(full, unix.S_IFBLK|0o600, int(n))); err != nil {
		r.t.Fatal(err)
	}
}

func (r tree) link(target, path string) {
	r.t.Helper()
	full := filepath.Join(r.root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(full), 0o755), os.Symlink(target, full)); err != nil {
		r.t.Fatal(err)
	}
}

func (r tree) settle(n blkdev.Number) {
	r.t.Helper()
	dir := filepath.Join(r.root, "run/udev/data")
	if err := errors.Join(os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "b"+n.String()), nil, 0o600)); err != nil {
		r.t.Fatal(err)
	}
}

func numbers(t testing.TB, count int) (all []blkdev.Number) {
	t.Helper()
	for range count {
		n, err := blkdev.NumberOf(looptest.New(t, 1<<20).Path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}

// TestRootVirtioPrefersIdentity: the disk with the CID wins over the one at the path, even if its link appears while
// udev is still processing the other one.
func TestRootVirtioPrefersIdentity(t *testing.T) {
	n := numbers(t, 2)
	for name, late := range map[string]bool{"link there": false, "link comes late": true} {
		t.Run(name, func(t *testing.T) {
			r := tree{t, t.TempDir()}
			r.node("dev/vdb", n[0])
			r.node("dev/vdc", n[1])
			made := make(chan struct{})
			link := func() { r.link("../../vdc", "dev/disk/by-id/virtio-"+cid); close(made) }
			if late {
				if err := os.MkdirAll(filepath.Join(r.root, "run/udev/data"), 0o755); err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(5*time.Millisecond, link)
			} else {
				link()
			}
			d, err := resolver(t, Options{Type: "virtio", Root: r.root}).Resolve(context.Background(),
				Hint{CID: cid, Path: "/dev/sdb"})
			if err != nil || d.Number != n[1] || d.Path != filepath.Join(r.root, "dev/vdc") {
				t.Errorf("Resolve = %+v, %v; want vdc, which carries the CID", d, err)
			}
			<-made
		})
	}
}

// TestRootLateController: a Hyper-V controller and its disk may appear after the search has begun.
func TestRootLateController(t *testing.T) {
	n := numbers(t, 1)
	r := tree{t, t.TempDir()}
	if err := os.Mkdir(filepath.Join(r.root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(20*time.Millisecond, func() {
		controller := filepath.Join(r.root, "sys/devices/vmbus/f8")
		disk := filepath.Join(controller, "host5/target5:0:0/5:0:0:3/block/sdf")
		if err := errors.Join(os.MkdirAll(disk, 0o755),
			os.WriteFile(filepath.Join(controller, "device_id"), []byte(azure+"\n"), 0o600)); err != nil {
			t.Error(err)
		}
		r.link(controller, "sys/bus/vmbus/devices/f8")
		r.link(disk, "sys/block/sdf")
		r.node("dev/sdf", n[0])
	})
	d, err := resolver(t, Options{Type: "scsi", Root: r.root}).Resolve(context.Background(),
		Hint{LUN: "3", HostDeviceID: azure})
	if err != nil || d.Number != n[0] {
		t.Errorf("Resolve = %+v, %v; want the disk of the late controller", d, err)
	}
}

func TestRootHotPlug(t *testing.T) {
	n := numbers(t, 1)
	r := tree{t, t.TempDir()}
	if err := os.Mkdir(filepath.Join(r.root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { r.node("dev/xvdf", n[0]) })
	begin := time.Now()
	d, err := resolver(t, Options{Type: "virtio", Root: r.root}).Resolve(context.Background(), Hint{Path: "/dev/sdf"})
	if err != nil || d.Number != n[0] {
		t.Fatalf("Resolve = %+v, %v", d, err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("took %v after the node appeared", took)
	}
}

// Contract D.14: a link whose target is a bare name must not become a path of its own.
func TestRootD14RelativeLinks(t *testing.T) {
	n := numbers(t, 1)
	r := tree{t, t.TempDir()}
	r.node("dev/nvme1n1", n[0])
	r.link("nvme1n1", "dev/xvdba")
	r.link("xvdba", "dev/other")
	for _, path := range []string{"/dev/sdba", "/dev/xvdba", "/dev/other"} {
		d, err := resolver(t, Options{Type: "virtio", Root: r.root}).Resolve(context.Background(), Hint{Path: path})
		if want := filepath.Join(r.root, "dev/nvme1n1"); err != nil || d.Path != want || d.Number != n[0] {
			t.Errorf("%s: Resolve = %+v, %v; want %s", path, d, err, want)
		}
	}
}

// TestRootPresentLeavesOutPartitions: no path of a partition is listed, whatever its name is.
func TestRootPresentLeavesOutPartitions(t *testing.T) {
	n := numbers(t, 2)
	r := tree{t, t.TempDir()}
	r.node("dev/sdz", n[0])
	r.node("dev/part", n[1])
	r.link("../../part", "dev/disk/by-label/data")
	dir := filepath.Join(r.root, "sys/dev/block", n[1].String())
	err := os.MkdirAll(dir, 0o755)
	if err := errors.Join(err, os.WriteFile(filepath.Join(dir, "partition"), []byte("1\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if got, want := Present(r.root), []string{filepath.Join(r.root, "dev/sdz")}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRootInstanceStorage(t *testing.T) {
	n := numbers(t, 3)
	r := tree{t, t.TempDir()}
	for i, name := range []string{"nvme0n1", "nvme1n1", "nvme2n1"} {
		r.node("dev/"+name, n[i])
	}
	o := Options{Root: r.root, ManagedVolumePattern: "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_*",
		TimeoutScale: 0.01}
	r.link("../../nvme1n1", "dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_vol1")
	got, err := resolver(t, o).InstanceStorage(context.Background(), 2)
	if err != nil || len(got) != 2 || got[0].Number != n[0] || got[1].Number != n[2] {
		t.Errorf("InstanceStorage = %+v, %v; want the first and the third", got, err)
	}
	if got, err := resolver(t, o).InstanceStorage(context.Background(), 3); err == nil {
		t.Errorf("InstanceStorage(3) = %+v, want an error: one is a volume", got)
	}
	// While udev has not dealt with every device, a volume could still lack its link.
	for i := range 2 {
		r.settle(n[i])
	}
	if got, err := resolver(t, o).InstanceStorage(context.Background(), 2); !errors.Is(err, ErrTimedOut) {
		t.Errorf("InstanceStorage = %+v, %v; want to wait for udev", got, err)
	}
	r.settle(n[2])
	if got, err := resolver(t, o).InstanceStorage(context.Background(), 2); err != nil {
		t.Errorf("InstanceStorage = %+v, %v", got, err)
	}
}
