// Package tree builds the root file system of the lab's machines: a small Debian from
// packages, kept in a cache under a name that is derived from everything it was made of. The
// cached tree is only ever read; machines put a layer of their own over it.
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

// Suite is the Debian release the machines run.
const Suite = "bookworm"

// packages are in every tree: what a stemcell has and the agent or a judge of the tests uses.
var packages = slices.Concat([]string{
	"systemd", "systemd-sysv", "systemd-resolved", "systemd-timesyncd", "dbus", "udev", "kmod",
	"iproute2", "nftables", "netbase", "ca-certificates", "openssh-server",
}, managedfs.Packages(), []string{
	"parted", "fdisk", "cloud-guest-utils", "util-linux",
	"monit", "sudo", "passwd", "procps", "logrotate", "less", "strace",
})

// excluded from the packages: a test machine needs no documentation.
var excluded = []string{"/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*"}

// files are put over the packages; an empty content is a link to /dev/null, which masks a unit.
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

// LabFiles are the names of what is put over the packages for the lab alone.
func LabFiles() []string { return slices.Sorted(maps.Keys(files)) }

// units that the packages leave disabled, or enabled though the machines do without.
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

// DefaultDir returns the directory for trees: the value of CAMBIUM_LAB_CACHE or, without it, /var/cache/cambium-lab.
func DefaultDir() string {
	if dir := os.Getenv("CAMBIUM_LAB_CACHE"); dir != "" {
		return dir
	}
	return "/var/cache/cambium-lab"
}

// Prefix begins the names of trees in the cache.
const Prefix = "tree-"

// StemcellPrefix begins the names of trees with the packages of a stemcell.
const StemcellPrefix = "stemcell-" + Prefix

// Private makes the directory of a cache, and closes its trees to other users, also those that former versions have
// left: they hold set-user-ID programs, which nobody updates. Other things in the directory are the operator's.
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

// Path returns the path of the tree, whether it exists yet or not: its name holds a digest of its recipe.
func (c Cache) Path() string {
	h := sha256.New()
	_, _ = fmt.Fprintln(h, "1", Suite, packages, excluded, enable, disable)
	_, _ = fmt.Fprintln(h, files) // maps print sorted
	return filepath.Join(c.Dir, Prefix+Suite+"-"+hex.EncodeToString(h.Sum(nil))[:16])
}

// Built reports whether the tree is there.
func (c Cache) Built() bool {
	_, err := os.Stat(c.Path())
	return err == nil
}

// Ensure returns the tree, building it if it is not there, and holds it. Of several processes that ask at
// once, one builds and the others wait.
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

// make builds the tree in a directory that is closed to other users from the beginning.
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

// put replaces a file of a tree; links of the tree do not lead out of it.
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
