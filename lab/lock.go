package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// locks is the directory with a lock file for every lab of this host, whatever directory a lab has. The lab's process
// holds the lock and writes the path of the lab's directory into the file. The kernel releases the lock when the
// process ends. Only root has access to the directory, because any user who can open a file can lock it.
const locks = "/run/cambium-lab"

func lockPath(name string) string { return filepath.Join(locks, name) }

// lock reserves the name of a lab for this process.
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

// Held reports whether a process holds the lab.
func Held(name string) bool {
	f, err := os.Open(lockPath(name))
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}

// directory returns the directory of a lab: the one that its process has recorded, or the default below dir.
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
