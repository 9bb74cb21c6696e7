package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"cambium/lab/machine"
)

// snapshot is a state of the machine. QEMU stores memory and root disk in the file of the root disk; copies of the
// other disks are beside their images.
type snapshot struct {
	disks   []*attached
	numbers int
	clock   time.Time
}

func (s snapshot) copyOf(tag string, a *attached, dir string) string {
	return filepath.Join(dir, fmt.Sprintf("snapshot-%s-%d", tag, a.number))
}

// Snapshot stores the state of the running machine, memory and disks, under a name. It cannot include disks that were
// plugged in after the start, so start the machine with them.
func (m *Machine) Snapshot(ctx context.Context, tag string) error {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.Current == nil {
		return fmt.Errorf("snapshot of %s: %w", m.Spec.Name, machine.ErrNotRunning)
	}
	s := snapshot{disks: append([]*attached{}, m.disks...), numbers: m.numbers, clock: time.Now()}
	for _, a := range m.disks {
		if a.hot {
			return fmt.Errorf("snapshot of %s: disk %s was plugged in while it ran", m.Spec.Name, a.disk.ID)
		}
	}
	q := m.Current.qmp
	if err := q.do(ctx, "stop", nil, nil); err != nil {
		return err
	}
	err := q.job(ctx, "snapshot-save", map[string]any{"tag": tag, "vmstate": rootNode, "devices": []string{rootNode}})
	for _, a := range m.disks {
		if err == nil && !a.disk.ReadOnly {
			err = copySparse(ctx, a.disk.Image, s.copyOf(tag, a, m.Spec.Dir))
		}
	}
	if err == nil {
		m.snapshots[tag] = s
	}
	return errors.Join(err, q.do(ctx, "cont", nil, nil))
}

// Rewind restores a snapshot and lets the machine run from there. Programs that the lab was running in it are lost. The
// machine's clock continues from the time of the snapshot.
func (m *Machine) Rewind(ctx context.Context, tag string) error {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	s, ok := m.snapshots[tag]
	if !ok {
		return fmt.Errorf("rewind %s: no snapshot %s", m.Spec.Name, tag)
	}
	if m.Current != nil && !sameDisks(m.disks, s.disks) {
		// QEMU only goes back with the devices that it had.
		b := m.Current
		b.off = true
		m.Mu.Unlock()
		_ = b.qemu.Process.Kill()
		<-b.ended
		m.Mu.Lock()
	}
	m.disks = append([]*attached{}, s.disks...)
	if m.Current == nil {
		if err := m.start(ctx, true); err != nil {
			return fmt.Errorf("rewind %s: %w", m.Spec.Name, err)
		}
	}
	b := m.Current
	if err := b.qmp.do(ctx, "stop", nil, nil); err != nil {
		return err
	}
	b.guestConn.park()
	for _, a := range m.disks {
		if !a.disk.ReadOnly {
			if err := copySparse(ctx, s.copyOf(tag, a, m.Spec.Dir), a.disk.Image); err != nil {
				return err
			}
		}
	}
	if err := b.qmp.job(ctx, "snapshot-load",
		map[string]any{"tag": tag, "vmstate": rootNode, "devices": []string{rootNode}}); err != nil {
		return err
	}
	b.guestConn.resume()
	return b.qmp.do(ctx, "cont", nil, nil)
}

func sameDisks(a, b []*attached) bool {
	if len(a) != len(b) {
		return false
	}
	for n := range a {
		if a[n] != b[n] || a[n].hot {
			return false
		}
	}
	return true
}

// copySparse overwrites the existing file and does not replace it, because QEMU has it open.
func copySparse(ctx context.Context, from, to string) error {
	if info, err := os.Stat(from); err == nil {
		// Old blocks must not show where the copy has holes.
		if err := os.Truncate(to, 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.Truncate(to, info.Size()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	cp := exec.CommandContext(ctx, "cp", "--sparse=always", "--reflink=never", from, to)
	if out, err := cp.CombinedOutput(); err != nil {
		return fmt.Errorf("copy of a disk: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
