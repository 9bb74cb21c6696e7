//go:build vm

package configdrive

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestVMDrives runs guestChecks as the first process of a virtual machine with a CD drive and
// a config drive: a real sr driver, a real tray, real block devices, no udev.
func TestVMDrives(t *testing.T) {
	needs(t, "qemu-system-x86_64", "genisoimage", "go")
	dir := t.TempDir()
	kernel, modules := debianKernel(t)
	initrd := filepath.Join(dir, "initrd")
	if err := os.WriteFile(initrd, guestTree(t, dir, modules), 0o600); err != nil {
		t.Fatal(err)
	}
	cd := filepath.Join(dir, "env.iso")
	tree := filepath.Join(dir, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "env"), []byte(files["env"]), 0o600); err != nil {
		t.Fatal(err)
	}
	host(t, "genisoimage", "-quiet", "-o", cd, tree)
	drive, late := makeFAT(t, "config-2", files), makeFAT(t, "late", files)
	before := []string{fileSum(t, cd), fileSum(t, drive), fileSum(t, late)}

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	monitor := filepath.Join(dir, "monitor")
	vm := exec.CommandContext(ctx, "qemu-system-x86_64", "-machine", "pc", "-accel", "tcg,thread=multi", "-cpu", "qemu64", "-smp", "2", "-m", "768",
		"-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio", "-monitor", "unix:"+monitor+",server=on,wait=off",
		"-kernel", kernel, "-initrd", initrd, "-append", "console=ttyS0 panic=-1 quiet",
		"-device", "virtio-scsi-pci", "-drive", "if=none,id=cd,media=cdrom,readonly=on,file="+cd, "-device", "scsi-cd,drive=cd",
		// Writable, so that a write would show.
		"-drive", "if=none,id=drive,format=raw,file="+drive, "-device", "virtio-blk-pci,drive=drive")
	console, err := vm.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	vm.Stderr = vm.Stdout
	if err := vm.Start(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	passed, finished := 0, false
	for lines := bufio.NewScanner(console); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		log.WriteString(line + "\n")
		switch word, rest, _ := strings.Cut(line, " "); word {
		case "GUEST-PASS":
			passed++
			t.Log(rest)
		case "GUEST-FAIL":
			t.Error(rest)
		case "GUEST-PLUG":
			plug(t, monitor, late)
		case "GUEST-END":
			finished = true
		}
	}
	_ = vm.Wait()
	if !finished || passed != len(guestChecks) {
		t.Errorf("%d of %d checks passed, finished: %v\n%s", passed, len(guestChecks), finished, log.String())
	}
	for i, image := range []string{cd, drive, late} {
		if fileSum(t, image) != before[i] {
			t.Errorf("%s was written to", filepath.Base(image))
		}
	}
}

func needs(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			unavailable(t, "needs "+tool)
		}
	}
}

func unavailable(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

func host(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

func fileSum(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))
}

// plug hot-plugs a disk.
func plug(t *testing.T, monitor, image string) {
	conn, err := net.Dial("unix", monitor)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	prompt := func() {
		for buffer, seen := make([]byte, 4096), ""; !strings.Contains(seen, "(qemu) "); {
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			seen += string(buffer[:n])
		}
	}
	prompt()
	for _, command := range []string{"drive_add 0 if=none,id=late,format=raw,file=" + image, "device_add virtio-blk-pci,drive=late"} {
		fmt.Fprintln(conn, command)
		prompt()
	}
}

// debianKernel returns the kernel and the directory of its modules, from a package that is
// fetched once and never installed.
func debianKernel(t *testing.T) (kernel, modules string) {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	cache = filepath.Join(cache, "cambium", "kernel")
	find := func() (string, string) {
		kernels, _ := filepath.Glob(filepath.Join(cache, "boot", "vmlinuz-*"))
		if len(kernels) == 0 {
			return "", ""
		}
		return kernels[0], filepath.Join(cache, "lib", "modules")
	}
	if kernel, modules = find(); kernel != "" {
		return kernel, modules
	}
	needs(t, "apt-get", "apt-cache", "dpkg-deb")
	temporary := t.TempDir()
	script := `cd "$1" && get() { p=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends:/{print $2; exit}') && [ -n "$p" ] && apt-get -qq download "$p"; }
get || { apt-get -qq update && get; } && dpkg-deb -x *.deb tree`
	if out, err := exec.Command("sh", "-c", script, "sh", temporary).CombinedOutput(); err != nil {
		unavailable(t, fmt.Sprintf("no kernel package: %v: %s", err, out))
	}
	if err := os.MkdirAll(filepath.Dir(cache), 0o755); err != nil {
		t.Fatal(err)
	}
	host(t, "cp", "-rT", filepath.Join(temporary, "tree"), cache)
	return find()
}

// guestModules are loaded in as many rounds as their dependencies need.
var guestModules = []string{"virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk", "scsi_common", "scsi_mod", "virtio_scsi", "cdrom", "sr_mod"}

// guestTree is an initial RAM disk with this test as its only program.
func guestTree(t *testing.T, dir, modules string) []byte {
	t.Helper()
	guest := filepath.Join(dir, "guest")
	build := exec.Command("go", "test", "-c", "-tags", "vm", "-o", guest, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var archive bytes.Buffer
	for _, name := range []string{"dev", "proc", "sys", "tmp", "modules"} {
		addToArchive(&archive, name, 0o40755, 0, 0, nil)
	}
	addToArchive(&archive, "dev/console", 0o20600, 5, 1, nil)
	addFile(t, &archive, "init", guest)
	err := filepath.WalkDir(modules, func(path string, _ fs.DirEntry, err error) error {
		for _, name := range guestModules {
			if filepath.Base(path) == name+".ko" {
				addFile(t, &archive, "modules/"+name+".ko", path)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	addToArchive(&archive, "TRAILER!!!", 0, 0, 0, nil)
	return archive.Bytes()
}

func addFile(t *testing.T, archive *bytes.Buffer, name, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	addToArchive(archive, name, 0o100755, 0, 0, content)
}

// addToArchive writes one member of a cpio archive in the "newc" format.
func addToArchive(archive *bytes.Buffer, name string, mode, major, minor int, content []byte) {
	fmt.Fprintf(archive, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", 0, mode, 0, 0, 1, 0, len(content), 0, 0, major, minor, len(name)+1, 0)
	pad := func() {
		for archive.Len()%4 != 0 {
			archive.WriteByte(0)
		}
	}
	io.WriteString(archive, name+"\x00")
	pad()
	archive.Write(content)
	pad()
}
