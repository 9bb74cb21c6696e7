package tree

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// Kernel reads and changes the machine below Root.
type Kernel struct {
	Root string
	Log  *logrus.Entry
}

func (k *Kernel) joinRoot(path string) string { return filepath.Join(k.Root, path) }

// Observe inspects all paths of the entries, and logs differences that Diff will not change.
func (k *Kernel) Observe(ctx context.Context, want Desired) (State, error) {
	state := State{Paths: make(map[string]Found, len(want))}
	var err error
	if state.Users, err = k.names("etc/passwd"); err != nil {
		return State{}, err
	}
	if state.Groups, err = k.names("etc/group"); err != nil {
		return State{}, err
	}
	for _, e := range want {
		if ctx.Err() != nil {
			return State{}, context.Cause(ctx)
		}
		paths := []string{e.Path}
		if e.Kind == Bind && e.Source != e.Path {
			paths = append(paths, e.Source)
		}
		for _, p := range paths {
			if _, seen := state.Paths[p]; seen {
				continue
			}
			if state.Paths[p], err = k.inspect(p, e); err != nil {
				return State{}, fmt.Errorf("inspect %s: %w", p, err)
			}
		}
	}
	for _, text := range Warnings(state, want) {
		k.Log.WithField("reason", text).Warn("directory tree differs from what is expected")
	}
	return state, nil
}

// names reads the ids in passwd or group: name:password:id:…
func (k *Kernel) names(file string) (map[string]int, error) {
	data, err := os.ReadFile(k.joinRoot(file))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read accounts: %w", err)
	}
	ids := make(map[string]int)
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		fields := strings.SplitN(s.Text(), ":", 4)
		if len(fields) < 4 {
			continue
		}
		id, err := strconv.ParseUint(fields[2], 10, 31)
		if _, twice := ids[fields[0]]; err == nil && !twice {
			ids[fields[0]] = int(id)
		}
	}
	return ids, nil
}

// inspect describes a path. statx reports whether it is the root of a mount, including bind mounts, so the mount table
// need not be read. A path that jobs can replace is inspected by this single call.
func (k *Kernel) inspect(path string, e Entry) (Found, error) {
	full := k.joinRoot(path)
	flags := unix.AT_STATX_SYNC_AS_STAT | unix.AT_NO_AUTOMOUNT
	if e.Kind == Symlink || e.NoFollow {
		flags |= unix.AT_SYMLINK_NOFOLLOW
	}
	var x unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, full, flags, unix.STATX_BASIC_STATS, &x)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return Found{}, nil
	}
	if err != nil {
		return Found{}, err
	}
	if x.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return Found{}, fmt.Errorf("this kernel does not report mount points by statx; Linux 5.8 or newer is needed")
	}
	found := Found{
		Exists:    true,
		Mode:      permissionsOf(x.Mode),
		Type:      typeOf(x.Mode),
		UID:       int(x.Uid),
		GID:       int(x.Gid),
		Ino:       x.Ino,
		Dev:       unix.Mkdev(x.Dev_major, x.Dev_minor),
		MountRoot: x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0,
	}
	if found.MountRoot {
		var st unix.Statfs_t
		if err := unix.Statfs(full, &st); err != nil {
			return Found{}, err
		}
		found.Tmpfs = st.Type == unix.TMPFS_MAGIC
		for statFlag, flag := range map[int64]Flags{unix.ST_NODEV: NoDev, unix.ST_NOSUID: NoSuid, unix.ST_NOEXEC: NoExec} {
			if int64(st.Flags)&statFlag != 0 {
				found.Flags |= flag
			}
		}
	}
	switch {
	case e.Kind != Symlink:
	case found.Type == fs.ModeSymlink:
		if found.LinkTo, err = os.Readlink(full); err != nil {
			return Found{}, err
		}
	case found.Type == fs.ModeDir:
		if found.Empty, err = empty(full); err != nil {
			return Found{}, err
		}
	}
	return found, nil
}

func empty(dir string) (bool, error) {
	handle, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	_, err = handle.Readdirnames(1)
	if closeErr := handle.Close(); closeErr != nil {
		return false, closeErr
	}
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

func permissionsOf(mode uint16) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for bit, flag := range map[uint16]fs.FileMode{unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid,
		unix.S_ISVTX: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

func typeOf(mode uint16) fs.FileMode {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return 0
	case unix.S_IFDIR:
		return fs.ModeDir
	case unix.S_IFLNK:
		return fs.ModeSymlink
	}
	return fs.ModeIrregular
}

// Apply makes the changes in order until one fails, and returns those made. Changes may be repeated. It logs a single
// line: a first boot makes dozens of changes, and the journal takes longer than they do.
func (k *Kernel) Apply(ctx context.Context, changes []Change) (made []Change, err error) {
	var texts []string
	defer func() {
		if len(texts) > 0 {
			k.Log.WithField("change", strings.Join(texts, "; ")).Info("changed directory tree")
		}
	}()
	for _, c := range changes {
		if ctx.Err() != nil {
			return made, context.Cause(ctx)
		}
		if err := k.apply(c); err != nil {
			return made, fmt.Errorf("%s: %w", c, err)
		}
		made, texts = append(made, c), append(texts, c.String())
	}
	return made, nil
}

func (k *Kernel) apply(c Change) error {
	path := k.joinRoot(c.Entry.Path)
	switch c.Op {
	case OpMake:
		return k.make(c, path)
	case OpSetMode, OpSetOwner:
		return setOwnerAndMode(path, c)
	case OpSetAside:
		return k.setAside(path)
	case OpLink:
		return link(c.Entry.Source, path)
	case OpBind:
		return k.bind(c.Entry)
	case OpMountTmpfs:
		return mountTmpfs(path, c)
	case OpSetFlags:
		return setFlags(path, c.Entry.Flags)
	}
	return errors.New("unknown change")
}

// make creates a directory or file that only root can use until its owner and mode are set.
func (k *Kernel) make(c Change, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	var err error
	if c.Entry.Kind == File {
		var f *os.File
		if f, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
			err = f.Close()
		}
	} else {
		err = os.Mkdir(path, 0o700)
	}
	if errors.Is(err, fs.ErrExist) && c.Entry.JobOwned {
		return nil // the job has created it since Observe
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	c.Entry.NoFollow = true // a link would have been created since Observe
	return setOwnerAndMode(path, c)
}

// setOwnerAndMode sets both on the same open file. It follows a link only if the entry permits that.
func setOwnerAndMode(path string, c Change) error {
	flags := unix.O_PATH | unix.O_CLOEXEC
	if c.Entry.NoFollow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Open(path, flags, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return errors.New("there is a symbolic link")
	}
	if c.Op != OpSetMode && (c.UID >= 0 || c.GID >= 0) {
		if err := unix.Fchownat(fd, "", c.UID, c.GID, unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if c.Op == OpSetOwner {
		return nil // Diff adds an OpSetMode if the mode differs
	}
	return os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), c.Entry.Mode)
}

// setAside renames a file in place of a link, since it may contain data.
func (k *Kernel) setAside(path string) error {
	for n := 1; ; n++ {
		aside := fmt.Sprintf("%s.set-aside-%d", path, n)
		err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, aside, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err == nil {
			k.Log.WithFields(logrus.Fields{"path": path, "new_path": aside}).Warn("set aside a file in place of a link")
		}
		return err
	}
}

func link(target, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// rmdir removes only an empty directory; a link is replaced by the rename.
	if err := unix.Rmdir(path); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, temp); err != nil {
		return err
	}
	return os.Rename(temp, path)
}
