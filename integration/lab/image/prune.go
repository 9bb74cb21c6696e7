package image

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"cambium/integration/lab/tree"
)

// How many images with agents are kept, how long an unused one is kept at least and at most, and
// how long one without an agent is, which takes longer to make.
const (
	keepImages = 4
	keepShort  = 6 * time.Hour
	keepLong   = 24 * time.Hour
	keepBase   = 7 * 24 * time.Hour
)

// imagePrefix begins the names of images, agentPart is in those that have an agent.
const (
	imagePrefix = "vm-"
	agentPart   = "-agent-"
	workSuffix  = ".new"
	lockSuffix  = ".lock"
)

// prune removes images that have not been used for long, before another one is made.
func (c Cache) prune() {
	found, err := os.ReadDir(c.Dir)
	if err != nil {
		return
	}
	type used struct {
		dir string
		ago time.Duration
	}
	var agents []used
	for _, entry := range found {
		info, err := entry.Info()
		if err != nil || !info.IsDir() || !strings.HasPrefix(entry.Name(), imagePrefix) || strings.HasSuffix(entry.Name(), workSuffix) {
			continue
		}
		u := used{filepath.Join(c.Dir, entry.Name()), time.Since(info.ModTime())}
		if strings.Contains(entry.Name(), agentPart) {
			agents = append(agents, u)
		} else if u.ago > keepBase {
			_ = removeEntry(u.dir)
		}
	}
	slices.SortFunc(agents, func(a, b used) int { return cmp.Compare(a.ago, b.ago) })
	for n, u := range agents {
		if u.ago > keepLong || n >= keepImages && u.ago > keepShort {
			_ = removeEntry(u.dir)
		}
	}
}

func removeEntry(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	if err := os.Remove(path + lockSuffix); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Prune removes what the cache holds and the present programs do not use: trees of other
// recipes, images that have not been used for a day, and what killed builds have left; or
// everything. It returns the names. The caller makes sure that no machine runs: it would lose its
// root file system.
func (c Cache) Prune(everything bool) (removed []string, err error) {
	found, err := os.ReadDir(c.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, entry := range found {
		info, err := entry.Info()
		if err != nil || !ours(entry.Name()) || !everything && !c.stale(entry.Name(), time.Since(info.ModTime())) {
			continue
		}
		ok, err := c.removeUnlessMade(entry.Name())
		if err != nil {
			return removed, fmt.Errorf("cache: %w", err)
		}
		if ok {
			removed = append(removed, entry.Name())
		}
	}
	return removed, nil
}

// ours reports whether an entry is one that the cache makes: the directory is the operator's choice and
// may hold other things.
func ours(name string) bool {
	return !strings.HasSuffix(name, lockSuffix) && (name == labGuest || name == firstProgram ||
		slices.ContainsFunc([]string{tree.Prefix, stemcellTreePrefix, imagePrefix, kernelDir, kvmPrefix}, func(prefix string) bool { return strings.HasPrefix(name, prefix) }))
}

// kvmPrefix begins the notes of whether KVM works on this host, see the QEMU engine.
const kvmPrefix = "kvm-"

// stale reports whether an entry of the cache is not used by the present programs.
func (c Cache) stale(name string, ago time.Duration) bool {
	debian := tree.Cache{Dir: c.Dir}.Path()
	switch {
	case name == filepath.Base(debian), name == filepath.Base(c.stemcellTreePath(debian)):
		return false
	case strings.HasSuffix(name, workSuffix), strings.HasPrefix(name, tree.Prefix), strings.HasPrefix(name, stemcellTreePrefix):
		return true
	}
	return strings.HasPrefix(name, imagePrefix) && ago > keepLong
}

// removeUnlessMade removes an entry, unless another process is making it: that one has its lock.
func (c Cache) removeUnlessMade(name string) (bool, error) {
	path := filepath.Join(c.Dir, name)
	lock, err := os.OpenFile(strings.TrimSuffix(path, workSuffix)+lockSuffix, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false, err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return false, nil
	}
	return true, errors.Join(os.RemoveAll(path), os.Remove(lock.Name()))
}
