package qemu

import (
	"context"
	"os"
	"path/filepath"
)

// RootLog is the name of the root disk's log; see LogWrites.
const RootLog = "root"

// LogWrites makes QEMU log all writes and flushes of the machine's disks, from its next start on. The files are in dir,
// named by the IDs of disks, in the format of dm-log-writes. If dir is empty, logging ends. Disks that are plugged in
// later are not logged, and a machine with logging has no snapshots.
func (m *Machine) LogWrites(dir string) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.writes = dir
}

// logged adds QEMU's driver that logs writes to a disk, if LogWrites was called, and returns the set of the log as
// well.
func (m *Machine) logged(d *descriptors, id string, block map[string]any) (above map[string]any, sets []int,
	err error) {
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

// ResetRoot creates the root disk again from the image. The machine must be off.
func (m *Machine) ResetRoot(ctx context.Context) error {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if err := os.Remove(m.rootDisk()); err != nil {
		return err
	}
	return m.makeRoot(ctx)
}
