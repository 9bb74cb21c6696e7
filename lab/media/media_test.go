package media

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs"
	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"

	"cambium/internal/looptest"
)

func TestFAT(t *testing.T) {
	looptest.Needs(t, "mkfs.vfat")
	image := filepath.Join(t.TempDir(), "drive.img")
	data := []byte(strings.Repeat("x", 100_000))
	if err := FAT(t.Context(), image, "config-2",
		Files{"ec2/latest/user-data": data, "ec2/latest/meta-data.json": []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	d, err := diskfs.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	fs, err := d.GetFilesystem(0)
	if err != nil {
		t.Fatal(err)
	}
	if label := strings.TrimSpace(fs.Label()); label != "config-2" {
		t.Errorf("label is %q, want config-2", label)
	}
	if got, err := fs.ReadFile("ec2/latest/user-data"); err != nil || string(got) != string(data) {
		t.Errorf("user-data has %d bytes (%v), want %d", len(got), err, len(data))
	}
}

func TestISO(t *testing.T) {
	looptest.Needs(t, "genisoimage")
	image := filepath.Join(t.TempDir(), "drive.iso")
	if err := ISO(t.Context(), image, "config-2", Files{"openstack/latest/user_data": []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	b, err := file.OpenFromPath(image, true)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	fs, err := iso9660.Read(b, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if label := strings.TrimSpace(fs.Label()); label != "config-2" {
		t.Errorf("label is %q, want config-2", label)
	}
	if got, err := fs.ReadFile("openstack/latest/user_data"); err != nil || string(got) != "{}" {
		t.Errorf("user_data is %q (%v), want {}", got, err)
	}
}

func TestPlainISO(t *testing.T) {
	looptest.Needs(t, "genisoimage")
	image := filepath.Join(t.TempDir(), "cd.iso")
	if err := PlainISO(t.Context(), image, Files{"env": []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("isoinfo", "-i", image, "-f").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ENV.;1") {
		t.Errorf("isoinfo shows %q (%v), want the short name ENV.;1", out, err)
	}
}
