package device

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"

	"cambium/internal/atomicfile"
	"cambium/internal/blkdev"
)

// snapshot holds all facts that matchers use, read at one time.
type snapshot struct {
	// Nodes maps the paths of the search, and the links in its directories, to their targets.
	Nodes map[string]node
	Disks []disk
	// VMBus maps a Hyper-V device's sysfs directory to its device_id.
	VMBus map[string]string
	// Udev is false if udev is not running, so that links will never appear.
	Udev bool
}

// node describes the target of a path in /dev.
type node struct {
	Target string // the path with all links followed
	Number blkdev.Number
	Block  bool
	// Settled is set if udev has processed the device, so that all its links exist.
	Settled bool
}

// disk is a whole disk according to sysfs.
type disk struct {
	Name    string
	Path    string
	Number  blkdev.Number
	Serial  string
	Dir     string // below /sys/devices
	SCSI    string // host:channel:target:lun, or empty
	Holders []string
}

// anonymous matches devices without a serial number, which no IaaS uses. A machine has dozens of them.
var anonymous = regexp.MustCompile(`^(loop|ram|zram)\d+$`)

var scsiAddress = regexp.MustCompile(`/(\d+:\d+:\d+:\d+)/block/[^/]+$`)

// observe takes a snapshot of the facts that the search needs.
func observe(root string, of search) (snapshot, error) {
	s := snapshot{Nodes: map[string]node{}, VMBus: map[string]string{}}
	s.Udev = atomicfile.Exists(filepath.Join(root, "run/udev"))
	paths := slices.Clone(of.paths)
	for _, dir := range of.links {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			continue // not there yet
		}
		for _, e := range entries {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	for _, p := range paths {
		if n, ok := s.findNode(root, p); ok {
			s.Nodes[p] = n
		}
	}
	if !of.disks {
		return s, nil
	}
	disks, err := filepath.Glob(filepath.Join(root, "sys/block/*"))
	if err != nil {
		return s, err
	}
	for _, link := range disks {
		if anonymous.MatchString(filepath.Base(link)) {
			continue
		}
		if d, ok := readDisk(root, link); ok {
			s.Disks = append(s.Disks, d)
		}
	}
	sort.Slice(s.Disks, func(i, j int) bool { return s.Disks[i].Name < s.Disks[j].Name })
	ids, err := filepath.Glob(filepath.Join(root, "sys/bus/vmbus/devices/*/device_id"))
	if err != nil {
		return s, err
	}
	for _, file := range ids {
		dir, err := filepath.EvalSymlinks(filepath.Dir(file))
		if err != nil {
			continue // removed meanwhile
		}
		s.VMBus[dir] = readText(file)
	}
	return s, nil
}

func (s *snapshot) findNode(root, path string) (node, bool) {
	real := filepath.Join(root, path)
	if root != "/" {
		target, err := filepath.EvalSymlinks(real)
		if err != nil {
			return node{}, false
		}
		real = target
	}
	target, err := Canonical(real)
	if err != nil {
		return node{}, false
	}
	n := node{Target: target}
	if number, err := blkdev.NumberOf(target); err == nil {
		n.Block, n.Number = true, number
		n.Settled = atomicfile.Exists(filepath.Join(root, "run/udev/data", "b"+number.String()))
	}
	return n, true
}

func readDisk(root, link string) (disk, bool) {
	info, err := blkdev.Read(link)
	if err != nil {
		return disk{}, false
	}
	d := disk{Name: info.Name, Path: filepath.Join(root, "dev", info.Name), Dir: info.Dir, Serial: info.Serial,
		Holders: info.Holders}
	d.Number, _ = blkdev.NumberOf(d.Path) // without a node, the disk does not match yet
	if m := scsiAddress.FindStringSubmatch(info.Dir); m != nil {
		d.SCSI = m[1]
	}
	return d, true
}

func readText(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
