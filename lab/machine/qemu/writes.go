package qemu

import (
	"context"
	"os"
	"path/filepath"
)

// RootLog is the name of the root disk's log; see LogWrites.
const RootLog = "root"

// LogWrites has QEMU log everything that the machine writes to its disks and flushes, from the next start on: in files
// of dir, under the IDs of disks, in the format of dm-log-writes. An empty dir ends that. Disks that are plugged in
// later are not logged, and a machine that is logged has no snapshots.
func (m *Machine) LogWrites(dir string) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.writes = dir
}

// logged puts QEMU's driver that logs writes above a disk, if LogWrites wants it, and returns the set of the log, too.
func (m *Machine) logged(d *descriptors, id string, block map[string]any) (above map[string]any, sets []int, err error) {
	if m.writes == "" || block["read-only"] == true {
		return block, nil, nil
	}
	set, err := d.open(filepath.Join(m.writes, id), os.O_CREATE|os.O_TRUNC|os.O_RDWR)
	if err != nil {
		return nil, nil, err
	}
	above = map[string]any{"driver": "blklogwrites", "node-name": block["node-name"], "discard": "unmap", "file": block,
		"log": map[string]any{"driver": "file", "filename": setName(set)}}
	delete(block, "node-name") // of what is above alone
	return above, []int{set}, nil
}

// ResetRoot makes the root disk anew, as the image has it; the machine is off.
func (m *Machine) ResetRoot(ctx context.Context) error {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if err := os.Remove(m.rootDisk()); err != nil {
		return err
	}
	return m.makeRoot(ctx)
}
