package image

import (
	"archive/tar"
	"bytes"
	"compress/bzip2"
	"crypto/sha1"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"go.yaml.in/yaml/v3"

	"cambium/internal/skiptest"
)

// fakePacker packs a small disk instead of a system.
func fakePacker(t *testing.T, iaas string) packer {
	t.Helper()
	dir := t.TempDir()
	own, err := os.Executable() // has modules
	if err != nil {
		t.Fatal(err)
	}
	disk := append(bytes.Repeat([]byte("disk"), 100_000), make([]byte, 112_000)...) // 1,000 sectors
	for name, data := range map[string][]byte{"disk": disk, "packages.txt": []byte("ii  bash 5.2 amd64 shell\n"),
		"packages":   []byte("bash 5.2 amd64\n"),
		devToolsList: []byte("/usr/bin/gcc\n"), "image": []byte("tree")} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	i, err := FindInfrastructure(iaas)
	if err != nil {
		t.Fatal(err)
	}
	return packer{stemcell: Stemcell{Version: "1.10"}, infrastructure: i, agent: own, disk: filepath.Join(dir, "disk"),
		lists: dir, work: dir}
}

// members are the names in a gzipped tarball, in order.
func members(t *testing.T, data []byte) (names []string, contents map[string][]byte) {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	contents = map[string][]byte{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, contents
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if contents[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStemcellTarball(t *testing.T) {
	p := fakePacker(t, "qemu")
	in := func(name string) string { return filepath.Join(p.work, name) }
	for _, name := range []string{"one.tgz", "two.tgz"} {
		if err := p.pack(t.Context(), in(name)); err != nil {
			t.Fatal(err)
		}
	}
	one, err1 := os.ReadFile(in("one.tgz"))
	two, err2 := os.ReadFile(in("two.tgz"))
	if err1 != nil || err2 != nil || !bytes.Equal(one, two) {
		t.Errorf("two tarballs of the same content differ (%v, %v)", err1, err2)
	}
	names, contents := members(t, one)
	if want := []string{"stemcell.MF", "packages.txt", "dev_tools_file_list.txt", "image", "sbom.spdx.json",
		"sbom.cdx.json"}; !slices.Equal(names, want) {
		t.Errorf("the tarball has %q, want %q", names, want)
	}
	disk, err := os.ReadFile(p.disk)
	if _, inner := members(t, contents["image"]); err != nil || !bytes.Equal(inner["root.img"], disk) {
		t.Errorf("the disk came back with %d bytes (%v)", len(inner["root.img"]), err)
	}
	for _, bill := range []string{"sbom.spdx.json", "sbom.cdx.json"} {
		if want := fmt.Sprintf("%x", sha256.Sum256(contents["image"])); !bytes.Contains(contents[bill], []byte(want)) {
			t.Errorf("%s is not of an image with the digest %s: %s", bill, want, contents[bill])
		}
	}
	manifest := string(contents["stemcell.MF"])
	start := "---\nname: bosh-qemu-kvm-debian-bookworm-cambium\nversion: \"1.10\"\nbosh_protocol: 1\napi_version: 3\n" +
		fmt.Sprintf("sha1: %x\n", sha1.Sum(contents["image"]))
	if !strings.HasPrefix(manifest, start) {
		t.Errorf("stemcell.MF begins otherwise than %s:\n%s", start, manifest)
	}
}

// TestFormats packs a small disk for every IaaS: names, keys and the format of the image.
func TestFormats(t *testing.T) {
	for _, c := range []struct {
		iaas, name, formats, diskFormat string
		members                         string // of the image; nothing if it is not a tarball
		cloud                           map[string]any
	}{
		{"openstack", "bosh-openstack-kvm-debian-bookworm-cambium", "openstack-qcow2 openstack-raw", "qcow2", "root.img", map[string]any{"auto_disk_config": true, "hypervisor": "kvm"}},
		{"qemu", "bosh-qemu-kvm-debian-bookworm-cambium", "qemu-raw openstack-raw", "raw", "root.img", map[string]any{"auto_disk_config": true}},
		{"aws", "bosh-aws-xen-hvm-debian-bookworm-cambium", "aws-raw", "raw", "root.img", map[string]any{"root_device_name": "/dev/sda1", "hypervisor": "xen", "boot_mode": "uefi-preferred"}},
		{"google", "bosh-google-kvm-debian-bookworm-cambium", "google-rawdisk", "rawdisk", "disk.raw", map[string]any{"root_device_name": "/dev/sda1"}},
		{"azure", "bosh-azure-hyperv-debian-bookworm-cambium", "azure-vhd", "vhd", "root.vhd", map[string]any{"root_device_name": "/dev/sda1"}},
		{"vsphere", "bosh-vsphere-esxi-debian-bookworm-cambium", "vsphere-ova vsphere-ovf", "ovf", "image.ovf image.mf image-disk1.vmdk", map[string]any{"hypervisor": "esxi"}},
		{"virtualbox", "bosh-vsphere-esxi-debian-bookworm-cambium", "vsphere-ova vsphere-ovf", "ovf", "image.ovf image.mf image-disk1.vmdk", nil},
		{"warden", "bosh-warden-boshlite-debian-bookworm-cambium", "warden-tar", "files", "", map[string]any{"hypervisor": "boshlite"}},
		{"docker", "bosh-warden-boshlite-debian-bookworm-cambium", "warden-tar", "files", "", nil},
		{"alicloud", "bosh-alicloud-kvm-debian-bookworm-cambium", "alicloud-raw", "raw", "root.img", map[string]any{"root_device_name": "/dev/vda1"}},
		{"cloudstack", "bosh-cloudstack-xen-debian-bookworm-cambium", "cloudstack-vhdx", "vhdx", "", map[string]any{"auto_disk_config": true, "hypervisor": "xen"}},
	} {
		t.Run(c.iaas, func(t *testing.T) {
			p := fakePacker(t, c.iaas)
			if unit := p.infrastructure.sizeUnit; (unit == 1<<30) != (c.iaas == "google") {
				t.Errorf("the disk is a multiple of %d bytes; Google, and no other, takes whole GiB", unit)
			} else if unit > 0 {
				p.infrastructure.sizeUnit = 1 << 20 // packing a whole GiB takes a minute
			}
			tarball := filepath.Join(p.work, p.file())
			if err := p.pack(t.Context(), tarball); err != nil {
				if CheckHost() != nil { // without qemu-img
					skiptest.Skip(t, err)
				}
				t.Fatal(err)
			}
			data, err := os.ReadFile(tarball)
			if err != nil {
				t.Fatal(err)
			}
			_, contents := members(t, data)
			var mf struct {
				Name, Version string
				Formats       []string       `yaml:"stemcell_formats"`
				Protocol      any            `yaml:"bosh_protocol"`
				API           any            `yaml:"api_version"`
				OS            string         `yaml:"operating_system"`
				Cloud         map[string]any `yaml:"cloud_properties"`
			}
			if err := yaml.Unmarshal(contents["stemcell.MF"], &mf); err != nil {
				t.Fatal(err)
			}
			if mf.Name != c.name || mf.Version != "1.10" || strings.Join(mf.Formats, " ") != c.formats || mf.Protocol != 1 ||
				mf.API != 3 || mf.OS != "debian-bookworm" {
				t.Errorf("stemcell.MF: %+v", mf)
			}
			if mf.Cloud["disk_format"] != c.diskFormat || mf.Cloud["disk"] != diskSize || mf.Cloud["version"] != "1.10" ||
				mf.Cloud["name"] != c.name {
				t.Errorf("cloud_properties: %v", mf.Cloud)
			}
			for key, want := range c.cloud {
				if mf.Cloud[key] != want {
					t.Errorf("cloud_properties.%s is %v, want %v", key, mf.Cloud[key], want)
				}
			}
			if p.infrastructure.Container {
				return
			}
			var disk []byte
			if c.members == "" {
				if disk, err = io.ReadAll(bzip2.NewReader(bytes.NewReader(contents["image"]))); err != nil {
					t.Fatal(err)
				}
			} else {
				names, inner := members(t, contents["image"])
				disk = inner[names[len(names)-1]]
				if strings.Join(names, " ") != c.members {
					t.Errorf("the image holds %q, want %q", names, c.members)
				}
				if size := len(inner["disk.raw"]); c.iaas == "google" && size != 1<<20 {
					t.Errorf("disk.raw has %d bytes, want %d", size, 1<<20)
				}
			}
			// Back to a raw disk: the content must be that of the original.
			packed, raw := filepath.Join(p.work, "packed"), filepath.Join(p.work, "back.raw")
			if err := os.WriteFile(packed, disk, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := run(t.Context(), "qemu-img", "convert", "-O", "raw", packed, raw); err != nil {
				t.Fatal(err)
			}
			want, err1 := os.ReadFile(p.disk)
			got, err2 := os.ReadFile(raw)
			if err1 != nil || err2 != nil || !bytes.HasPrefix(got, want) {
				t.Errorf("the disk came back otherwise (%v, %v)", err1, err2)
			}
		})
	}
}

func TestRemovable(t *testing.T) {
	root := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "usr/lib"), 0o755),
		os.Symlink("usr/lib", filepath.Join(root, "lib")), os.Symlink("/usr/lib", filepath.Join(root, "absolute")),
		os.WriteFile(filepath.Join(root, "usr/gcc-12"), nil, 0o755), os.Symlink("gcc-12", filepath.Join(root, "usr/gcc")),
		os.Symlink("nowhere", filepath.Join(root, "usr/dangling"))); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"/usr": false, "/lib": false, "/absolute": false, "/missing": false,
		"/usr/gcc-12": true, "/usr/gcc": true, "/usr/dangling": true} {
		if got := removable(root, name); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

func TestVersions(t *testing.T) {
	for _, good := range []string{"1", "1.2.3", "0.1763244180.0-dev.0a1b2c3d4e5f", "1.484+x.1"} {
		if err := CheckVersion(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "[DEV BUILD] 0a1b", "1.2-", "1..2", "1.2+a+b"} {
		if CheckVersion(bad) == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if got, want := DevVersion("1763244180", "0a1b2c3d4e5f"), "0.1763244180.0-dev.0a1b2c3d4e5f"; got != want {
		t.Errorf("version %s, want %s", got, want)
	}
	if got := DevVersion("", ""); got != "0.0.0-dev" {
		t.Errorf("version without a commit: %s", got)
	}
}

// TestRuntimeConfig: every addon is for the operating system that the manifest of the stemcell names, and for it alone; its
// release and its certificates are declared.
func TestRuntimeConfig(t *testing.T) {
	var config struct {
		Releases  []struct{ Name, Version string }
		Variables []struct{ Name string }
		Addons    []struct {
			Name    string
			Include map[string][]map[string]string
			Exclude map[string][]map[string]string
			Jobs    []struct{ Name, Release string }
		}
	}
	text := RuntimeConfig()
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	releases, jobs := map[string]bool{}, ""
	for _, r := range config.Releases {
		releases[r.Name] = r.Version != "" && r.Version != "latest" // which a Director refuses here
	}
	for _, a := range config.Addons {
		if got := fmt.Sprint(a.Include); got != "map[stemcell:[map[os:"+operatingSystem+"]]]" {
			t.Errorf("addon %s includes %s", a.Name, got)
		}
		// On a log server the forwarder's scripts remove the server's configuration.
		if got := fmt.Sprint(a.Exclude); strings.HasPrefix(a.Name, "syslog") &&
			got != "map[jobs:[map[name:syslog_storer release:syslog]]]" {
			t.Errorf("addon %s excludes %s", a.Name, got)
		}
		for _, j := range a.Jobs {
			if jobs += " " + j.Name; !releases[j.Release] {
				t.Errorf("job %s is of release %q, which has no version: %v", j.Name, j.Release, config.Releases)
			}
		}
	}
	if jobs != " bosh-dns bpm syslog_forwarder" {
		t.Errorf("the addons have the jobs%s", jobs)
	}
	for _, v := range config.Variables {
		if strings.Count(text, v.Name) < 2 {
			t.Errorf("nothing uses %s", v.Name)
		}
	}
	for _, used := range regexp.MustCompile(`\(\((/[^)]+)\)\)`).FindAllStringSubmatch(text, -1) {
		if !strings.Contains(text, "name: "+used[1]+",") {
			t.Errorf("%s is not declared", used[1])
		}
	}
}
