package script

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks bounds the symbolic links in the path of a log; the kernel allows 40.
const maxLinks = 16

// openLog opens the log at path below base for appending. It creates the file and its directories if they do not exist.
// It opens each name in the path separately and does not follow links of others. It follows a link only if the agent's
// user owns it, and if the target is below base or /dev/null, since releases move logs to other disks or discard them.
// O_NONBLOCK prevents it from blocking on a FIFO.
func openLog(base, path string) (*os.File, error) {
	for range maxLinks {
		rel, err := filepath.Rel(base, path)
		if err != nil || !filepath.IsLocal(rel) {
			return nil, fmt.Errorf("script log: a link points to %s, outside %s", path, base)
		}
		file, target, err := openWithoutLinks(base, rel)
		switch {
		case err != nil:
			return nil, fmt.Errorf("script log: %w", err)
		case file != nil:
			return checkLog(file)
		case target == os.DevNull:
			return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		}
		path = target
	}
	return nil, errors.New("script log: too many links")
}

// openWithoutLinks returns the open file or, if there is a link in the path, where the path leads.
func openWithoutLinks(base, rel string) (file *os.File, target string, err error) {
	dir, err := unix.Open(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", &os.PathError{Op: "open", Path: base, Err: err}
	}
	defer func() { unix.Close(dir) }()
	names := strings.Split(rel, "/")
	for i, name := range names {
		last := i == len(names)-1
		path := filepath.Join(base, filepath.Join(names[:i+1]...))
		fd, err := openName(dir, name, last)
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
			link, err := readLink(dir, name)
			if err != nil {
				return nil, "", fmt.Errorf("%s: %w", path, err)
			}
			if !filepath.IsAbs(link) {
				link = filepath.Join(filepath.Dir(path), link)
			}
			return nil, filepath.Join(append([]string{link}, names[i+1:]...)...), nil
		}
		if last && errors.Is(err, unix.ENXIO) {
			err = errNoLog // a FIFO without a reader, or a socket
		}
		if err != nil {
			return nil, "", &os.PathError{Op: "open", Path: path, Err: err}
		}
		if last {
			return os.NewFile(uintptr(fd), path), "", nil
		}
		unix.Close(dir)
		dir = fd
	}
	return nil, "", errors.New("no name")
}

func openName(dir int, name string, last bool) (int, error) {
	if last {
		return unix.Openat(dir, name,
			unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC,
			0o640)
	}
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(dir, name, flags, 0)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if err := unix.Mkdirat(dir, name, 0o750); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	return unix.Openat(dir, name, flags, 0)
}

// readLink reads a link if the agent's user owns it. Another user could point it to any file of the machine.
func readLink(dir int, name string) (string, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", errNoLog
	}
	if int(st.Uid) != os.Geteuid() {
		return "", fmt.Errorf("a link made by user %d is not followed", st.Uid)
	}
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", target)
	if err != nil {
		return "", err
	}
	return string(target[:n]), nil
}

var errNoLog = errors.New("not a regular file")

// checkLog fails unless the file is a regular file with one name. A user can create another name for any file if the
// kernel does not protect hard links.
func checkLog(file *os.File) (*os.File, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(file.Fd()), &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1) {
		err = errNoLog
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("script log %s: %w", file.Name(), err), file.Close())
	}
	return file, nil
}
