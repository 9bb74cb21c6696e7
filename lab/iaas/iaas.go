// Package iaas is the lab's infrastructure as a service: stemcells, VMs, persistent disks, snapshots and networks,
// which outlive the process that created them. Every object is a directory with a record. The process that holds the
// directory's lock, the holder, runs the VMs. When it starts, it removes what a crashed holder has left in the kernel,
// completes or undoes interrupted operations, and starts the VMs that should run.
//
// It does not know the CPI's wire format; see package cpi.
package iaas

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"cambium/lab/iaas/fabric"
	"cambium/lab/machine"
	"cambium/lab/metadata"
	"cambium/lab/netns"
	"cambium/lab/registry"
	"cambium/lab/sweep"

	"github.com/sirupsen/logrus"
)

// DefaultName is the default name of an IaaS.
const DefaultName = "default"

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,14}[a-z0-9])?$`)

// ValidName returns an error for an invalid name of an IaaS.
func ValidName(name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("name %q of the IaaS: want at most 16 lower case letters, digits and dashes", name)
	}
	return nil
}

// Directory returns the directory of an IaaS with its objects. A lab's directory has no dot in its name.
func Directory(dir, name string) string { return filepath.Join(dir, name+".iaas") }

// goneSuffix is the suffix of a directory that is being removed.
const goneSuffix = ".gone"

// ErrHeld means that another process holds the IaaS.
var ErrHeld = errors.New("another process holds the IaaS")

// IaaS is an IaaS that this process holds.
type IaaS struct {
	name string
	// runtimeName is the prefix of names outside the directory.
	runtimeName string

	store store
	lock  *os.File
	log   *logrus.Entry
	Net   netns.Namespace
	net   *fabric.Fabric

	locks locks

	metadata *metadata.Server
	registry *registry.Server
	services []*http.Server

	hostRoute string // path of the file with the requested link to the host
	lightDir  string // directory with images of light stemcells

	mu        sync.Mutex // guards the fields below; not held during waits
	stemcells map[CID]*Stemcell
	vms       map[CID]*VM
	disks     map[CID]*Disk
	snapshots map[CID]*Snapshot
	networks  map[CID]*ManagedNetwork
	machines  map[CID]machine.Machine
	followed  map[CID]<-chan struct{} // closed at the end of machines, until a power-off is recorded
	uploads   map[CID]bool            // stemcells that are being uploaded
	closing   bool
}

// Open opens the IaaS with the name below dir, and creates it if it does not exist. It fails with ErrHeld if another
// process holds it.
func Open(dir, name string, log *logrus.Entry) (*IaaS, error) {
	if err := ValidName(name); err != nil {
		return nil, err
	}
	own := Directory(dir, name)
	if err := os.MkdirAll(own, 0o700); err != nil {
		return nil, err
	}
	f, err := takeLock(filepath.Join(own, "lock"))
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(own + goneSuffix); err != nil { // of a holder that was killed
		return nil, errors.Join(err, f.Close())
	}
	i := &IaaS{name: name, runtimeName: RuntimeName(dir, name), store: store{own}, lock: f, log: log,
		hostRoute: hostRouteFile(dir, name), lightDir: LightImages(dir, name),
		metadata: metadata.New(), registry: registry.New(),
		machines: map[CID]machine.Machine{}, followed: map[CID]<-chan struct{}{}, uploads: map[CID]bool{}}
	if err := i.start(); err != nil {
		return nil, errors.Join(err, i.lock.Close())
	}
	return i, nil
}

// takeLock locks a file. It checks afterwards that the file still exists, because a holder removes it when it ends.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrHeld // the directory is just being removed
	}
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(ErrHeld, f.Close())
	}
	opened, err1 := f.Stat()
	named, err2 := os.Stat(path)
	if err1 != nil || err2 != nil || !os.SameFile(opened, named) {
		return nil, errors.Join(ErrHeld, f.Close())
	}
	return f, nil
}

// RuntimeName returns the prefix of names that an IaaS uses outside its directory: namespaces, control groups,
// processes. It is derived from the directory, which the holder has locked, because there may be an IaaS with the same
// name in another directory.
func RuntimeName(dir, name string) string {
	if absolute, err := filepath.Abs(dir); err == nil {
		dir = absolute
	}
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	h := sha256.Sum256([]byte(dir))
	return "iaas-" + name + "-" + hex.EncodeToString(h[:4])
}

func (i *IaaS) remains() sweep.Remains {
	return sweep.Remains{Name: i.runtimeName, Dir: i.store.dir, Visitors: true,
		Holds: func(argument string) bool { return fabric.Serves(i.dhcpDir(), argument) }}
}

func (i *IaaS) start() error {
	if err := i.remains().Remove(); err != nil {
		return fmt.Errorf("remove what an earlier holder left: %w", err)
	}
	if err := i.load(); err != nil {
		return err
	}
	if err := i.completeInterrupted(); err != nil {
		return err
	}
	var err error
	if i.net, err = fabric.Make(i.runtimeName, i.dhcpDir()); err != nil {
		return err
	}
	i.Net = i.net.Net
	if err := i.serve(); err != nil {
		return err
	}
	if err := i.ConnectHost(); err != nil {
		// The VMs start without it; `lab host-route on` reports the reason.
		i.log.WithError(err).Warn("cannot restore the host's link to the VMs")
	}
	return nil
}

// dhcpDir returns the directory with files of DHCP servers.
func (i *IaaS) dhcpDir() string { return filepath.Join(i.store.dir, "dhcp") }

// hostRouteFile returns the path of the file with the requested access. It is beside the directory of an IaaS and does
// not depend on it.
func hostRouteFile(dir, name string) string { return Directory(dir, name) + "-host-route" }

// RequestHostAccess records which link to the host a holder must create.
func RequestHostAccess(dir, name string, access fabric.Access) error {
	if err := ValidName(name); err != nil {
		return err
	}
	if old, err := os.ReadFile(hostRouteFile(dir, name)); err == nil && fabric.Access(old) != access {
		if err := fabric.Disconnect(RuntimeName(dir, name)); err != nil {
			return err
		}
	}
	if access != fabric.NoAccess {
		return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(hostRouteFile(dir, name), []byte(access), 0o644))
	}
	if err := os.Remove(hostRouteFile(dir, name)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// ConnectHost creates or removes the link to the host as requested by RequestHostAccess.
func (i *IaaS) ConnectHost() error {
	wish, err := os.ReadFile(i.hostRoute)
	if errors.Is(err, os.ErrNotExist) {
		return i.net.LinkHost(fabric.NoAccess)
	}
	if err != nil {
		return err
	}
	return i.net.LinkHost(fabric.Access(wish))
}

func (i *IaaS) load() (err error) {
	if i.stemcells, err = load[Stemcell](i.store, Stemcells); err != nil {
		return err
	}
	if i.vms, err = load[VM](i.store, VMs); err != nil {
		return err
	}
	if i.disks, err = load[Disk](i.store, Disks); err != nil {
		return err
	}
	if i.snapshots, err = load[Snapshot](i.store, Snapshots); err != nil {
		return err
	}
	i.networks, err = load[ManagedNetwork](i.store, Networks)
	return err
}

// completeInterrupted completes or undoes operations that an earlier holder has not finished.
func (i *IaaS) completeInterrupted() error {
	var failed error
	for cid, vm := range i.vms {
		if vm.Phase != Ready {
			failed = errors.Join(failed, i.forgetVM(cid))
		}
	}
	for cid, d := range i.disks {
		if d.Phase != Ready {
			failed = errors.Join(failed, i.forget(cid, func() { delete(i.disks, cid) }))
			continue
		}
		if _, there := i.vms[d.VM]; d.VM != (CID{}) && !there {
			failed = errors.Join(failed, i.setAttached(cid, CID{}))
		}
	}
	for cid, s := range i.snapshots {
		if s.Phase != Ready {
			failed = errors.Join(failed, i.forget(cid, func() { delete(i.snapshots, cid) }))
		}
	}
	for cid, s := range i.stemcells {
		if s.Phase != Ready {
			failed = errors.Join(failed, i.forget(cid, func() { delete(i.stemcells, cid) }))
		}
	}
	return errors.Join(failed, i.sweepImages())
}

// save writes a record durably and then updates the memory.
func save[Record any](i *IaaS, cid CID, all map[CID]*Record, r Record) error {
	if err := i.store.put(cid, r); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	all[cid] = &r
	return nil
}

// forget removes an object and its record.
func (i *IaaS) forget(cid CID, drop func()) error {
	if err := i.store.remove(cid); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	drop()
	return nil
}

// Resume starts the VMs that should run, a few at a time, since a boot needs the processors.
func (i *IaaS) Resume(ctx context.Context) {
	i.mu.Lock()
	var wanted []CID
	for cid, vm := range i.vms {
		if vm.On && vm.Phase == Ready {
			wanted = append(wanted, cid)
		}
	}
	i.mu.Unlock()
	slots := make(chan struct{}, startsAtOnce)
	var started sync.WaitGroup
	for _, cid := range wanted {
		slots <- struct{}{}
		started.Go(func() {
			defer func() { <-slots }()
			if err := i.resume(ctx, cid); err != nil {
				i.log.WithError(err).WithField("cid", cid).Error("cannot start the VM")
			}
		})
	}
	started.Wait()
}

// startsAtOnce limits the number of VMs that Resume starts at the same time.
const startsAtOnce = 4

func (i *IaaS) resume(ctx context.Context, cid CID) error {
	defer i.locks.lock(cid.String())()
	vm, err := i.findVM(cid)
	if err != nil || !vm.On {
		return nil // deleted or switched off meanwhile
	}
	return i.power(ctx, vm)
}

// Empty reports whether there are no objects.
func (i *IaaS) Empty() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.stemcells)+len(i.vms)+len(i.disks)+len(i.snapshots)+len(i.networks)+len(i.uploads) == 0
}

// stopTimeout bounds the shutdown of all VMs when the holder ends.
const stopTimeout = 20 * time.Second

// Close shuts down the VMs, which the next holder starts again, and releases the IaaS. If it is empty, Close removes
// the directory.
func (i *IaaS) Close() error {
	i.mu.Lock()
	i.closing = true
	running := maps.Clone(i.machines)
	i.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var stopped sync.WaitGroup
	for _, m := range running {
		stopped.Go(func() { _ = m.Stop(ctx) }) // killed at the latest by the sweep below
	}
	stopped.Wait()
	for _, s := range i.services {
		_ = s.Close()
	}
	failed := errors.Join(i.remains().Remove(), i.net.Close())
	if failed == nil && i.Empty() {
		// Under another name, so that nothing of a holder that starts meanwhile is removed.
		if failed = os.Rename(i.store.dir, i.store.dir+goneSuffix); failed == nil {
			failed = os.RemoveAll(i.store.dir + goneSuffix)
		}
	}
	return errors.Join(failed, i.lock.Close())
}
