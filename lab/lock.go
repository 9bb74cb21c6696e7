package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// locks is the directory with a file for every lab of this host, whatever the lab's own directory. The lab's process
// keeps the file locked and writes the path of the lab's directory into it. The kernel releases the lock when the
// process ends. The directory is root's alone: any user who can open a file can lock it.
const locks = "/run/cambium-lab"

func lockPath(name string) string { return filepath.Join(locks, name) }

// lock takes a lab's name for this process.
func lock(name, dir string) (*os.File, error) {
	if err := errors.Join(os.MkdirAll(locks, 0o700), os.Chmod(locks, 0o700)); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(lockPath(name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lab %s is up already", name)
	}
	if old, _ := os.ReadFile(f.Name()); len(old) > 0 {
		_ = f.Close()
		return nil, fmt.Errorf("lab %s is left over from a crash; remove it with: lab clean %s", name, name)
	}
	if _, err := f.WriteAt([]byte(dir), 0); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// Held reports whether a living process holds the lab.
func Held(name string) bool {
	f, err := os.Open(lockPath(name))
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}

// directory returns the directory of a lab's files: the one that its process has recorded, or else one below dir.
func directory(dir, name string) string {
	if data, err := os.ReadFile(lockPath(name)); err == nil && filepath.IsAbs(string(data)) {
		return filepath.Clean(string(data))
	}
	return filepath.Join(dir, name)
}

func lockedNames() ([]string, error) {
	entries, err := os.ReadDir(locks)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, err
}
