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
	Modules string // the directory that holds lib/modules/VERSION's content
	Version string
}

// kernelPackage is small and has the drivers of virtual machines.
const kernelPackage = "linux-image-cloud-amd64"

// kernelDir is its place in the cache.
const kernelDir = "kernel-of-release-" + kernelPackage

// EnsureKernel returns the kernel, which is fetched once.
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

// fetchKernel takes the kernel of Debian's last point release, not the one of its security updates: those come without
// the months of use, and 6.1.192 dereferences NULL in ext4_mb_load_buddy_gfp when ext4's cached bitmaps were reclaimed.
func fetchKernel(ctx context.Context, dir string) error {
	const script = `cd "$1"
. /etc/os-release
get() {
  p=$(apt-cache -o APT::Default-Release="$VERSION_CODENAME" depends "$2" | awk '/Depends:/{print $2; exit}')
  [ -n "$p" ] && apt-get -qq download "$p"
}
get "$@" || { apt-get -qq update && get "$@"; } || exit 1
dpkg-deb -x *.deb . && rm -rf *.deb usr boot/System.map*`
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("package %s is needed, but this host has no apt-get", kernelPackage)
	}
	return run(ctx, "sh", "-c", script, "sh", dir, kernelPackage)
}
