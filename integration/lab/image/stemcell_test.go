package image

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func TestStemcellTarball(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	disk := bytes.Repeat([]byte("disk"), 100_000)
	for name, data := range map[string][]byte{"disk": disk, "packages.txt": []byte("bash 5.2\n")} {
		if err := os.WriteFile(in(name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := Stemcell{Version: "1.2.3", IaaS: "openstack"}
	for _, name := range []string{"one.tgz", "two.tgz"} {
		if err := pack(Image{Disk: in("disk")}, in("packages.txt"), in(name), s); err != nil {
			t.Fatal(err)
		}
	}
	one, err1 := os.ReadFile(in("one.tgz"))
	two, err2 := os.ReadFile(in("two.tgz"))
	if err1 != nil || err2 != nil || !bytes.Equal(one, two) {
		t.Errorf("two tarballs of the same content differ (%v, %v)", err1, err2)
	}
	manifest, err := UnpackStemcell(in("one.tgz"), in("root.img"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(in("root.img")); err != nil || !bytes.Equal(got, disk) {
		t.Errorf("the disk came back with %d bytes (%v)", len(got), err)
	}
	var mf map[string]any
	if err := yaml.Unmarshal(manifest, &mf); err != nil {
		t.Fatal(err)
	}
	if mf["api_version"] != 3 || mf["version"] != "1.2.3" || mf["name"] != "bosh-openstack-kvm-debian-bookworm-cambium" {
		t.Errorf("stemcell.MF: %v", mf)
	}
	// A changed image does not go unnoticed.
	wrong := bytes.Replace(one, []byte("sha1: "), []byte("sha2: "), 1)
	if err := os.WriteFile(in("wrong.tgz"), wrong, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := UnpackStemcell(in("wrong.tgz"), in("root.img")); err == nil {
		t.Error("a manifest without the image's digest is accepted")
	}
	if name := (Stemcell{Version: "[DEV BUILD] 0a1b/c", IaaS: "qemu"}).file(); strings.ContainsAny(name, "[] /") {
		t.Errorf("file name %q", name)
	}
}
