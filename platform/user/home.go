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

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// What is written in somebody's home goes through os.Root: the user could have put links
// there that lead elsewhere, and the agent is root.

const (
	sshDir  = ".ssh"
	keyName = ".ssh/authorized_keys"
)

// keyFile is what is at a user's authorized_keys.
type keyFile struct {
	content  []byte
	mode     fs.FileMode
	uid      int
	dirMode  fs.FileMode
	dirOwner int
}

// join is the file's content: no line break at the end, as it always was.
func join(keys []string) []byte {
	var lines []string
	for _, key := range keys {
		if key = strings.TrimSpace(key); key != "" {
			lines = append(lines, key)
		}
	}
	return []byte(strings.Join(lines, "\n"))
}

func (k keyFile) is(keys []string, account Account) bool {
	return bytes.Equal(k.content, join(keys)) && k.mode == 0o600 && k.uid == account.UID && k.dirMode == fs.ModeDir|0o700 && k.dirOwner == account.UID
}

// behind adds the keys that are there to others.
func (k keyFile) behind(keys []string) []string {
	keys = strings.Split(string(join(keys)), "\n")
	for line := range strings.Lines(string(k.content)) {
		if line = strings.TrimSpace(line); !slices.Contains(keys, line) {
			keys = append(keys, line)
		}
	}
	return keys
}

// readKeys returns nothing for what is missing or unreadable: it will be written anew.
func (a *Accounts) readKeys(account Account) (k keyFile) {
	home, err := os.OpenRoot(a.at(account.Home))
	if err != nil {
		return keyFile{}
	}
	defer home.Close()
	if info, err := home.Lstat(sshDir); err == nil {
		k.dirMode, k.dirOwner = info.Mode(), owner(info)
	}
	// The user decides what is there: a pipe must not block us, a huge file not fill memory.
	if info, err := home.Lstat(keyName); err != nil || !info.Mode().IsRegular() {
		return k
	}
	file, err := home.OpenFile(keyName, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return k
	}
	defer file.Close()
	const most = 1 << 20
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > most {
		return k
	}
	k.mode, k.uid = info.Mode(), owner(info)
	if k.content, err = io.ReadAll(io.LimitReader(file, most)); err != nil {
		return keyFile{}
	}
	return k
}

// removeAll tries again when files appear while it removes: the user may be logged in.
func removeAll(path string) (err error) {
	for range 5 {
		if err = os.RemoveAll(path); !errors.Is(err, syscall.ENOTEMPTY) {
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
	home, err := os.OpenRoot(a.at(account.Home))
	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(filepath.Dir(a.at(account.Home)), 0o755)
		if err == nil {
			err = os.Mkdir(a.at(account.Home), 0o700)
		}
		if err == nil {
			home, err = os.OpenRoot(a.at(account.Home))
		}
		if err == nil {
			err = own(home, ".", account, 0o700)
		}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, home.Close()) }()
	if err := home.Mkdir(sshDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	dir, err := home.OpenRoot(sshDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if err := own(dir, ".", account, 0o700); err != nil {
		return err
	}
	name := filepath.Base(keyName)
	temp := "." + name + "." + rand.Text()
	file, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(join(keys))
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

// own gives a file that is open to the user: by handle, so that it cannot be exchanged.
func own(root *os.Root, name string, account Account, mode fs.FileMode) error {
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

// makeHome makes the home of a user that is about to appear. What is there under the name is
// left over from one that is gone, and nobody's.
func (a *Accounts) makeHome(account Account, s Session) (err error) {
	base := a.at(s.HomeBase)
	if err := os.MkdirAll(base, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(base, 0o755); err != nil {
		return err
	}
	path := a.at(account.Home)
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	home, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, home.Close()) }()
	if err := a.copySkeleton(home, account); err != nil {
		return fmt.Errorf("home of %s: %w", account.Name, err)
	}
	if err := own(home, ".", account, 0o700); err != nil {
		return err
	}
	return a.writeKeys(account, s.Keys)
}

// copySkeleton gives a new home what every home starts with.
func (a *Accounts) copySkeleton(home *os.Root, account Account) error {
	skeleton := a.at("etc/skel")
	if _, err := os.Stat(skeleton); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fs.WalkDir(os.DirFS(skeleton), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		switch {
		case entry.IsDir():
			if err := home.Mkdir(path, 0o700); err != nil {
				return err
			}
			return own(home, path, account, info.Mode().Perm())
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(filepath.Join(skeleton, path))
			if err != nil {
				return err
			}
			if err := home.Symlink(target, path); err != nil {
				return err
			}
			return home.Lchown(path, account.UID, account.GID)
		case info.Mode().IsRegular():
			if err := copyFile(home, path, filepath.Join(skeleton, path)); err != nil {
				return err
			}
			return own(home, path, account, info.Mode().Perm())
		}
		return nil
	})
}

func copyFile(home *os.Root, path, from string) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	file, err := home.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, source)
	return errors.Join(err, file.Close())
}

// removeHome removes a user's home and mail, if they are its own: a home that somebody set to
// /var or to another's directory is left.
func (a *Accounts) removeHome(account Account, mailDir string) error {
	if mailDir == "" {
		mailDir = "/var/mail"
	}
	var failed []error
	for _, path := range []string{account.Home, filepath.Join(mailDir, account.Name)} {
		if !filepath.IsAbs(path) || strings.Count(filepath.Clean(path), "/") < 2 {
			continue
		}
		info, err := os.Lstat(a.at(path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && owner(info) != account.UID {
			if a.Log != nil {
				a.Log.WithFields(logrus.Fields{"user": account.Name, "path": path}).Warn("belongs to somebody else than the removed user and stays")
			}
			continue
		}
		if err == nil {
			err = removeAll(a.at(path))
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}
