package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"
)

// Entries of the cache that a process uses are locked (flock) by it until it ends: the machines of a lab end with
// the lab's process. What is locked is not pruned. The lock is on the entry itself, a directory.

var (
	holdMu sync.Mutex // guards held
	held   = map[string]*os.File{}
)

// Hold marks an entry of the cache as used, and prevents its removal until this process ends. It returns fs.ErrNotExist
// if the entry does not exist, or was removed meanwhile.
func Hold(path string) error {
	holdMu.Lock()
	defer holdMu.Unlock()
	if held[path] != nil && sameFile(held[path], path) {
		return nil
	}
	entry, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(entry.Fd()), syscall.LOCK_SH); err != nil {
		_ = entry.Close()
		return fmt.Errorf("lock %s: %w", path, err)
	}
	if !sameFile(entry, path) { // it was pruned while this waited for the lock
		_ = entry.Close()
		return fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	if old := held[path]; old != nil {
		_ = old.Close()
	}
	held[path] = entry
	now := time.Now()
	return os.Chtimes(path, now, now)
}

func sameFile(open *os.File, path string) bool {
	mine, err := open.Stat()
	there, statErr := os.Stat(path)
	return errors.Join(err, statErr) == nil && os.SameFile(mine, there)
}

// UnlessHeld calls f, which may remove the entry, unless a process holds it. It reports whether it has called f.
func UnlessHeld(path string, f func() error) (bool, error) {
	entry, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = entry.Close() }()
	err = syscall.Flock(int(entry.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", path, err)
	}
	return true, f()
}
