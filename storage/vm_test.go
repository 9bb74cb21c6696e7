//go:build vm && !root

package storage

import (
	"bufio"
	"bytes"
	"context"
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

// Sizes tell the disks of the virtual machine apart.
const (
	vmVirtio  = 65 << 20
	vmOther   = 66 << 20
	vmTarget0 = 67 << 20
	vmTarget2 = 68 << 20
	vmNVMe    = 256 << 20
	vmData    = 200 << 20
	vmLate    = 69 << 20
	vmGrown   = 600 << 20
)

const vmCID = "4d3f2a10-0000-4111-8222-123456789abc"

// TestVMDisks runs guestChecks as the first process of a virtual machine with virtio, SCSI and
// NVMe disks, one of which is plugged in and one of which grows while the machine runs.
func TestVMDisks(t *testing.T) {
	needs(t, "qemu-system-x86_64", "mkfs.ext4", "sfdisk", "ldd", "go")
	dir := t.TempDir()
	kernel, modules := debianKernel(t)
	initrd := filepath.Join(dir, "initrd")
	if err := os.WriteFile(initrd, guestTree(t, dir, modules), 0o600); err != nil {
		t.Fatal(err)
	}
	image := func(name string, size int64) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		return path
	}
	data := image("data", vmData)
	host(t, "sh", "-ec", `printf 'label: gpt\nstart=2048, name="bosh-partition-0"\n' | sfdisk -q "$0"; mkfs.ext4 -q -F -E offset=1048576 "$0" 198m`, data)

	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	monitor := filepath.Join(dir, "monitor")
	args := []string{"-machine", "pc", "-accel", "tcg,thread=multi", "-cpu", "qemu64", "-smp", "2", "-m", "768",
		"-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio", "-monitor", "unix:" + monitor + ",server=on,wait=off",
		"-kernel", kernel, "-initrd", initrd, "-append", "console=ttyS0 panic=-1 quiet", "-device", "virtio-scsi-pci,id=scsi"}
	for _, d := range []struct{ id, file, device string }{
		{"other", image("other", vmOther), "virtio-blk-pci,serial=somebody-else"},
		{"virtio", image("virtio", vmVirtio), "virtio-blk-pci,serial=" + vmCID[:20]},
		{"data", data, "virtio-blk-pci,serial=vol-data"},
		{"target0", image("target0", vmTarget0), "scsi-hd,bus=scsi.0,channel=0,scsi-id=0,lun=0"},
		{"target2", image("target2", vmTarget2), "scsi-hd,bus=scsi.0,channel=0,scsi-id=2,lun=0"},
		{"nvme", image("nvme", vmNVMe), "nvme,serial=instance"},
	} {
		args = append(args, "-drive", "if=none,id="+d.id+",format=raw,file="+d.file, "-device", d.device+",drive="+d.id)
	}
	vm := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	console, err := vm.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	vm.Stderr = vm.Stdout
	if err := vm.Start(); err != nil {
		t.Fatal(err)
	}
	late := image("late", vmLate)
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
			command(t, monitor, "drive_add 0 if=none,id=late,format=raw,file="+late, "device_add virtio-blk-pci,drive=late,serial=vol-late")
		case "GUEST-GROW":
			command(t, monitor, fmt.Sprintf("block_resize data %dM", vmGrown>>20))
		case "GUEST-END":
			finished = true
		}
	}
	_ = vm.Wait()
	if !finished || passed != len(guestChecks) {
		t.Fatalf("%d of %d checks passed, finished: %v\n%s", passed, len(guestChecks), finished, log.String())
	}
	// The host's tools judge what the guest has left.
	for _, c := range []struct{ file, offset string }{{data, "1048576"}} {
		host(t, "sh", "-ec", `sgdisk --verify "$0" | grep -q 'No problems found'; e2fsck -nf "$0?offset=`+c.offset+`"`, c.file)
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

// command speaks to the machine's monitor.
func command(t *testing.T, monitor string, commands ...string) {
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
	for _, c := range commands {
		fmt.Fprintln(conn, c)
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

// guestModules are loaded in as many rounds as their dependencies need; what is built into the
// kernel is not among the files.
var guestModules = []string{"virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk",
	"scsi_common", "scsi_mod", "virtio_scsi", "sd_mod"}

// guestTree is an initial RAM disk with this test and mkfs.ext4 as its only programs.
func guestTree(t *testing.T, dir, modules string) []byte {
	t.Helper()
	guest := filepath.Join(dir, "guest")
	build := exec.Command("go", "test", "-c", "-tags", "vm", "-o", guest, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var archive bytes.Buffer
	made := map[string]bool{}
	mkdir := func(path string) {
		for i, part := range strings.Split(path, "/") {
			if d := strings.Join(strings.Split(path, "/")[:i+1], "/"); part != "" && !made[d] {
				made[d] = true
				addToArchive(&archive, d, 0o40755, 0, 0, nil)
			}
		}
	}
	for _, name := range []string{"dev", "proc", "sys", "tmp", "modules", "var", "etc"} {
		mkdir(name)
	}
	addToArchive(&archive, "dev/console", 0o20600, 5, 1, nil)
	addFile(t, &archive, "init", guest)
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("ldd", mkfs).Output()
	if err != nil {
		t.Fatal(err)
	}
	libraries := []string{}
	for _, word := range strings.Fields(string(out)) {
		if strings.HasPrefix(word, "/") {
			libraries = append(libraries, word)
		}
	}
	mkdir("sbin")
	addFile(t, &archive, "sbin/mkfs.ext4", mkfs)
	for _, l := range libraries {
		mkdir(strings.TrimPrefix(filepath.Dir(l), "/"))
		addFile(t, &archive, strings.TrimPrefix(l, "/"), l)
	}
	err = filepath.WalkDir(modules, func(path string, _ fs.DirEntry, err error) error {
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
