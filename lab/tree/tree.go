// Package tree builds the root file system of the lab's machines: a small Debian, kept in a cache under a name derived
// from its recipe. A cached tree is never changed; each machine has a writable layer over it.
package tree

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"cambium/internal/managedfs"
)

// Suite is the Debian release of the machines.
const Suite = "bookworm"

// packages lists the packages of every tree: those of a stemcell that the agent or the tests need.
var packages = slices.Concat([]string{
	"systemd", "systemd-sysv", "systemd-resolved", "systemd-timesyncd", "dbus", "udev", "kmod",
	"iproute2", "nftables", "netbase", "ca-certificates", "openssh-server",
}, managedfs.Packages(), []string{
	"parted", "fdisk", "cloud-guest-utils", "util-linux",
	"monit", "sudo", "passwd", "procps", "logrotate", "less", "strace",
})

// excluded lists files of packages that a test machine does not need.
var excluded = []string{"/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*"}

// files lists files that replace those of the packages. If the content is empty, a link to /dev/null masks a unit.
var files = map[string]string{
	"/etc/hostname": "lab\n",
	"/etc/hosts":    "127.0.0.1 localhost\n",
	// As on stemcells: the journal lives in memory.
	"/etc/systemd/journald.conf.d/lab.conf":                    "[Journal]\nStorage=volatile\nRateLimitIntervalSec=0\n",
	"/etc/systemd/network/80-container-host0.network":          "",
	"/etc/systemd/system/systemd-networkd-wait-online.service": "",
	"/etc/systemd/system/console-getty.service":                "",
	"/etc/systemd/system/e2scrub_reap.service":                 "",
	"/etc/systemd/system/e2scrub_all.timer":                    "",
	"/etc/systemd/system/fstrim.timer":                         "",
}

// LabFiles returns the names of files that only the lab's own machines need.
func LabFiles() []string { return slices.Sorted(maps.Keys(files)) }

// Units that are enabled or disabled, contrary to the packages.
var (
	enable  = []string{"systemd-networkd.service", "systemd-resolved.service"}
	disable = []string{"ssh.service", "monit.service", "nftables.service"}
)

// Cache is a directory of trees.
type Cache struct {
	Dir string
	// Progress receives the output of mmdebstrap; nil discards it.
	Progress io.Writer
}

// DefaultDir returns the directory of the cache: the value of CAMBIUM_LAB_CACHE or, if it is not set,
// /var/cache/cambium-lab.
func DefaultDir() string {
	if dir := os.Getenv("CAMBIUM_LAB_CACHE"); dir != "" {
		return dir
	}
	return "/var/cache/cambium-lab"
}

// Prefix is the prefix of trees in the cache.
const Prefix = "tree-"

// StemcellPrefix is the prefix of trees with the packages of a stemcell.
const StemcellPrefix = "stemcell-" + Prefix

// Private creates the directory of a cache, and makes its trees inaccessible to other users, even those of former
// versions: they contain set-user-ID programs, which nobody updates. It does not change other files in the directory.
func Private(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if !e.IsDir() || !strings.HasPrefix(name, Prefix) && !strings.HasPrefix(name, StemcellPrefix) {
			continue
		}
		if err := os.Chmod(filepath.Join(dir, name), 0o700); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Path returns the path of the tree, which may not exist yet. The name contains a digest of the recipe.
func (c Cache) Path() string {
	h := sha256.New()
	_, _ = fmt.Fprintln(h, "1", Suite, packages, excluded, enable, disable)
	_, _ = fmt.Fprintln(h, files) // maps print sorted
	return filepath.Join(c.Dir, Prefix+Suite+"-"+hex.EncodeToString(h.Sum(nil))[:16])
}

// Built reports whether the tree exists.
func (c Cache) Built() bool {
	_, err := os.Stat(c.Path())
	return err == nil
}

// Ensure returns the path of the tree, builds it if it does not exist, and holds it. If several processes call it at
// the same time, one builds the tree and the others wait.
func (c Cache) Ensure(ctx context.Context) (string, error) {
	path := c.Path()
	if err := Private(c.Dir); err != nil {
		return "", err
	}
	if err := Hold(path); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock the tree cache: %w", err)
	}
	if c.Built() {
		return path, Hold(path)
	}
	work := path + ".new"
	if err := os.RemoveAll(work); err != nil { // of a build that was killed
		return "", err
	}
	if err := c.make(ctx, work, path); err != nil {
		return "", fmt.Errorf("build Debian tree: %w", errors.Join(err, os.RemoveAll(work)))
	}
	return path, Hold(path)
}

// make builds the tree in a directory to which other users never have access.
func (c Cache) make(ctx context.Context, work, path string) error {
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	built := filepath.Join(work, "tree")
	if err := c.build(ctx, built); err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(built, 0o700), os.Rename(built, path)); err != nil {
		return err
	}
	return os.Remove(work)
}

func (c Cache) build(ctx context.Context, dir string) error {
	args := []string{"--variant=essential", "--mode=root", "--include=" + strings.Join(packages, ",")}
	for _, pattern := range excluded {
		args = append(args, "--dpkgopt=path-exclude="+pattern)
	}
	if err := c.run(ctx, "mmdebstrap", append(args, Suite, dir)...); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for name, content := range files {
		if err := put(root, strings.TrimPrefix(name, "/"), content); err != nil {
			return err
		}
	}
	for verb, units := range map[string][]string{"enable": enable, "disable": disable} {
		if err := c.run(ctx, "systemctl", append([]string{"--root=" + dir, "--quiet", verb}, units...)...); err != nil {
			return err
		}
	}
	return nil
}

// put replaces a file of a tree. Links in the tree cannot lead out of it.
func put(root *os.Root, name, content string) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if content == "" {
		return root.Symlink("/dev/null", name)
	}
	return root.WriteFile(name, []byte(content), 0o644)
}

func (c Cache) run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	var kept bytes.Buffer
	cmd.Stdout, cmd.Stderr = &kept, &kept
	if c.Progress != nil {
		cmd.Stderr = io.MultiWriter(&kept, c.Progress)
	}
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(kept.String()), "\n")
		return fmt.Errorf("%s: %w: %s", name, err, strings.Join(lines[max(0, len(lines)-5):], "; "))
	}
	return nil
}
