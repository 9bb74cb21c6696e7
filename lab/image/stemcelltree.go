package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"cambium/lab/tree"
	assets "cambium/stemcell-assets"
)

// stemcellPackages lists the packages of a stemcell beyond those of the lab's tree: a log daemon, cron, chrony, which
// replaces timesyncd, a password quality checker, programs that releases' scripts call, and compilers.
var stemcellPackages = append([]string{
	"rsyslog", "rsyslog-gnutls", "rsyslog-relp", "cron", "auditd", "chrony", "libpam-pwquality", "netcat-openbsd",
	"runit", "rsync", "psmisc", "lsof", "unzip", "bind9-dnsutils", "net-tools", "ethtool", "iputils-ping",
	"iputils-arping", "iptables", "gdisk", "quota",
	"curl", "wget", "file", "gawk",
}, devTools...)

// devTools lists the packages whose files remove_dev_tools removes.
var devTools = []string{"build-essential", "binutils", "gcc", "g++", "gcc-12", "g++-12", "cpp", "cpp-12", "make",
	"dpkg-dev", "patch", "libc6-dev", "libc-dev-bin", "linux-libc-dev", "libstdc++-12-dev", "libgcc-12-dev"}

// stemcellTreePath returns the path of the tree of stemcells, which may not exist yet. The name contains a digest of
// the recipe.
func (c Cache) stemcellTreePath(lab string) string {
	h := sha256.Sum256(fmt.Append(nil, "2", lab, stemcellPackages))
	return filepath.Join(c.Dir, tree.StemcellPrefix+hex.EncodeToString(h[:])[:16])
}

// stemcellTree returns the lab's tree with a layer of the stemcell's packages, as directories for an overlay.
func (c Cache) stemcellTree(ctx context.Context, lab string) (string, error) {
	dir := c.stemcellTreePath(lab)
	err := c.once(dir, func(work string) error {
		c.progress("adding the packages of a stemcell (once, about a minute)")
		layer := tree.Layer{Tree: lab, Dir: work}
		if err := layer.Make(); err != nil {
			return err
		}
		return layer.Mounted(func(root string) error { return addPackages(ctx, root) })
	})
	return filepath.Join(dir, "upper") + ":" + lab, err
}

func addPackages(ctx context.Context, root string) error {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	// chrony takes its place, and dpkg installs none beside it.
	if err := run(ctx, "chroot", root, "dpkg", "--purge", "systemd-timesyncd"); err != nil {
		return err
	}
	// mmdebstrap makes these itself, and takes nothing that is there.
	for _, name := range []string{"dev", "etc/resolv.conf", "etc/hostname"} {
		if err := dir.RemoveAll(name); err != nil {
			return err
		}
	}
	if err := dir.Mkdir("dev", 0o755); err != nil {
		return err
	}
	if err := dir.WriteFile("etc/resolv.conf", nil, 0o644); err != nil {
		return err
	}
	args := []string{"--quiet", "--variant=custom", "--mode=root", "--skip=check/empty",
		"--include=" + strings.Join(stemcellPackages, ",")}
	for _, pattern := range []string{"man", "doc", "locale", "info"} {
		args = append(args, "--dpkgopt=path-exclude=/usr/share/"+pattern+"/*")
	}
	if err := run(ctx, "mmdebstrap", append(args, tree.Suite, root)...); err != nil {
		return err
	}
	// Releases give it their files, and rsyslog runs as it.
	if err := run(ctx, "chroot", root, "useradd", "--system", "--user-group", "--no-create-home",
		"--home-dir=/nonexistent", "--shell=/usr/sbin/nologin", "--groups=adm", "syslog"); err != nil {
		return err
	}
	// What the lab put there for itself goes; PutRootFS has the stemcell's.
	for _, name := range tree.LabFiles() {
		if err := dir.RemoveAll(strings.TrimPrefix(name, "/")); err != nil {
			return err
		}
	}
	if err := dir.Remove("etc/resolv.conf"); err != nil {
		return err
	}
	return dir.Symlink("../run/systemd/resolve/stub-resolv.conf", "etc/resolv.conf")
}

// masked lists units that a stemcell does not need: bosh-var-log.service flushes the journal, the agent knows when the
// network is up, audit records go only to auditd, and only runit's tools are used.
var masked = []string{"runit.service", "systemd-journald-audit.socket", "systemd-journal-flush.service",
	"systemd-networkd-wait-online.service", "e2scrub_reap.service", "e2scrub_all.timer", "fstrim.timer",
	"apt-daily.timer", "apt-daily-upgrade.timer"}

// fillStemcell completes the tree of a stemcell: it removes what identifies a machine, and writes the lists that
// releases and the Director read.
func (b builder) fillStemcell(ctx context.Context, root string) error {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	keys, err := fs.Glob(dir.FS(), "etc/ssh/ssh_host_*")
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := dir.Remove(key); err != nil {
			return err
		}
	}
	if err := errors.Join(assets.PutRootFS(root), putShells(dir)); err != nil {
		return err
	}
	if err := dir.WriteFile("etc/machine-id", nil, 0o444); err != nil {
		return err
	}
	for name, mode := range map[string]os.FileMode{"etc/crontab": 0o600, "etc/cron.d": 0o700, "etc/cron.hourly": 0o700,
		"etc/cron.daily": 0o700, "etc/cron.weekly": 0o700, "etc/cron.monthly": 0o700,
		"etc/ssh/sshd_config": 0o600} {
		if err := dir.Chmod(name, mode); err != nil {
			return err
		}
	}
	if err := run(ctx, "systemctl", append([]string{"--root=" + root, "--quiet", "mask"}, masked...)...); err != nil {
		return err
	}
	if err := run(ctx, "systemctl", "--root="+root, "--quiet", "enable", "ssh.service", "ssh-more-host-keys.service",
		"bosh-var-log.service"); err != nil {
		return err
	}
	if err := markUpdated(dir); err != nil {
		return err
	}
	// The hook of the agent starts auditd.
	if err := run(ctx, "systemctl", "--root="+root, "--quiet", "disable", "auditd.service"); err != nil {
		return err
	}
	if b.kernel.Image != "" {
		if err := b.fillBoot(dir); err != nil {
			return err
		}
	}
	if b.hardened {
		if err := harden(ctx, root, dir); err != nil {
			return fmt.Errorf("harden: %w", err)
		}
	}
	return b.writeLists(ctx, root, dir)
}

// putShells gives root and vcap the shell start-up file that new users get.
func putShells(root *os.Root) error {
	content, err := root.ReadFile("etc/skel/.bashrc")
	if err != nil {
		return err
	}
	home, err := root.Stat("home/vcap")
	if err != nil {
		return err
	}
	owner, ok := home.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("home/vcap has no owner")
	}
	const vcap = "home/vcap/.bashrc"
	return errors.Join(root.WriteFile("root/.bashrc", content, 0o644), root.WriteFile(vcap, content, 0o644),
		root.Lchown(vcap, int(owner.Uid), int(owner.Gid)))
}

// markUpdated marks /etc and /var as up to date with /usr. Without that, systemd-sysusers would run at every boot,
// before sysinit.target, and find nothing to do.
func markUpdated(root *os.Root) error {
	return errors.Join(root.WriteFile("etc/.updated", nil, 0o644), root.WriteFile("var/.updated", nil, 0o644))
}

func (b builder) fillBoot(root *os.Root) error {
	if err := root.MkdirAll("boot/grub", 0o755); err != nil {
		return err
	}
	if err := root.WriteFile("boot/grub/grub.cfg", []byte(b.bootConfig()), 0o600); err != nil {
		return err
	}
	if err := root.WriteFile("etc/fstab", []byte("UUID="+rootUUID+" / ext4 defaults 1 1\n"), 0o644); err != nil {
		return err
	}
	initrd := filepath.Join(b.work, "initrd")
	for from, to := range map[string]string{b.kernel.Image: "boot/vmlinuz", initrd: "boot/initrd"} {
		if err := copyInto(root, from, to); err != nil {
			return err
		}
	}
	return nil
}

// copyInto copies a file of the host with its permissions. The destination must not exist.
func copyInto(root *os.Root, from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	target, err := root.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}

// writeLists writes the lists of packages, for the tarball, and the lists of files that remove_dev_tools and
// remove_static_libraries remove, for the machine.
func (b builder) writeLists(ctx context.Context, root string, dir *os.Root) error {
	admin := "--admindir=" + filepath.Join(root, "var/lib/dpkg")
	output := func(name string, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env = append(os.Environ(), "COLUMNS=200", "LC_ALL=C")
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		return string(out), nil
	}
	table, err := output("dpkg", admin, "-l")
	if err != nil {
		return err
	}
	if b.kernel.Image != "" {
		table += "ii  linux-image-" + b.kernel.Version + " unpacked, not installed\n"
		loaders, err := os.ReadFile(filepath.Join(b.loaders, packageTable))
		if err != nil {
			return err
		}
		table += string(loaders)
	}
	packages, err := output("dpkg-query", admin, "-W", "-f", "${Package} ${Version} ${Architecture}\n")
	if err != nil {
		return err
	}
	listed, err := output("dpkg-query", append([]string{admin, "-L"}, devTools...)...)
	if err != nil {
		return err
	}
	var tools []string
	for line := range strings.Lines(listed) {
		name := strings.TrimSpace(line)
		if strings.HasPrefix(name, "/") && removable(root, name) {
			tools = append(tools, name)
		}
	}
	slices.Sort(tools)
	archives, err := output("find", root, "-xdev", "-name", "*.a", "-type", "f", "-printf", "/%P\n")
	if err != nil {
		return err
	}
	static := strings.Fields(archives)
	slices.Sort(static)
	toolList := strings.Join(slices.Compact(tools), "\n") + "\n"
	for name, content := range map[string]string{
		devToolsList: toolList, "static_libraries_list": strings.Join(static, "\n") + "\n",
	} {
		if err := dir.WriteFile(filepath.Join("var/vcap/bosh/etc", name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{packageTable: table, "packages": packages, devToolsList: toolList} {
		if err := os.WriteFile(filepath.Join(b.work, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// removable reports whether a name is a file, or a link to a file. Packages also contain directories, and some of these
// are links: if an agent removed /lib, no program would start.
func removable(root, name string) bool {
	path := filepath.Join(root, name)
	if target, err := os.Readlink(path); err == nil {
		if path = filepath.Join(filepath.Dir(path), target); filepath.IsAbs(target) {
			path = filepath.Join(root, target)
		}
		info, err := os.Stat(path)
		return err != nil || !info.IsDir()
	}
	info, err := os.Lstat(path)
	return err == nil && !info.IsDir()
}

const (
	devToolsList = "dev_tools_file_list"
	packageTable = "packages.txt"
)
