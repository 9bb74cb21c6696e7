package image

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Kernel is Debian's kernel for virtual machines, unpacked but not installed.
type Kernel struct {
	Image   string // the compressed kernel
	Modules string // the directory with the content of lib/modules/VERSION
	Version string
}

// kernelPackage is a small kernel with the drivers of virtual machines.
const kernelPackage = "linux-image-cloud-amd64"

// kernelDir is the name of the kernel in the cache.
const kernelDir = "kernel-of-release-" + kernelPackage

// EnsureKernel returns the kernel. It downloads the kernel if it is not in the cache.
func (c Cache) EnsureKernel(ctx context.Context) (Kernel, error) {
	dir := filepath.Join(c.Dir, kernelDir)
	err := c.once(dir, func(work string) error {
		c.progress("fetching Debian's kernel into %s (once)", c.Dir)
		return fetchKernel(ctx, work)
	})
	if err != nil {
		return Kernel{}, fmt.Errorf("kernel: %w", err)
	}
	return findKernel(dir)
}

func findKernel(dir string) (Kernel, error) {
	images, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil || len(images) == 0 {
		return Kernel{}, errors.Join(err, fmt.Errorf("%s has no kernel; remove it, so that it is fetched again", dir))
	}
	version := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	return Kernel{Image: images[0], Modules: filepath.Join(dir, "lib", "modules", version), Version: version}, nil
}

// fetchKernel downloads the kernel of Debian's latest point release. Kernels from the security archive get less testing:
// 6.1.192 dereferences NULL in ext4_mb_load_buddy_gfp after ext4's cached bitmaps have been reclaimed.
func fetchKernel(ctx context.Context, dir string) error {
	const script = `cd "$1"
. /etc/os-release
get() {
  p=$(apt-cache -o APT::Default-Release="$VERSION_CODENAME" depends "$2" | awk '/Depends:/{print $2; exit}')
  [ -n "$p" ] && apt-get -qq download "$p"
}
get "$@" || { apt-get -qq update && get "$@"; } || exit 1
dpkg-deb -x *.deb . && rm -rf *.deb usr boot/System.map*`
	return unpackPackages(ctx, script, dir, kernelPackage)
}

// loadersDir is the name of the signed boot loaders in the cache.
const loadersDir = "signed-boot-loaders"

// ensureLoaders returns the directory of the boot loaders for EFI. It downloads them if they are not in the cache. It
// does not install their packages, which would change how this host boots.
func (c Cache) ensureLoaders(ctx context.Context) (string, error) {
	dir := filepath.Join(c.Dir, loadersDir)
	err := c.once(dir, func(work string) error {
		c.progress("fetching the signed boot loaders into %s (once)", c.Dir)
		const script = `cd "$1" && shift
apt-get -qq download "$@" || { apt-get -qq update && apt-get -qq download "$@"; } || exit 1
printf 'ii  %s unpacked, not installed\n' *.deb >` + packageTable + `
for p in *.deb; do dpkg-deb -x $p .; done && rm -rf *.deb usr/share`
		return unpackPackages(ctx, script, work, "shim-signed", "grub-efi-amd64-signed")
	})
	if err != nil {
		return "", fmt.Errorf("boot loaders: %w", err)
	}
	return dir, nil
}

// unpackPackages runs a script that downloads packages to dir and unpacks them.
func unpackPackages(ctx context.Context, script, dir string, packages ...string) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("packages %s are needed, but this host has no apt-get", strings.Join(packages, " and "))
	}
	return run(ctx, "sh", append([]string{"-c", script, "sh", dir}, packages...)...)
}
