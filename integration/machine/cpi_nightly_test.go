//go:build machine && nightly

package machine

import (
	"bytes"
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab/iaas"
	"cambium/lab/labtest"
	"cambium/lab/release"
)

// TestNightlyStemcellTools: what releases expect of a stemcell works on the one that is shipped, imported and booted by the
// CPI: `agent compile` with the image's compilers, and the removal of what its two lists name.
func TestNightlyStemcellTools(t *testing.T) {
	c := newCloud(t, fmt.Sprintf("st%d", os.Getpid()))
	sc := c.cid("create_stemcell", stemcellImage(t), map[string]any{})
	biosVM := c.cid("create_vm", order(sc, "10.245.0.6")...)
	without := order(sc, "10.245.0.7")
	without[5] = map[string]any{"bosh": map[string]any{"password": "*", "remove_dev_tools": true,
		"remove_static_libraries": true}}
	bare := c.cid("create_vm", without...)
	c.pong("10.245.0.6", time.Minute)
	c.pong("10.245.0.7", time.Minute)

	c.put(biosVM, toolRelease(t), "/root/tool.tgz")
	compiled := strings.TrimSpace(c.run(biosVM, "sh", "-c",
		"/var/vcap/bosh/bin/bosh-agent compile -output-directory /root /root/tool.tgz 2>/root/log || { cat /root/log; exit 1; }"))
	if want := "/root/tool-1-debian-bookworm-1.0.0.tgz"; compiled != want {
		t.Errorf("agent compile wrote %q, want %q", compiled, want)
	}
	if got := c.run(biosVM, "sh", "-c", "mkdir /root/x && tar --warning=no-timestamp -xzf "+compiled+" -C /root/x && tar --warning=no-timestamp -xzf /root/x/compiled_packages/tool.tgz -C /root/x && /root/x/bin/tool"); got != "compiled\n" {
		t.Errorf("the compiled program says %q", got)
	}

	// The lists are read in the machine, where every file is there before and none afterwards.
	const listed = `for l in dev_tools_file_list static_libraries_list; do while read -r f; do if [ -e "$f" ] || [ -L "$f" ]; then echo "$f"; fi; done </var/vcap/bosh/etc/$l; done | sort -u`
	if n := strings.Count(c.run(biosVM, "sh", "-c", listed), "\n"); n < 500 {
		t.Errorf("%d of the listed files are in the image", n)
	}
	if left := c.run(bare, "sh", "-c", listed); left != "" {
		t.Errorf("after remove_dev_tools and remove_static_libraries there are still %.500s", left)
	}
	if out := c.run(bare, "sh", "-c", "command -v gcc make ld || true"); out != "" {
		t.Errorf("development tools that the lists do not name: %s", out)
	}
	for _, cid := range []string{biosVM, bare} {
		c.must("delete_vm", cid)
	}
	c.must("delete_stemcell", sc)
	c.gone()
}

// toolRelease is the tarball of a release whose only package needs make and a C compiler. Its manifest is YAML in block style, as the
// CLI writes it and `agent compile` reads it.
func toolRelease(t *testing.T) string {
	t.Helper()
	source, err := release.Package{Name: "tool", Files: release.Files{
		"tool.c":    "#include <stdio.h>\nint main(void) { puts(\"compiled\"); return 0; }\n",
		"Makefile":  "tool: tool.c\n\tcc -o $@ $<\n",
		"packaging": "set -e\nmake\nmkdir $BOSH_INSTALL_TARGET/bin\ncp tool $BOSH_INSTALL_TARGET/bin/\n"}}.Pack(".")
	if err != nil {
		t.Fatal(err)
	}
	manifest := fmt.Sprintf("name: tool\nversion: \"1\"\npackages:\n- name: tool\n  version: v1\n  fingerprint: f1\n  sha1: %x\n  dependencies: []\n", sha1.Sum(source))
	dir := t.TempDir()
	err = errors.Join(os.Mkdir(filepath.Join(dir, "packages"), 0o755),
		os.WriteFile(filepath.Join(dir, "release.MF"), []byte(manifest), 0o600),
		os.WriteFile(filepath.Join(dir, "packages/tool.tgz"), source, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tool.tgz")
	if out, err := exec.CommandContext(t.Context(), "tar", "-czf", file, "-C", dir, "release.MF",
		"packages").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	return file
}

// put writes a file of this host into a container.
func (c *cloud) put(cid, file, path string) {
	c.t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		c.t.Fatal(err)
	}
	shell := c.vm(cid).Shell
	argv := append(append([]string(nil), shell[:len(shell)-2]...), "sh", "-c", `cat >"$0"`, path)
	cmd := exec.CommandContext(c.t.Context(), argv[0], argv[1:]...)
	cmd.Stdin = bytes.NewReader(data)
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("write %s: %v: %s", path, err, out)
	}
}

// TestNightlyVMTypes has the CLI create a virtual machine with each cloud property that changes how the stemcell boots. TestNightlyBoshCreateEnvVM
// has the defaults.
func TestNightlyVMTypes(t *testing.T) {
	for property, argument := range map[string]string{"firmware: uefi": "OVMF_CODE", "disk_bus: scsi": "scsi-hd"} {
		t.Run(property, func(t *testing.T) {
			e := newEnv(t, "w", iaas.QEMU)
			path := filepath.Join(e.work, "create-env.yml")
			manifest, err := os.ReadFile(path)
			changed := bytes.Replace(manifest, []byte("cloud_properties: {engine:"),
				[]byte("cloud_properties: {"+property+", engine:"), 1)
			if err == nil && bytes.Equal(changed, manifest) {
				t.Fatal("docs/create-env.yml has no VM type that begins with engine")
			}
			if err == nil {
				err = os.WriteFile(path, changed, 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			e.run("create-env")
			e.answers()
			if argv := strings.Join(e.qemuArguments(), " "); !strings.Contains(argv, argument) {
				t.Errorf("QEMU was not started with %s: %s", argument, argv)
			}
			e.run("delete-env")
			e.gone()
		})
	}
}

// TestNightlyVerdictOutlivesTheVM is TestMachineVerdictOutlivesTheVM with a virtual machine and its virtio port.
func TestNightlyVerdictOutlivesTheVM(t *testing.T) {
	c := newCloud(t, fmt.Sprintf("v%d", os.Getpid()))
	c.verdictOutlives(c.cid("create_stemcell", stemcellImage(t), map[string]any{}), iaas.QEMU, 10*time.Minute)
}

// TestNightlyCPIStemcells imports the stemcells of other infrastructures, and boots those that look for their settings where the
// CPI can put them: vSphere's in a virtual machine, whose CD drive and SCSI controller a container does not have.
func TestNightlyCPIStemcells(t *testing.T) {
	for infrastructure, shape := range map[string]map[string]any{
		"google":  {"engine": iaas.Container, "settings_source": "http"},
		"aws":     {"engine": iaas.Container, "settings_source": "http"},
		"qemu":    {"engine": iaas.Container, "settings_source": "cdrom"},
		"vsphere": {"engine": iaas.QEMU, "settings_source": "cdrom", "disk_bus": "scsi"},
		"azure":   nil,
	} {
		t.Run(infrastructure, func(t *testing.T) {
			c := newCloud(t, fmt.Sprintf("%c%d", infrastructure[0], os.Getpid()))
			dir := t.TempDir()
			out, err := exec.CommandContext(t.Context(), c.lab, "stemcell", "--agent", labtest.Agent(t), "--version", "1.0.0",
				"--iaas", infrastructure, "--output", filepath.Join(dir, "stemcell.tgz")).CombinedOutput()
			if err == nil {
				out, err = exec.CommandContext(t.Context(), "tar", "-xzf", filepath.Join(dir, "stemcell.tgz"), "-C", dir,
					"image").CombinedOutput()
			}
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			sc := c.cid("create_stemcell", filepath.Join(dir, "image"), map[string]any{})
			if shape != nil {
				c.boot(sc, shape)
			}
			c.must("delete_stemcell", sc)
			c.gone()
		})
	}
}

// boot makes a VM of a stemcell, with a persistent disk that its agent mounts, and boots it twice.
func (c *cloud) boot(stemcell string, shape map[string]any) {
	c.t.Helper()
	const ip = "10.245.0.6"
	o := order(stemcell, ip)
	shape["ephemeral_disk"] = 1024
	o[2] = shape
	vm, disk := c.cid("create_vm", o...), c.cid("create_disk", 64, nil, nil)
	c.pong(ip, 10*time.Minute)
	c.agent(ip, "add_persistent_disk", disk, c.must("attach_disk", vm, disk))
	c.agent(ip, "mount_disk", disk)
	c.mounted(ip, disk)
	c.must("reboot_vm", vm)
	c.pong(ip, 10*time.Minute)
	c.mounted(ip, disk)
	c.must("delete_vm", vm)
	c.must("delete_disk", disk)
}

// TestNightlyDemoCreateEnv watches the demo to its end.
func TestNightlyDemoCreateEnv(t *testing.T) {
	containers.Need(t)
	bosh, err := exec.CommandContext(t.Context(), "../../scripts/bosh-cli").Output()
	if err != nil {
		t.Fatal(err)
	}
	demo := exec.CommandContext(t.Context(), "../../scripts/demo-create-env")
	demo.Env = append(os.Environ(), "CAMBIUM_LAB_DIR="+t.TempDir(), "CAMBIUM_CACHE="+t.TempDir(),
		"BOSH_CLI="+strings.TrimSpace(string(bosh)))
	out, err := demo.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	rest := string(out)
	for _, want := range []string{"Creating VM for instance", "Compiling package", "hello", "Skipping deploy",
		"Migrating disk content", "hello", "Deleting disk", "nothing is left"} {
		_, after, found := strings.Cut(rest, want)
		if !found {
			t.Fatalf("the demo does not show %q, or not in this order", want)
		}
		rest = after
	}
	if strings.Contains(rest, "demo") {
		t.Errorf("after the demo there is still %s", rest)
	}
}

// The same CLI, CPI and stemcell with a virtual machine.
func TestNightlyBoshCreateEnvVM(t *testing.T) {
	e := newEnv(t, "q", iaas.QEMU)
	e.run("create-env")
	e.answers()
	e.shares(e.vm("").CID)
	e.run("delete-env")
	e.gone()
}

// Many at once, some of them killed: what was answered is there, what was not is not.
// Contract C.7.
func TestNightlyCPIParallelAndKilled(t *testing.T) {
	c := newCloud(t, fmt.Sprintf("k%d", os.Getpid()))
	sc := c.cid("create_stemcell", stemcellImage(t), map[string]any{})
	var mu sync.Mutex
	answered := map[string]bool{}
	const callers = 8 // with the containers of another package, fewer than the host has inotify instances for
	var all sync.WaitGroup
	for n := range callers {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if n%3 == 0 { // killed, which exec.CommandContext does with SIGKILL
				time.AfterFunc(rand.N(1500*time.Millisecond), cancel)
			}
			r := c.request(ctx, 2, "create_vm", order(sc, fmt.Sprintf("10.245.0.%d", 10+n))...)
			if list, ok := r.Result.([]any); ok {
				vm, _ := list[0].(string)
				mu.Lock()
				answered[vm] = true
				mu.Unlock()
			} else if ctx.Err() == nil && (r.Error == nil || !strings.Contains(r.Error.Message, "inotify")) { // or the host's limit was the reason
				t.Errorf("caller %d: %+v", n, r.Error)
			}
			if d := c.call("create_disk", 16, nil, nil); d.Error != nil {
				t.Errorf("caller %d: %+v", n, d.Error)
			}
		})
	}
	all.Wait()
	var listed iaas.Listing
	eventually.True(t, "exactly the VMs exist whose creation was answered", func() bool {
		var err error
		listed, _, err = c.client().List(t.Context())
		if err != nil || len(listed.VMs) != len(answered) {
			return false
		}
		for _, vm := range listed.VMs {
			if !answered[vm.CID] {
				return false
			}
		}
		return true
	})
	if len(answered) == 0 {
		t.Error("no VM was made")
	}
	t.Logf("%d of %d VMs were answered", len(answered), callers)
	for _, d := range listed.Disks {
		c.must("delete_disk", d.CID)
	}
	var removed sync.WaitGroup
	for cid := range answered {
		removed.Go(func() {
			if r := c.call("delete_vm", cid); r.Error != nil {
				t.Errorf("%s: %+v", cid, r.Error)
			}
		})
	}
	removed.Wait()
	c.must("delete_stemcell", sc)
	c.gone()
}
