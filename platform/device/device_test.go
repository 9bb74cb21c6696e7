package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/blkdev"
	"cambium/internal/eventually"
)

func block(path string, n int) node {
	return node{Target: path, Number: blkdev.Number(n), Block: true, Settled: true}
}

const (
	cid   = "4d3f2a10-0000-4111-8222-123456789abc"
	azure = "{f8b3781b-1e82-4818-a1c3-63d806ec15bb}"
	vmbus = "/sys/devices/vmbus/f8b3781b"
)

// machine returns a snapshot with all kinds of disks.
func machine() snapshot {
	scsi := func(name, address, dir string, n int, holders ...string) disk {
		return disk{Name: name, Path: "/dev/" + name, Number: blkdev.Number(n), SCSI: address,
			Dir: dir + "/" + address + "/block/" + name, Holders: holders}
	}
	return snapshot{
		Nodes: map[string]node{
			"/dev/vdb": block("/dev/vdb", 2), "/dev/sdh": block("/dev/sdh", 8), "/dev/vdh": block("/dev/vdh", 9),
			"/dev/xvdf":                          block("/dev/nvme1n1", 10),
			"/dev/disk/by-id/virtio-" + cid[:20]: block("/dev/vdb", 2),
			"/dev/disk/by-id/scsi-4d3f2a10000041118222123456789abc":        block("/dev/sdd", 14),
			"/dev/disk/by-id/scsi-4d3f2a10000041118222123456789abc-part1":  block("/dev/sdd1", 15),
			"/dev/disk/by-id/wwn-0x4d3f2a10000041118222123456789abc":       block("/dev/sdd", 14),
			"/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_vol0a1b2c3d4": block("/dev/nvme1n1", 10),
			"/dev/disk/by-id/scsi-mpath600a":                               block("/dev/sde", 16),
			"/dev/disk/by-id/dm-uuid-mpath600a":                            block("/dev/mapper/m", 20),
			"/dev/disk/by-id/dup-twice":                                    block("/dev/sde", 16),
			"/dev/disk/by-id/dup2-twice":                                   block("/dev/sdd", 14),
			"/dev/disk/azure/data/by-lun/3":                                block("/dev/sdf", 17),
			"/warden/store":                                                {Target: "/warden/store"},
		},
		Disks: []disk{
			{Name: "vda", Path: "/dev/vda", Number: 1, Serial: ""},
			{Name: "vdb", Path: "/dev/vdb", Number: 2, Serial: cid[:20]},
			{Name: "vdc", Path: "/dev/vdc", Number: 3, Serial: "vol-7447851"},
			{Name: "dm-0", Path: "/dev/dm-0", Number: 20},
			scsi("sda", "2:0:0:0", "/sys/devices/pci/host2", 11), scsi("sdc", "2:0:3:0", "/sys/devices/pci/host2", 13),
			scsi("sdd", "3:0:3:0", "/sys/devices/pci/host3", 14), scsi("sde", "4:0:0:7", "/sys/devices/pci/host4", 16, "dm-0"),
			scsi("sdf", "5:0:0:0", vmbus+"/host5", 17), scsi("sdg", "6:0:0:0", "/sys/devices/vmbus/other/host6", 18),
		},
		VMBus: map[string]string{vmbus: azure, "/sys/devices/vmbus/other": "{00000000-0000-8899-0000-000000000000}"},
		Udev:  true,
	}
}

func TestMatchers(t *testing.T) {
	transform := regexp.MustCompile(`^vol-(.+)$`)
	uuid := regexp.MustCompile(`^(.{8})-(.{4})-(.{4})-(.{4})-(.{12})$`)
	path := func(p string) matcher { m, _ := mapped(p); return m }
	for _, c := range []struct {
		name     string
		match    matcher
		want     []string
		evidence string
	}{
		{"by id: serial cut to 20 characters", byID(cid, nil, ""), []string{"/dev/vdb"}, "serial " + cid[:20]},
		{"by id: short serial, exactly", byID("vol-7447851", nil, ""), []string{"/dev/vdc"}, "vdc(vol-7447851)"},
		{"by id: no such serial", byID("vol-7447852", nil, ""), nil,
			"looked for serial vol-7447852 among vdb(" + cid[:20] + "), vdc(vol-7447851)"},
		{"by id: transform AWS", byID("vol-0a1b2c3d4", transform, "nvme-Amazon_Elastic_Block_Store_vol${1}"),
			[]string{"/dev/nvme1n1"}, "nvme-Amazon"},
		{"by id: transform OpenStack", byID(cid, uuid, "scsi-${1}${2}${3}${4}${5}"),
			[]string{"/dev/sdd", "/dev/vdb"}, "scsi-4d3f"},
		{"by id: pattern does not match", byID("other", transform, "x${1}"), nil, "/dev/disk/by-id/other"},
		{"mapped: sd means vd", path("/dev/sdb"), []string{"/dev/vdb"}, ""},
		{"mapped: vd before sd", path("/dev/sdh"), []string{"/dev/vdh"}, ""},
		{"mapped: xvd before all, links followed", path("/dev/sdf"), []string{"/dev/nvme1n1"}, ""},
		{"mapped: other path", path("/dev/disk/by-id/scsi-mpath600a"), []string{"/dev/sde"}, ""},
		{"mapped: missing", path("/dev/sdz"), nil, "/dev/xvdz, /dev/vdz, /dev/sdz: none of them exists"},
		{"identity: directory", identity("/warden/store"), []string{"/warden/store"}, ""},
		{"identity: missing", identity("/dev/nope"), nil, "/dev/nope does not exist"},
		{"scsi id: several links to one disk", scsiID(cid), []string{"/dev/sdd"}, ""},
		{"scsi id: multipath, not its paths", scsiID("mpath600a"), []string{"/dev/mapper/m"}, ""},
		{"scsi id: ambiguous", scsiID("twice"), []string{"/dev/sde", "/dev/sdd"}, ""},
		{"scsi volume: on the first disk's host only", scsiVolume("3"), []string{"/dev/sdc"}, "target 3"},
		{"scsi volume: missing", scsiVolume("9"), nil, "looked for SCSI target 9"},
		{"scsi lun: below its controller", scsiLUN("0", azure), []string{"/dev/sdf"}, ""},
		{"scsi lun: braces in another case", scsiLUN("0", strings.ToUpper(azure)), []string{"/dev/sdf"}, ""},
		{"scsi lun: no such controller", scsiLUN("0", "{none}"), nil, "vmbus device {none} (none)"},
		{"lun link", lunLink("/dev/disk/azure/data/by-lun", "3"), []string{"/dev/sdf"}, ""},
		{"lun link: missing", lunLink("/dev/disk/azure/data/by-lun", "4"), nil, "by-lun/4 does not exist"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found, evidence := c.match(machine())
			var got []string
			for _, n := range distinct(found) {
				got = append(got, n.Target)
			}
			if len(got) != len(c.want) {
				t.Fatalf("found %v, want %v", got, c.want)
			}
			for _, w := range c.want {
				if !strings.Contains(strings.Join(got, " ")+" ", w+" ") {
					t.Errorf("found %v, want %v", got, c.want)
				}
			}
			if !strings.Contains(evidence, c.evidence) {
				t.Errorf("evidence %q, want %q", evidence, c.evidence)
			}
		})
	}
}

func TestTwoControllersAreAmbiguous(t *testing.T) {
	s := machine()
	s.Disks = append(s.Disks, disk{Name: "sdx", Path: "/dev/sdx", Number: 30, SCSI: "3:0:0:0"})
	found, _ := scsiVolume("3")(s)
	if len(distinct(found)) != 2 {
		t.Errorf("found %v, want both targets 3", found)
	}
}

func quiet() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

func resolver(t testing.TB, o Options) *Resolver {
	t.Helper()
	r, err := New(o, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestAnswers: each failure has its own error with evidence, and no result has an empty path.
func TestAnswers(t *testing.T) {
	root := t.TempDir()
	r := func(o Options) *Resolver {
		o.Root, o.TimeoutScale = root, 0.002
		return resolver(t, o)
	}
	for _, c := range []struct {
		name string
		r    *Resolver
		hint Hint
		want error
		text string
	}{
		{"virtio: nothing named", r(Options{Type: "virtio"}), Hint{}, ErrAbsent, "nothing that device path resolution type"},
		{"virtio: never appears", r(Options{Type: "virtio"}), Hint{CID: cid, Path: "/dev/sdd"}, ErrTimedOut,
			"/dev/xvdd, /dev/vdd, /dev/sdd: none of them exists"},
		{"virtio: relative path", r(Options{Type: "virtio"}), Hint{Path: "sdd"}, ErrAbsent, "not absolute"},
		{"identity: missing", r(Options{}), Hint{Path: "/dev/sdd"}, ErrTimedOut, "/dev/sdd does not exist"},
		{"identity: empty (D.14)", r(Options{}), Hint{CID: "x"}, ErrAbsent, "nothing"},
		{"scsi: no field", r(Options{Type: "scsi"}), Hint{CID: "x", Path: "/dev/sdc"}, ErrAbsent, "nothing"},
		{"scsi volume: never appears", r(Options{Type: "scsi"}), Hint{VolumeID: "3"}, ErrTimedOut, "SCSI hosts rescanned"},
		{"scsi lun: never appears", r(Options{Type: "scsi"}), Hint{LUN: "0", HostDeviceID: azure}, ErrTimedOut, "LUN 0"},
		{"iscsi", r(Options{Type: "iscsi"}), Hint{CID: "x", ISCSI: true}, ErrAbsent, "iSCSI disks are not supported"},
		{"iscsi: whatever the type (D.17)", r(Options{Type: "virtio"}), Hint{CID: cid, ISCSI: true}, ErrAbsent,
			"iSCSI disks are not supported"},
		{"iscsi: a path comes first", r(Options{Type: "iscsi"}), Hint{Path: "/dev/sdd", ISCSI: true}, ErrTimedOut,
			"/dev/sdd does not exist"},
		{"lun link: never appears", r(Options{LUNLinks: "/dev/by-lun"}), Hint{LUN: "3"}, ErrTimedOut,
			"/dev/by-lun/3 does not exist"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := c.r.Resolve(context.Background(), c.hint)
			if !errors.Is(err, c.want) || d.Path != "" {
				t.Fatalf("Resolve = %+v, %v; want %v", d, err, c.want)
			}
			if !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %q, want %q", err, c.text)
			}
			if _, err := c.r.ResolveOnce(c.hint); !errors.Is(err, ErrAbsent) {
				t.Errorf("Look = %v, want ErrAbsent", err)
			}
		})
	}
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(10*time.Millisecond, cancel)
		slow := resolver(t, Options{Root: root})
		if _, err := slow.Resolve(ctx, Hint{Path: "/dev/sdd"}); !errors.Is(err, context.Canceled) {
			t.Errorf("Resolve = %v, want it canceled", err)
		}
	})
	t.Run("bad pattern", func(t *testing.T) {
		for _, o := range []Options{{IDPattern: "("}, {ManagedVolumePattern: "[", InstanceStoragePattern: "/dev/nvme*n1"}} {
			if _, err := New(o, quiet()); err == nil {
				t.Errorf("New(%+v) took a bad pattern", o)
			}
		}
	})
}

// TestSCSIHostsAreRescanned: all SCSI hosts are rescanned, since the hint may be for a disk that was just attached.
func TestSCSIHostsAreRescanned(t *testing.T) {
	root := t.TempDir()
	scans := []string{filepath.Join(root, "sys/class/scsi_host/host0/scan"),
		filepath.Join(root, "sys/class/scsi_host/host7/scan")}
	for _, scan := range scans {
		if err := errors.Join(os.MkdirAll(filepath.Dir(scan), 0o755), os.WriteFile(scan, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, hint := range []Hint{{DeviceID: cid}, {VolumeID: "3"}, {LUN: "0", HostDeviceID: azure}} {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			_, err := resolver(t, Options{Type: "scsi", Root: root}).Resolve(ctx, hint)
			ended <- err
		}()
		for _, scan := range scans {
			eventually.True(t, fmt.Sprintf("%v: a request to %s", hint, scan), func() bool {
				got, err := os.ReadFile(scan)
				return err == nil && string(got) == "- - -"
			})
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%v: Resolve = %v", hint, err)
		}
		for _, scan := range scans {
			if err := os.WriteFile(scan, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestLimitsAreAtLeastThoseOfTheReference(t *testing.T) {
	r := resolver(t, Options{Type: "virtio"})
	for _, c := range []struct {
		o    Options
		h    Hint
		want time.Duration
	}{
		{Options{Type: "virtio"}, Hint{CID: cid, Path: "/dev/sdb"}, 30500 * time.Millisecond},
		{Options{Type: "scsi"}, Hint{DeviceID: cid}, 50 * time.Second},
		{Options{Type: "scsi"}, Hint{VolumeID: "3"}, 15 * time.Second},
		{Options{Type: "scsi"}, Hint{LUN: "0", HostDeviceID: azure}, 50 * time.Second},
	} {
		r.options.Type = c.o.Type
		s, err := r.search(c.h)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.stages[len(s.stages)-1].limit; got < c.want {
			t.Errorf("%s %v: limit %v, want at least %v", c.o.Type, c.h, got, c.want)
		}
	}
}

// TestResolveWaitsForTheNode: an event ends the wait. Directories take the place of device nodes.
func TestResolveWaitsForTheNode(t *testing.T) {
	root := t.TempDir()
	r := resolver(t, Options{Root: root})
	path := filepath.Join(root, "dev/late/node")
	time.AfterFunc(30*time.Millisecond, func() {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Error(err)
		}
	})
	begin := time.Now()
	d, err := r.Resolve(context.Background(), Hint{Path: "/dev/late/node"})
	if err != nil || !d.Directory || d.Path != path {
		t.Fatalf("Resolve = %+v, %v", d, err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("took %v: no event woke it", took)
	}
}

// TestGraceForIdentity: a path is accepted at once only if nothing better can appear.
func TestGraceForIdentity(t *testing.T) {
	r := resolver(t, Options{Type: "virtio"})
	s, err := r.search(Hint{CID: cid, Path: "/dev/sdh"})
	if err != nil {
		t.Fatal(err)
	}
	last := s.stages[len(s.stages)-1]
	if last.grace != pathLimit {
		t.Errorf("grace %v, want %v", last.grace, pathLimit)
	}
	s, err = r.search(Hint{Path: "/dev/sdh"})
	if err != nil || s.stages[0].grace != 0 {
		t.Errorf("a disk without CID waits %v (%v), want no wait", s.stages[0].grace, err)
	}
}

// TestPick: the result of a hint at once, and at its deadline. A path that leads to another disk is never accepted, and
// one without an identity only if that cannot appear any more.
func TestPick(t *testing.T) {
	other, luns := []string{cid}, Options{LUNLinks: "/dev/disk/azure/data/by-lun"}
	virtio, scsi := Options{Type: "virtio"}, Options{Type: "scsi"}
	const waits = "waiting for udev to confirm /dev/vdh"
	unsettled := func(s *snapshot) { s.Nodes["/dev/vdh"] = node{Target: "/dev/vdh", Number: 9, Block: true} }
	noUdev := func(s *snapshot) { s.Udev = false }
	for _, c := range []struct {
		name      string
		options   Options
		hint      Hint
		change    func(*snapshot)
		now, late string
		evidence  string
		fails     error
	}{
		{"no others are known", virtio, Hint{CID: "vol-b", Path: "/dev/sdb"}, nil, "/dev/vdb", "/dev/vdb", "", nil},
		{"the path is another disk", virtio, Hint{CID: "vol-b", Path: "/dev/sdb", Others: other}, nil, "", "",
			"/dev/vdb is disk " + cid, nil},
		{"the path is another disk, without udev", virtio, Hint{CID: "vol-b", Path: "/dev/sdb", Others: other}, noUdev,
			"", "", "/dev/vdb is disk " + cid, nil},
		{"others have identifiers", virtio, Hint{CID: "vol-b", Path: "/dev/sdh", Others: other}, nil, "", "/dev/vdh",
			waits, nil},
		{"others have identifiers, and the path is one", virtio, Hint{CID: "vol-b",
			Path: "/dev/disk/by-id/dup-twice", Others: other}, nil, "/dev/sde", "/dev/sde", "", nil},
		{"the path is the identifier of another disk", virtio, Hint{CID: "vol-b",
			Path: "/dev/disk/by-id/virtio-" + cid[:20], Others: other}, nil, "", "", "/dev/vdb is disk " + cid, nil},
		{"others have identifiers, without udev", virtio, Hint{CID: "vol-b", Path: "/dev/sdh", Others: other}, noUdev,
			"/dev/vdh", "/dev/vdh", "", nil},
		{"others have none", virtio, Hint{CID: "vol-b", Path: "/dev/sdh", Others: []string{"vol-c"}}, nil,
			"/dev/vdh", "/dev/vdh", "", nil},
		{"udev is at work on it", virtio, Hint{CID: "vol-b", Path: "/dev/sdh"}, unsettled, "", "/dev/vdh", waits, nil},
		{"its identifier is there", virtio, Hint{CID: "vol-7447851", Path: "/dev/sdb", Others: other}, nil,
			"/dev/vdc", "/dev/vdc", "", nil},
		{"paths are all there is", Options{}, Hint{CID: "vol-b", Path: "/dev/vdb", Others: other}, nil,
			"/dev/vdb", "/dev/vdb", "", nil},
		{"two disks have the identifier", scsi, Hint{DeviceID: "twice"}, nil, "", "", "found /dev/sde and /dev/sdd",
			ErrAmbiguous},
		{"a link by LUN", luns, Hint{LUN: "3", Path: "/dev/sdh"}, nil, "/dev/sdf", "/dev/sdf", "", nil},
		{"no link by LUN yet", luns, Hint{LUN: "4", Path: "/dev/vdh"}, nil, "", "/dev/vdh", waits, nil},
		{"no link by LUN yet, and the path is an identifier", luns, Hint{LUN: "4", Path: "/dev/disk/by-id/dup-twice"},
			nil, "", "/dev/sde", "waiting for udev to confirm /dev/sde", nil},
		{"no link by LUN will come", luns, Hint{LUN: "4", Path: "/dev/vdh"}, noUdev, "/dev/vdh", "/dev/vdh", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := resolver(t, c.options)
			s, err := r.search(c.hint)
			if err != nil {
				t.Fatal(err)
			}
			snapshot := machine()
			if c.change != nil {
				c.change(&snapshot)
			}
			now, trace, err := r.pick(snapshot, s, c.hint, 0)
			evidence := strings.Join(trace, "; ")
			if !errors.Is(err, c.fails) || now.Path != c.now || !strings.Contains(evidence, c.evidence) {
				t.Errorf("at once %q (%v, %v), want %q", now.Path, trace, err, c.now)
			}
			if late, _, err := r.pick(snapshot, s, c.hint, time.Hour); !errors.Is(err, c.fails) || late.Path != c.late {
				t.Errorf("at the deadline %q (%v), want %q", late.Path, err, c.late)
			}
		})
	}
}

func TestSnapshotFromSysfs(t *testing.T) {
	root := t.TempDir()
	mk := func(path, content string) {
		t.Helper()
		full := filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(full), 0o755),
			os.WriteFile(full, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, path string) {
		t.Helper()
		full := filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(full), 0o755),
			os.Symlink(filepath.Join(root, target), full)); err != nil {
			t.Fatal(err)
		}
	}
	mk("sys/devices/vmbus/f8/host5/target5:0:0/5:0:0:3/block/sdf/size", "2048\n")
	mk("sys/devices/vmbus/f8/device_id", azure+"\n")
	mk("sys/devices/pci/virtio1/block/vdb/serial", "abc\n")
	mk("sys/devices/pci/virtio1/block/vdb/holders/dm-0/x", "")
	link("sys/devices/vmbus/f8/host5/target5:0:0/5:0:0:3/block/sdf", "sys/block/sdf")
	link("sys/devices/pci/virtio1/block/vdb", "sys/block/vdb")
	link("sys/devices/vmbus/f8", "sys/bus/vmbus/devices/f8")
	mk("dev/disk/by-id/x", "")
	s, err := observe(root, search{links: []string{"/dev/disk/by-id", "/dev/disk/none"}, paths: []string{"/dev/none"},
		disks: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Disks) != 2 || s.Disks[0].SCSI != "5:0:0:3" || s.Disks[1].Serial != "abc" || len(s.Disks[1].Holders) != 1 {
		t.Errorf("disks %+v", s.Disks)
	}
	if len(s.VMBus) != 1 || len(s.Nodes) != 1 || s.Udev {
		t.Errorf("snapshot %+v", s)
	}
}
