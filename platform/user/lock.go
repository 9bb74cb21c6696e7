package user

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"cambium/internal/retry"

	"golang.org/x/sys/unix"
)

// lock prevents other programs from editing the account files. It takes the lock of the C library, which systemd and
// the shadow tools use, and then the lock files of the shadow tools.
func (a *Accounts) lock(ctx context.Context) (unlock func() error, err error) {
	held, err := lockLibrary(ctx, a.joinRoot("etc/.pwd.lock"))
	if err != nil {
		return nil, fmt.Errorf("lock accounts: %w", err)
	}
	var files []string
	unlock = func() error {
		var failed []error
		for _, f := range files {
			failed = append(failed, os.Remove(f))
		}
		return errors.Join(append(failed, held.Close())...)
	}
	for _, name := range []string{"passwd", "group", "gshadow", "shadow", "subuid", "subgid"} {
		path := a.joinRoot("etc/" + name)
		if err := a.lockFile(ctx, path); err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), unlock())
		}
		files = append(files, path+".lock")
	}
	return unlock, nil
}

// lockLibrary takes the lock of the C library. It waits in the kernel, in a goroutine that releases the lock if the
// caller was canceled.
func lockLibrary(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	wholeFile := unix.Flock_t{Type: unix.F_WRLCK, Whence: int16(unix.SEEK_SET)}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &wholeFile)
	if err == nil {
		return f, nil
	}
	if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
		return nil, errors.Join(err, f.Close())
	}
	got := make(chan error, 1)
	go func() {
		for {
			err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLKW, &wholeFile)
			if !errors.Is(err, unix.EINTR) {
				got <- err
				return
			}
		}
	}()
	select {
	case err := <-got:
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f, nil
	case <-ctx.Done():
		go func() {
			_ = errors.Join(<-got, f.Close()) // nothing was written
		}()
		return nil, fmt.Errorf("another program is editing accounts: %w", context.Cause(ctx))
	}
}

// lockFile creates path.lock like the shadow tools: a file with our process id, linked to that name. Programs that use
// these files also take the library's lock, so waits are rare.
func (a *Accounts) lockFile(ctx context.Context, path string) error {
	own := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.WriteFile(own, []byte(strconv.Itoa(os.Getpid())+"\x00"), 0o600); err != nil {
		return err
	}
	err := retry.Do(ctx, retry.Backoff{Min: 20 * time.Millisecond, Max: time.Second}, func(context.Context) error {
		err := os.Link(own, path+".lock")
		if !errors.Is(err, fs.ErrExist) {
			return retry.Final(err)
		}
		if a.abandoned(path + ".lock") {
			if err := os.Remove(path + ".lock"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return retry.Final(err)
			}
			if err := os.Link(own, path+".lock"); !errors.Is(err, fs.ErrExist) {
				return retry.Final(err)
			}
		}
		return err
	})
	return errors.Join(err, os.Remove(own))
}

// abandoned reports whether the process that created a lock file is gone. After a power cut, its id may belong to
// another process, which was started after the file was created.
func (a *Accounts) abandoned(lock string) bool {
	data, err := os.ReadFile(lock)
	if err != nil {
		return false
	}
	info, err := os.Stat(lock)
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(strings.Trim(string(data), "\x00 \n"))
	if err != nil || pid <= 0 {
		return true // the process was killed while writing it
	}
	if pid == os.Getpid() {
		return true // from an earlier agent with the same pid, since we hold the library's lock
	}
	started, err := startOf(a.joinRoot("proc"), pid)
	if errors.Is(err, fs.ErrNotExist) {
		return true
	}
	return err == nil && started.After(info.ModTime().Add(time.Second))
}

// startOf returns the time at which a process was started.
func startOf(proc string, pid int) (time.Time, error) {
	stat, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return time.Time{}, err
	}
	// The second field is the program's name in parentheses and may contain anything.
	_, rest, _ := strings.Cut(string(stat[max(strings.LastIndexByte(string(stat), ')'), 0):]), " ")
	fields := strings.Fields(rest)
	const startTime, perSecond = 19, 100 // field 22 of all; USER_HZ
	if len(fields) <= startTime {
		return time.Time{}, fmt.Errorf("process %d: unreadable stat", pid)
	}
	ticks, err := strconv.ParseInt(fields[startTime], 10, 64)
	if err != nil {
		return time.Time{}, err
	}
	system, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return time.Time{}, err
	}
	_, after, found := strings.Cut(string(system), "\nbtime ")
	line, _, _ := strings.Cut(after, "\n")
	boot, err := strconv.ParseInt(line, 10, 64)
	if !found || err != nil {
		return time.Time{}, fmt.Errorf("the boot time is unknown")
	}
	return time.Unix(boot, 0).Add(time.Duration(ticks) * time.Second / perSecond), nil
}
