package user

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"cambium/internal/rootdir"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// Files in a home are accessed through os.Root: the agent is root, and the user may have created links that lead
// elsewhere.

const (
	sshDir  = ".ssh"
	keyName = ".ssh/authorized_keys"
)

// keyFile describes a user's authorized_keys and its directory as observed.
type keyFile struct {
	content  []byte
	mode     fs.FileMode
	uid      int
	dirMode  fs.FileMode
	dirOwner int
}

// joinKeys returns the content of authorized_keys. Like cloudfoundry/bosh-agent's, it does not end with a newline.
func joinKeys(keys []string) []byte {
	var lines []string
	for _, key := range keys {
		if key = strings.TrimSpace(key); key != "" {
			lines = append(lines, key)
		}
	}
	return []byte(strings.Join(lines, "\n"))
}

// has reports whether file and directory are as wanted for these keys.
func (k keyFile) has(keys []string, account Account) bool {
	return bytes.Equal(k.content, joinKeys(keys)) && k.mode == 0o600 && k.uid == account.UID &&
		k.dirMode == fs.ModeDir|0o700 &&
		k.dirOwner == account.UID
}

// appendTo returns keys, followed by the other keys in the file.
func (k keyFile) appendTo(keys []string) []string {
	keys = strings.Split(string(joinKeys(keys)), "\n")
	for line := range strings.Lines(string(k.content)) {
		if line = strings.TrimSpace(line); !slices.Contains(keys, line) {
			keys = append(keys, line)
		}
	}
	return keys
}

// readKeys reads a user's authorized_keys. Fields are zero if something is missing or unreadable; it will be replaced.
func (a *Accounts) readKeys(account Account) (k keyFile) {
	home, err := os.OpenRoot(a.joinRoot(account.Home))
	if err != nil {
		return keyFile{}
	}
	defer home.Close()
	if info, err := home.Lstat(sshDir); err == nil {
		k.dirMode, k.dirOwner = info.Mode(), owner(info)
	}
	// The user controls this path: a pipe must not block, and a huge file must not exhaust the memory.
	if info, err := home.Lstat(keyName); err != nil || !info.Mode().IsRegular() {
		return k
	}
	file, err := home.OpenFile(keyName, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return k
	}
	defer file.Close()
	const limit = 1 << 20
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > limit {
		return k
	}
	k.mode, k.uid = info.Mode(), owner(info)
	if k.content, err = io.ReadAll(io.LimitReader(file, limit)); err != nil {
		return keyFile{}
	}
	return k
}

// removeAll removes a directory tree. It tries again if files appear meanwhile, since the user may be logged in.
func removeAll(parent *os.Root, name string) (err error) {
	for range 5 {
		if err = parent.RemoveAll(name); !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
	}
	return err
}

func owner(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

// writeKeys replaces a user's authorized keys.
func (a *Accounts) writeKeys(account Account, keys []string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("authorized keys of %s: %w", account.Name, err)
		}
	}()
	home, err := os.OpenRoot(a.joinRoot(account.Home))
	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(filepath.Dir(a.joinRoot(account.Home)), 0o755) // in a directory of root alone
		if err == nil {
			err = os.Mkdir(a.joinRoot(account.Home), 0o700) // in a directory of root alone
		}
		if err == nil {
			home, err = os.OpenRoot(a.joinRoot(account.Home))
		}
		if err == nil {
			err = setOwner(home, ".", account, 0o700)
		}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, home.Close()) }()
	if err := home.Mkdir(sshDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	dir, err := rootdir.Open(home, sshDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if err := checkSSHDir(home, dir, account); err != nil {
		return err
	}
	if err := setOwner(dir, ".", account, 0o700); err != nil {
		return err
	}
	name := filepath.Base(keyName)
	temp := "." + name + "." + rand.Text()
	file, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(joinKeys(keys))
	if err == nil {
		err = file.Chown(account.UID, account.GID)
	}
	if err == nil {
		err = file.Chmod(0o600)
	}
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = dir.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(err, dir.Remove(temp))
	}
	return nil
}

// checkSSHDir refuses a link in the home to a directory of another user, such as root: changing its owner would give
// the user access.
func checkSSHDir(home, dir *os.Root, account Account) error {
	entry, err := home.Lstat(sshDir)
	if err != nil {
		return err
	}
	opened, err := dir.Stat(".")
	if err != nil {
		return err
	}
	if !os.SameFile(entry, opened) && owner(opened) != account.UID {
		return fmt.Errorf("%s is a link to a directory of user %d: remove it", sshDir, owner(opened))
	}
	return nil
}

// setOwner changes owner and mode of an open file, so that it cannot be replaced meanwhile.
func setOwner(root *os.Root, name string, account Account, mode fs.FileMode) error {
	file, err := root.Open(name)
	if err != nil {
		return err
	}
	err = file.Chown(account.UID, account.GID)
	if err == nil {
		err = file.Chmod(mode)
	}
	return errors.Join(err, file.Close())
}

// makeHome creates the home of a new user. An existing directory of that name is left over from a removed user, and is
// replaced.
func (a *Accounts) makeHome(account Account, s Session) (err error) {
	base := a.joinRoot(s.HomeBase)
	if err := os.MkdirAll(base, 0o755); err != nil { // in a directory of root alone
		return err
	}
	if err := os.Chmod(base, 0o755); err != nil { // in a directory of root alone
		return err
	}
	homes, err := os.OpenRoot(base)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, homes.Close()) }()
	name := filepath.Base(account.Home)
	if err := homes.RemoveAll(name); err != nil {
		return err
	}
	if err := homes.Mkdir(name, 0o700); err != nil {
		return err
	}
	home, err := homes.OpenRoot(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, home.Close()) }()
	if err := a.copySkeleton(filepath.Join(base, name), home, account); err != nil {
		return fmt.Errorf("home of %s: %w", account.Name, err)
	}
	if err := setOwner(home, ".", account, 0o700); err != nil {
		return err
	}
	return a.writeKeys(account, s.Keys)
}

// copySkeleton copies /etc/skel to a new home.
func (a *Accounts) copySkeleton(path string, home *os.Root, account Account) error {
	skeleton := os.DirFS(a.joinRoot("etc/skel"))
	if _, err := fs.Stat(skeleton, "."); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.CopyFS(path, skeleton); err != nil { // the home is still of root alone
		return fmt.Errorf("copy the files, directories and links of /etc/skel: %w", err)
	}
	return fs.WalkDir(skeleton, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		if entry.Type() == fs.ModeSymlink {
			return home.Lchown(path, account.UID, account.GID)
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		return setOwner(home, path, account, info.Mode().Perm())
	})
}

// removeHome removes a user's home and mail if the user owns them. A home that was set to /var or another user's
// directory stays.
func (a *Accounts) removeHome(account Account, mailDir string) error {
	if mailDir == "" {
		mailDir = "/var/mail"
	}
	var failed []error
	for _, path := range []string{account.Home, filepath.Join(mailDir, account.Name)} {
		if !filepath.IsAbs(path) || strings.Count(filepath.Clean(path), "/") < 2 {
			continue
		}
		failed = append(failed, a.removeOwned(account, path))
	}
	return errors.Join(failed...)
}

// removeOwned removes a directory or file that belongs to the user.
func (a *Accounts) removeOwned(account Account, path string) (err error) {
	parent, err := os.OpenRoot(filepath.Dir(a.joinRoot(path)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, parent.Close()) }()
	name := filepath.Base(path)
	info, err := parent.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if owner(info) != account.UID {
		a.Log.WithFields(logrus.Fields{"user": account.Name, "path": path}).
			Warn("kept a file that the removed user does not own")
		return nil
	}
	return removeAll(parent, name)
}
