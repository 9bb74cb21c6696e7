package image

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"cambium/lab/tree"
)

// The number of images with agents that are kept, the minimum and the maximum time for which an unused one is kept, and
// the time for one without an agent, which takes longer to build.
const (
	keepImages = 4
	keepShort  = 6 * time.Hour
	keepLong   = 24 * time.Hour
	keepBase   = 7 * 24 * time.Hour
)

// imagePrefix is the prefix of images, and agentPart is in the names of those with an agent.
const (
	imagePrefix = "vm-"
	agentPart   = "-agent-"
	workSuffix  = ".new"
	lockSuffix  = ".lock"
)

// prune removes images that were not used for a long time, before another one is built.
func (c Cache) prune() {
	found, err := os.ReadDir(c.Dir)
	if err != nil {
		return
	}
	type used struct {
		name string
		ago  time.Duration
	}
	var agents []used
	for _, entry := range found {
		info, err := entry.Info()
		if err != nil || !info.IsDir() || !strings.HasPrefix(entry.Name(), imagePrefix) ||
			strings.HasSuffix(entry.Name(), workSuffix) {
			continue
		}
		u := used{entry.Name(), time.Since(info.ModTime())}
		if strings.Contains(entry.Name(), agentPart) {
			agents = append(agents, u)
		} else if u.ago > keepBase {
			_, _ = c.remove(u.name, false)
		}
	}
	slices.SortFunc(agents, func(a, b used) int { return cmp.Compare(a.ago, b.ago) })
	for n, u := range agents {
		if u.ago > keepLong || n >= keepImages && u.ago > keepShort {
			_, _ = c.remove(u.name, false)
		}
	}
}

// DefaultOlder is the default of PruneOptions.Older for callers.
const DefaultOlder = keepLong

// PruneOptions selects what to remove.
type PruneOptions struct {
	// Older selects images, and trees of other recipes, that were not used for that long.
	Older time.Duration
	// All selects everything, which is built again when it is needed.
	All bool
	// DryRun only reports what would be removed.
	DryRun bool
}

// Entry is a tree, an image or another part of the cache.
type Entry struct {
	Name  string    `json:"name"`
	Bytes int64     `json:"bytes"` // size on disk
	Used  time.Time `json:"last_used"`
}

// Pruned lists the entries that were removed, and those that were kept because a process uses them.
type Pruned struct {
	Removed []Entry `json:"removed"`
	InUse   []Entry `json:"in_use"`
}

// Prune removes trees of other recipes, images that were not used lately, and what killed builds have left; or
// everything. It keeps what a process holds or builds.
func (c Cache) Prune(o PruneOptions) (p Pruned, err error) {
	found, err := os.ReadDir(c.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return p, err
	}
	for _, entry := range found {
		info, err := entry.Info()
		if err != nil || !ours(entry.Name()) || !o.All && !c.stale(entry.Name(), time.Since(info.ModTime()), o.Older) {
			continue
		}
		e := Entry{Name: entry.Name(), Bytes: diskUsage(filepath.Join(c.Dir, entry.Name())), Used: info.ModTime()}
		removed, err := c.remove(entry.Name(), o.DryRun)
		if err != nil {
			return p, fmt.Errorf("cache: %w", err)
		}
		if removed {
			p.Removed = append(p.Removed, e)
		} else {
			p.InUse = append(p.InUse, e)
		}
	}
	return p, nil
}

// diskUsage returns the disk space in bytes that removing path would free. It counts hard links once.
func diskUsage(path string) (bytes int64) {
	seen := map[uint64]bool{}
	_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // what cannot be read is not counted
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && !seen[st.Ino] {
			seen[st.Ino] = st.Nlink > 1 && !d.IsDir()
			bytes += st.Blocks * 512
		}
		return nil
	})
	return bytes
}

// ours reports whether an entry belongs to the cache, since an operator may choose a directory with other content.
func ours(name string) bool {
	prefixes := []string{tree.Prefix, tree.StemcellPrefix, imagePrefix, kernelDir, loadersDir, kvmPrefix}
	return !strings.HasSuffix(name, lockSuffix) && (name == labGuest || name == firstProgram ||
		slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }))
}

// kvmPrefix is the prefix of the files that record whether KVM works on this host; see the QEMU engine.
const kvmPrefix = "kvm-"

// stale reports whether a killed build has left an entry, or this version does not use it and it is older than older.
func (c Cache) stale(name string, ago, older time.Duration) bool {
	debian := tree.Cache{Dir: c.Dir}.Path()
	switch {
	case name == filepath.Base(debian), name == filepath.Base(c.stemcellTreePath(debian)):
		return false
	case strings.HasSuffix(name, workSuffix):
		return true
	}
	prefixes := []string{tree.Prefix, tree.StemcellPrefix, imagePrefix}
	begins := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	return ago > older && slices.ContainsFunc(prefixes, begins)
}

// remove removes an entry, unless a process holds or builds it. With dry it only reports whether it would.
func (c Cache) remove(name string, dry bool) (bool, error) {
	path := filepath.Join(c.Dir, name)
	lock, err := os.OpenFile(strings.TrimSuffix(path, workSuffix)+lockSuffix, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false, err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return false, nil
	}
	return tree.UnlessHeld(path, func() error {
		if dry {
			return nil
		}
		return errors.Join(os.RemoveAll(path), os.Remove(lock.Name()))
	})
}
