//go:build vm || nightly || bench

package stemcell

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cambium/internal/skiptest"
	"cambium/lab/image"
	"cambium/lab/labtest"
	"cambium/lab/tree"
	assets "cambium/stemcell-assets"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// version is the one that the tests of the CPI give the stemcell: for openstack's, both use the same cached tarball.
const version = "1.0.0"

// tarball makes the stemcell that the tests of virtual machines boot; it is cached.
func tarball(t testing.TB, iaas string) string {
	t.Helper()
	if err := image.CheckHost(); err != nil {
		skiptest.Skip(t, err)
	}
	cache := image.Cache{Dir: tree.DefaultDir(), Progress: t.Logf}
	file, err := cache.EnsureStemcell(t.Context(), labtest.Agent(t), image.Stemcell{Version: version, IaaS: iaas})
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// unpackScript is unpack's. A fixed VHD is a raw disk with a footer, and looks like one.
const unpackScript = `cd "$1"
tar -xzf "$2"
grep -qx "sha1: $(sha1sum image | cut -d' ' -f1)" stemcell.MF
case $(head -c 3 image) in
BZh) bzip2 -dc image >root.vhd ;;
*) tar -xzf image ;;
esac
rm image
for disk in root.img disk.raw root.vhd image-disk1.vmdk; do
  if [ -e $disk ]; then
    qemu-img convert $([ $disk != root.vhd ] || echo -f vpc) -O raw $disk root.raw
    rm $disk
  fi
done
[ -e root.raw ]`

// unpack returns the raw disk of a stemcell's tarball, whatever the format of its image is.
func unpack(t testing.TB, file string) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "sh", "-euc", unpackScript, "sh", dir, file).CombinedOutput()
	if err != nil {
		t.Fatalf("unpack %s: %v: %s", file, err, out)
	}
	return filepath.Join(dir, "root.raw")
}

// checkDisk looks into the disk of an IaaS's stemcell: the partition table, and the files that the agent and releases
// read.
func checkDisk(t *testing.T, iaas string) {
	t.Helper()
	disk := unpack(t, tarball(t, iaas))
	out, err := exec.CommandContext(t.Context(), "sfdisk", "--json", disk).Output()
	if err != nil {
		t.Fatal(err)
	}
	type partition struct {
		Start, Size int64
		Type        string
		Bootable    bool
	}
	var table struct {
		Table struct {
			Label      string
			Partitions []partition
		} `json:"partitiontable"`
	}
	if err := json.Unmarshal(out, &table); err != nil {
		t.Fatal(err)
	}
	// Upstream's EFI layout, in sectors.
	p := table.Table.Partitions
	if table.Table.Label != "dos" || len(p) != 2 || p[0] != (partition{2048, 98304, "ef", true}) ||
		p[1].Start != 100352 || p[1].Type != "83" || p[1].Bootable {
		t.Errorf("partition table: %s", out)
	}
	i, err := image.FindInfrastructure(iaas)
	if err != nil {
		t.Fatal(err)
	}
	config, err := assets.AgentJSON(i.Name)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"agent.json": string(config), "etc/stemcell_version": version,
		"etc/operating_system": "ubuntu", "etc/infrastructure": i.Name} {
		if got, err := image.Extract(t.Context(), disk, "/var/vcap/bosh/"+path); err != nil || string(got) != want {
			t.Errorf("%s is %q (%v), want %q without a newline", path, got, err, want)
		}
	}
	if tools, err := image.Extract(t.Context(), disk, "/var/vcap/bosh/etc/dev_tools_file_list"); err != nil ||
		!strings.Contains(string(tools), "\n/usr/bin/make\n") {
		t.Errorf("dev_tools_file_list has %d bytes (%v) without make", len(tools), err)
	}
	for _, path := range []string{image.GuestProgram, "/etc/systemd/journald.conf.d/lab.conf",
		"/etc/systemd/network/80-container-host0.network", "/var/vcap/data/x"} {
		if data, err := image.Extract(t.Context(), disk, path); err == nil {
			t.Errorf("the stemcell has the lab's %s in it (%d bytes)", path, len(data))
		}
	}
}
