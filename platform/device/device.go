// Package device finds the block device for a CPI's hint. Matchers are pure functions of a snapshot of /sys and /dev,
// which is taken again whenever the kernel or udev reports a change, until a deadline. A lookup can fail in three ways
// (absent, timed out, ambiguous); each error contains what was looked for and which disks exist. The package does not
// use settings and never writes to a device.
package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/internal/atomicfile"
	"cambium/internal/blkdev"
	"cambium/internal/watch"
)

// Reasons why a disk was not found.
var (
	ErrAbsent    = errors.New("not found")
	ErrTimedOut  = errors.New("timed out")
	ErrAmbiguous = errors.New("ambiguous")
)

// NotFoundError is the error of a failed lookup. It wraps one of the reasons above.
type NotFoundError struct {
	Reason error
	Hint   Hint
	Waited time.Duration
	Trace  []string
}

func (e *NotFoundError) Error() string {
	reason := e.Reason.Error()
	if errors.Is(e.Reason, ErrTimedOut) {
		reason = fmt.Sprintf("timed out after %v", e.Waited.Round(100*time.Millisecond))
	}
	return fmt.Sprintf("find disk %s: %s: %s", e.Hint, reason, strings.Join(e.Trace, "; "))
}

func (e *NotFoundError) Unwrap() error { return e.Reason }

// Hint holds the names and addresses by which to find a disk.
type Hint struct {
	CID          string
	Path         string
	VolumeID     string
	DeviceID     string
	LUN          string
	HostDeviceID string
	ISCSI        bool
	// Others lists the CIDs of other disks. A path that leads to one of them is rejected.
	Others []string
}

func (h Hint) String() string {
	var parts []string
	for _, f := range []struct{ name, value string }{
		{"", h.CID}, {"path ", h.Path}, {"volume ", h.VolumeID}, {"id ", h.DeviceID},
		{"lun ", h.LUN}, {"controller ", h.HostDeviceID},
	} {
		if f.value != "" && (f.name != "volume " || f.value != h.Path) {
			parts = append(parts, f.name+f.value)
		}
	}
	if len(parts) == 0 {
		return "(empty hint)"
	}
	return strings.Join(parts, ", ")
}

// Device is an existing disk.
type Device struct {
	Path   string // canonical
	Number blkdev.Number
	// Directory is set for a directory that is used as a disk by bind mount.
	Directory bool
	// Identified is set if the disk was found by an identifier of its own, rather than by a location such as a path or
	// LUN.
	Identified bool
}

// Options configures how hints are resolved, as in the stemcell's agent.json.
type Options struct {
	Type                   string // "virtio", "scsi" or "iscsi"; otherwise paths are used as they are
	IDPattern              string // RE2
	IDReplacement          string
	LUNLinks               string // directory with a link for each LUN
	InstanceStoragePattern string // glob of NVMe devices
	ManagedVolumePattern   string // glob of links to volumes that are not instance storage
	// Root is "/" except in tests.
	Root string
	// TimeoutScale multiplies the time limits. 0 means 1.
	TimeoutScale float64
}

// Resolver resolves hints to devices.
type Resolver struct {
	options Options
	pattern *regexp.Regexp
	log     *logrus.Entry
}

// New returns a resolver, or an error if a pattern is invalid.
func New(o Options, log *logrus.Entry) (*Resolver, error) {
	if o.Root == "" {
		o.Root = "/"
	}
	if o.TimeoutScale == 0 {
		o.TimeoutScale = 1
	}
	if o.InstanceStoragePattern == "" {
		o.InstanceStoragePattern = "/dev/nvme*n1"
	}
	r := &Resolver{options: o, log: log}
	if o.IDPattern != "" {
		pattern, err := regexp.Compile(o.IDPattern)
		if err != nil {
			return nil, fmt.Errorf("disk id transform pattern: %w", err)
		}
		r.pattern = pattern
	}
	for _, glob := range []string{o.InstanceStoragePattern, o.ManagedVolumePattern} {
		if _, err := filepath.Match(glob, ""); err != nil {
			return nil, fmt.Errorf("instance storage pattern %q: %w", glob, err)
		}
	}
	return r, nil
}

// Time limits. They are at least those of cloudfoundry/bosh-agent, so that no disk is missed that it would have found.
const (
	byIDGrace   = 500 * time.Millisecond
	pathLimit   = 30*time.Second + byIDGrace
	scsiLimit   = 50 * time.Second
	volumeLimit = 15 * time.Second
)

// idLinks is the directory in which udev names disks by their identifiers.
const idLinks = "/dev/disk/by-id"

// stage is one way to find the disk. A match of a later stage counts only after its grace period, so that a path does
// not win over an identifier that is about to appear.
type stage struct {
	match matcher
	grace time.Duration
	limit time.Duration
	// fullGrace waits for the whole grace period even if udev has processed the device that was found, since the
	// expected identifier may belong to another device.
	fullGrace bool
	// identifier and path tell by what the disk is found. Both are false for a location other than a path.
	identifier, path bool
}

type search struct {
	stages []stage
	paths  []string // individual paths, which may be missing
	links  []string // directories of links
	disks  bool     // include all disks of the machine
	rescan bool
}

// nextGrace returns the time until the next grace period ends, or 0.
func (s search) nextGrace(waited time.Duration) (next time.Duration) {
	for _, st := range s.stages {
		if left := st.grace - waited; left > 0 && (next == 0 || left < next) {
			next = left
		}
	}
	return next
}

func (r *Resolver) search(h Hint) (s search, err error) {
	o := r.options
	impossible := func(why string) (search, error) {
		return search{}, &NotFoundError{Reason: ErrAbsent, Hint: h, Trace: []string{why}}
	}
	if o.LUNLinks != "" && h.LUN != "" {
		s.links = append(s.links, o.LUNLinks)
		s.stages = append(s.stages, stage{match: lunLink(o.LUNLinks, h.LUN), limit: scsiLimit})
	}
	// A path is a location, not an identity, unless udev made it from the disk's own identifier. It has to wait while
	// an identifier may still appear, or a link by LUN.
	byPath := func(match matcher) stage {
		st := stage{match: match, limit: pathLimit, path: true, identifier: filepath.Dir(h.Path) == idLinks}
		if len(s.stages) > 0 && !st.identifier {
			st.grace = time.Duration(float64(pathLimit) * o.TimeoutScale)
		}
		if len(s.links) > 0 && s.links[0] == o.LUNLinks {
			st.grace, st.fullGrace = time.Duration(float64(scsiLimit)*o.TimeoutScale), true
		}
		return st
	}
	switch {
	case h.ISCSI && h.Path == "" && (o.Type != "scsi" || h.DeviceID+h.VolumeID+h.LUN == ""):
		return impossible("iSCSI disks are not supported by this agent; attach the disk so that it has a device path")
	case o.Type == "virtio":
		if h.CID != "" {
			s.links, s.disks = append(s.links, idLinks), true
			s.stages = append(s.stages,
				stage{match: byID(h.CID, r.pattern, o.IDReplacement), limit: byIDGrace, identifier: true})
		}
		if h.Path != "" {
			match, paths := mapped(h.Path)
			s.paths = paths
			s.stages = append(s.stages, byPath(match))
		}
	case o.Type == "scsi" && h.DeviceID != "":
		s.links = append(s.links, idLinks)
		s.stages, s.disks, s.rescan = append(s.stages,
			stage{match: scsiID(h.DeviceID), limit: scsiLimit, identifier: true}), true, true
	case o.Type == "scsi" && h.VolumeID != "":
		s.stages, s.disks, s.rescan = append(s.stages,
			stage{match: scsiVolume(h.VolumeID), limit: volumeLimit}), true, true
	case o.Type == "scsi" && h.LUN != "" && h.HostDeviceID != "":
		s.stages, s.disks, s.rescan = append(s.stages,
			stage{match: scsiLUN(h.LUN, h.HostDeviceID), limit: scsiLimit}), true, true
	case o.Type == "scsi":
	case h.Path != "":
		s.paths = []string{h.Path}
		s.stages = append(s.stages, byPath(identity(h.Path)))
	}
	if h.Path != "" && !filepath.IsAbs(h.Path) && len(s.paths) > 0 {
		return impossible("the path is not absolute")
	}
	if len(s.stages) == 0 {
		return impossible(fmt.Sprintf("the hint has nothing that device path resolution type %q can use", o.Type))
	}
	return s, nil
}

// ResolveOnce resolves a hint once, without waiting for the disk.
func (r *Resolver) ResolveOnce(h Hint) (Device, error) {
	s, err := r.search(h)
	if err != nil {
		return Device{}, err
	}
	d, trace, err := r.once(s, h, time.Hour)
	if err == nil && d.Path == "" {
		err = &NotFoundError{Reason: ErrAbsent, Hint: h, Trace: trace}
	}
	return d, err
}

// Resolve resolves a hint and waits for the disk, until the time limit for that kind of hint or the end of ctx.
func (r *Resolver) Resolve(ctx context.Context, h Hint) (Device, error) {
	s, err := r.search(h)
	if err != nil {
		return Device{}, err
	}
	limit := time.Duration(0)
	for _, st := range s.stages {
		limit = max(limit, st.limit)
	}
	if len(s.stages) > 1 && r.options.LUNLinks != "" {
		limit += scsiLimit // cloudfoundry/bosh-agent tries one resolver after the other
	}
	limit = time.Duration(float64(limit) * r.options.TimeoutScale)
	begin := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, ErrTimedOut)
	defer cancel()

	var d Device
	var trace []string
	rescanned := false
	dirs := append([]string{"/dev"}, s.links...)
	for _, p := range s.paths {
		dirs = append(dirs, filepath.Dir(p))
	}
	for i := range dirs {
		dirs[i] = filepath.Join(r.options.Root, dirs[i])
	}
	// No event marks the end of a grace period, so a timer ends the wait.
	for {
		pause, stop := ctx, func() {}
		if next := s.nextGrace(time.Since(begin)); next > 0 {
			pause, stop = context.WithTimeout(ctx, next)
		}
		err = watch.UntilDevice(pause, dirs, func() (bool, error) {
			var err error
			d, trace, err = r.once(s, h, time.Since(begin))
			if err == nil && d.Path == "" && s.rescan && !rescanned {
				rescanned = true
				go r.rescanSCSI()
			}
			return d.Path != "", err
		})
		stop()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	if errors.Is(context.Cause(ctx), ErrTimedOut) {
		d, trace, err = r.once(s, h, time.Hour) // all grace periods are over
		if err == nil && d.Path == "" {
			err = ErrTimedOut
		}
	}
	if rescanned {
		trace = append(trace, "SCSI hosts rescanned")
	}
	var notFound *NotFoundError
	switch {
	case err == nil:
		r.log.WithFields(logrus.Fields{"hint": h.String(), "device": d.Path, "took": time.Since(begin).String()}).
			Debug("device found")
		return d, nil
	case errors.As(err, &notFound):
		return Device{}, err
	case errors.Is(context.Cause(ctx), ErrTimedOut), errors.Is(err, context.DeadlineExceeded):
		return Device{}, &NotFoundError{
			Reason: ErrTimedOut,
			Hint:   h,
			Waited: time.Since(begin),
			Trace:  append(trace, DescribeDisks(r.options.Root)),
		}
	}
	return Device{}, fmt.Errorf("find disk %s: %w", h, err)
}

// once evaluates all stages on a new snapshot. It returns an empty path without an error if the disk may still appear.
func (r *Resolver) once(s search, h Hint, waited time.Duration) (Device, []string, error) {
	now, err := observe(r.options.Root, s)
	if err != nil {
		return Device{}, nil, fmt.Errorf("find disk %s: %w", h, err)
	}
	return r.pick(now, s, h, waited)
}

// pick returns the device to which the hint leads in a snapshot. waited is the time since the search began.
func (r *Resolver) pick(now snapshot, s search, h Hint, waited time.Duration) (Device, []string, error) {
	var trace []string
	others := r.otherDisks(now, h)
	for _, st := range s.stages {
		found, evidence := st.match(now)
		trace = append(trace, evidence)
		nodes := distinct(found)
		if len(nodes) > 1 {
			var names []string
			for _, n := range nodes {
				names = append(names, n.Target)
			}
			trace = append(trace, "found "+strings.Join(names, " and "))
			return Device{}, trace, &NotFoundError{Reason: ErrAmbiguous, Hint: h, Trace: trace}
		}
		if len(nodes) == 0 {
			continue
		}
		n := nodes[0]
		if other := others[n.Number]; other != "" && st.path && n.Block {
			trace = append(trace, n.Target+" is disk "+other)
			continue
		}
		// If udev has processed the device, or is not running, no better link will appear. If other disks of this CPI
		// have identifiers, this disk's may belong to a device that has yet to appear.
		if waited < st.grace && now.Udev && (st.fullGrace || !n.Settled || len(others) > 0) {
			trace = append(trace, "waiting for udev to confirm "+n.Target)
			continue
		}
		return Device{Path: n.Target, Number: n.Number, Directory: !n.Block, Identified: st.identifier}, trace, nil
	}
	return Device{}, trace, nil
}

// otherDisks returns the devices that have the identifier of another disk, with the CID of that disk.
func (r *Resolver) otherDisks(now snapshot, h Hint) map[blkdev.Number]string {
	if r.options.Type != "virtio" {
		return nil
	}
	found := map[blkdev.Number]string{}
	for _, cid := range h.Others {
		nodes, _ := byID(cid, r.pattern, r.options.IDReplacement)(now)
		for _, n := range nodes {
			found[n.Number] = cid
		}
	}
	return found
}

func distinct(found []node) (nodes []node) {
	for _, n := range found {
		known := false
		for _, k := range nodes {
			known = known || k.Number == n.Number && k.Block == n.Block
		}
		if !known {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// rescanSCSI makes all SCSI hosts scan for new disks. It runs concurrently with the wait, since a scan takes as long as
// its slowest bus.
func (r *Resolver) rescanSCSI() {
	hosts, _ := filepath.Glob(filepath.Join(r.options.Root, "sys/class/scsi_host/host*/scan"))
	for _, scan := range hosts {
		if err := os.WriteFile(scan, []byte("- - -"), 0); err != nil {
			r.log.WithError(err).Warn("SCSI rescan failed")
		}
	}
}

// InstanceStorage returns the NVMe devices that are not volumes of the IaaS, sorted by path. It waits until there are
// exactly as many as the CPI announced, since an extra device may be a volume of another owner.
func (r *Resolver) InstanceStorage(ctx context.Context, count int) ([]Device, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(float64(pathLimit)*r.options.TimeoutScale), ErrTimedOut)
	defer cancel()
	var devices []Device
	var trace []string
	managed := filepath.Dir(r.options.ManagedVolumePattern)
	dirs := []string{filepath.Join(r.options.Root, "dev"), filepath.Join(r.options.Root, managed)}
	err := watch.UntilDevice(ctx, dirs, func() (bool, error) {
		nodes, unsettled, why, err := r.unmanaged()
		if err != nil {
			return false, err
		}
		devices, trace = nil, []string{why}
		for _, n := range nodes {
			devices = append(devices, Device{Path: n.Target, Number: n.Number})
		}
		if unsettled != "" {
			trace = append(trace, "udev has not finished with "+unsettled)
		}
		return unsettled == "" && len(devices) == count, nil
	})
	if err == nil {
		return devices, nil
	}
	if errors.Is(err, ErrTimedOut) || errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("instance storage: %w: %d devices expected, %s", ErrTimedOut, count,
			strings.Join(trace, "; "))
	}
	return nil, fmt.Errorf("instance storage: %w", err)
}

func (r *Resolver) unmanaged() (nodes []node, unsettled, why string, err error) {
	root := r.options.Root
	paths, err := filepath.Glob(filepath.Join(root, r.options.InstanceStoragePattern))
	if err != nil {
		return nil, "", "", err
	}
	links, err := filepath.Glob(filepath.Join(root, r.options.ManagedVolumePattern))
	if err != nil {
		return nil, "", "", err
	}
	taken := map[blkdev.Number]bool{}
	for _, l := range links {
		if n, err := blkdev.NumberOf(l); err == nil {
			taken[n] = true
		}
	}
	var s snapshot
	udev := atomicfile.Exists(filepath.Join(root, "run/udev"))
	var names []string
	for _, p := range paths {
		n, ok := s.findNode(root, strings.TrimPrefix(p, strings.TrimSuffix(root, "/")))
		if !ok || !n.Block {
			continue
		}
		// A volume without its link yet must not be taken for instance storage.
		if udev && !n.Settled {
			unsettled = p
		}
		if !taken[n.Number] {
			nodes = append(nodes, n)
			names = append(names, n.Target)
		}
	}
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].Target < nodes[j].Target })
	return nodes, unsettled, fmt.Sprintf("found %s, without the %d managed volumes", listing(names), len(links)), nil
}
