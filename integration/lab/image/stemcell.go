package image

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha1" // the digest that the format has
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"cambium/integration/lab/tree"
)

// Stemcell is what a stemcell says of itself.
type Stemcell struct {
	Version string
	IaaS    string // whose agent.json is in it; "openstack" if empty
}

// stemcellFiles are put into a stemcell, over the tree: every machine makes its own identity.
var stemcellFiles = map[string]string{
	"/etc/machine-id": "",
	"/etc/hostname":   "bosh-stemcell\n",
	"/etc/systemd/system/ssh.service.d/keys.conf": "[Service]\nExecStartPre=\nExecStartPre=/usr/bin/ssh-keygen -A\nExecStartPre=/usr/sbin/sshd -t\n",
}

// fillStemcell puts in what a machine needs to boot by itself, and takes out what the lab's
// machines share.
func (b builder) fillStemcell(ctx context.Context, root string) error {
	keys, err := filepath.Glob(filepath.Join(root, "etc/ssh/ssh_host_*"))
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := os.Remove(key); err != nil {
			return err
		}
	}
	for name, content := range stemcellFiles {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "boot"), 0o755); err != nil {
		return err
	}
	for from, to := range map[string]string{b.kernel.Image: "vmlinuz", filepath.Join(b.work, "initrd"): "initrd"} {
		if err := run(ctx, "cp", from, filepath.Join(root, "boot", to)); err != nil {
			return err
		}
	}
	if err := run(ctx, "systemctl", "--root="+root, "--quiet", "enable", "ssh.service"); err != nil {
		return err
	}
	list := exec.CommandContext(ctx, "dpkg-query", "--admindir="+filepath.Join(root, "var/lib/dpkg"), "-W", "-f", "${Package} ${Version} ${Architecture}\n")
	packages, err := list.Output()
	if err != nil {
		return fmt.Errorf("list of packages: %w", err)
	}
	packages = fmt.Appendf(packages, "linux-image-%s\n", b.kernel.Version)
	return os.WriteFile(filepath.Join(b.work, "packages.txt"), packages, 0o644)
}

// diskSize is what a machine of the stemcell has at least, in MiB.
const diskSize = 3072

// EnsureStemcell returns the tarball of a stemcell with the given agent.
func (c Cache) EnsureStemcell(ctx context.Context, agent string, s Stemcell) (string, error) {
	if s.IaaS == "" {
		s.IaaS = "openstack"
	}
	img, err := c.ensure(ctx, agent, builder{stemcell: true, iaas: s.IaaS})
	if err != nil {
		return "", err
	}
	h := sha256.Sum256([]byte(img.Disk + s.Version + s.IaaS + manifest(s, "")))
	dir := filepath.Dir(img.Disk) + "-stemcell-" + hex.EncodeToString(h[:])[:16]
	file := filepath.Join(dir, s.file())
	err = c.once(dir, func(work string) error {
		c.progress("packing the stemcell")
		return pack(img, filepath.Join(filepath.Dir(img.Kernel), "packages.txt"), filepath.Join(work, s.file()), s)
	})
	return file, err
}

func (s Stemcell) name() string {
	return "bosh-" + s.IaaS + "-kvm-debian-" + tree.Suite + "-cambium"
}

func (s Stemcell) file() string {
	version := strings.Map(func(r rune) rune {
		if strings.ContainsRune("[]/ ", r) {
			return -1
		}
		return r
	}, s.Version)
	return "bosh-stemcell-" + version + "-" + s.IaaS + "-kvm-debian-" + tree.Suite + "-cambium.tgz"
}

// manifest is stemcell.MF. The Director and the CPI read it.
func manifest(s Stemcell, digest string) string {
	return fmt.Sprintf(`---
name: %[1]s
version: %[2]q
api_version: 3
bosh_protocol: "1"
sha1: %[3]s
operating_system: debian-%[4]s
stemcell_formats:
- %[5]s-raw
cloud_properties:
  name: %[1]s
  version: %[2]q
  infrastructure: %[5]s
  hypervisor: kvm
  disk: %[6]d
  disk_format: raw
  container_format: bare
  os_type: linux
  os_distro: debian
  architecture: x86_64
  auto_disk_config: true
  root_device_name: /dev/vda1
`, s.name(), s.Version, digest, tree.Suite, s.IaaS, diskSize)
}

// pack writes the tarball: the manifest, the list of packages and the image, which is a tarball
// of the disk.
func pack(img Image, packages, file string, s Stemcell) error {
	image := file + ".image"
	defer func() { _ = os.Remove(image) }()
	digest, err := packImage(img.Disk, image)
	if err != nil {
		return err
	}
	list, err := os.ReadFile(packages)
	if err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	// The image is compressed already.
	zip, err := gzip.NewWriterLevel(out, gzip.NoCompression)
	if err != nil {
		return errors.Join(err, out.Close())
	}
	w := tar.NewWriter(zip)
	err = errors.Join(addBytes(w, "stemcell.MF", []byte(manifest(s, digest))), addBytes(w, "packages.txt", list), addFile(w, "image", image))
	return errors.Join(err, w.Close(), zip.Close(), out.Close())
}

func packImage(disk, to string) (digest string, err error) {
	out, err := os.Create(to)
	if err != nil {
		return "", err
	}
	h := sha1.New()
	zip, err := gzip.NewWriterLevel(io.MultiWriter(out, h), gzip.BestSpeed)
	if err != nil {
		return "", errors.Join(err, out.Close())
	}
	w := tar.NewWriter(zip)
	err = addFile(w, "root.img", disk)
	err = errors.Join(err, w.Close(), zip.Close(), out.Close())
	return hex.EncodeToString(h.Sum(nil)), err
}

// epoch is the time of everything in the tarball: the same content is the same bytes.
var epoch = time.Unix(0, 0)

func addBytes(w *tar.Writer, name string, data []byte) error {
	err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: epoch})
	if err == nil {
		_, err = w.Write(data)
	}
	return err
}

func addFile(w *tar.Writer, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: info.Size(), ModTime: epoch}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

// UnpackStemcell writes the disk of a stemcell's tarball to a file and returns the manifest.
func UnpackStemcell(file, disk string) (manifest []byte, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	zip, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	digest := ""
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		switch h.Name {
		case "stemcell.MF":
			if manifest, err = io.ReadAll(io.LimitReader(r, 1<<20)); err != nil {
				return nil, err
			}
		case "image":
			if digest, err = unpackImage(r, disk); err != nil {
				return nil, fmt.Errorf("image: %w", err)
			}
		}
	}
	if digest == "" || !strings.Contains(string(manifest), "\nsha1: "+digest+"\n") {
		return nil, fmt.Errorf("image has digest %q, which the manifest does not know", digest)
	}
	return manifest, nil
}

func unpackImage(r io.Reader, disk string) (string, error) {
	h := sha1.New()
	all := io.TeeReader(r, h)
	zip, err := gzip.NewReader(all)
	if err != nil {
		return "", err
	}
	inner := tar.NewReader(zip)
	header, err := inner.Next()
	if err != nil || header.Name != "root.img" {
		return "", errors.Join(err, errors.New("it does not begin with root.img"))
	}
	out, err := os.Create(disk)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, inner)
	if err = errors.Join(err, out.Close()); err != nil {
		return "", err
	}
	_, err = io.Copy(io.Discard, all) // to the end, for the digest
	return hex.EncodeToString(h.Sum(nil)), err
}
