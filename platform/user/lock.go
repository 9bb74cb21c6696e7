package user

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// lock prevents other programs from editing the account files. It takes the lock of the C library, which systemd and
// the shadow tools use. The latter then create a lock file beside each account file: one that exists while we hold the
// former lock is left over from a program that was killed, and is replaced.
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
		own := fmt.Sprintf("%s.%d", path, os.Getpid())
		err := os.WriteFile(own, fmt.Appendf(nil, "%d\x00", os.Getpid()), 0o600)
		if err == nil {
			err = os.Rename(own, path+".lock")
		}
		if err != nil {
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
