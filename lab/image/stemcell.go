package image

import (
	"archive/tar"
	"context"
	"crypto/sha1" // the digest that the format has
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"cambium/internal/sbom"
	"cambium/lab/tree"
	assets "cambium/stemcell-assets"

	"github.com/klauspost/compress/gzip"
)

// operatingSystem is the stemcell's operating system in deployment manifests.
const operatingSystem = "debian-" + tree.Suite

// Stemcell is the metadata of a stemcell.
type Stemcell struct {
	Version string
	IaaS    string // "openstack" if empty
	// Commit is the commit of the build, 40 digits; empty if unknown.
	Commit string
	// Made is the time of the commit.
	Made time.Time
	// Plain omits the settings that audits require.
	Plain bool
}

// versions matches versions that the Director can parse: words and numbers separated by dots, a pre-release after "-"
// and a post-release after "+".
var versions = regexp.MustCompile(`^[0-9A-Za-z_]+(\.[0-9A-Za-z_]+)*(-[0-9A-Za-z_]+(\.[0-9A-Za-z_]+)*)?(\+[0-9A-Za-z_]+(\.[0-9A-Za-z_]+)*)?$`)

// CheckVersion returns an error for a version that the Director cannot parse or sort.
func CheckVersion(version string) error {
	if !versions.MatchString(version) {
		return fmt.Errorf("stemcell version %q: a Director cannot parse it; want one like 1.2.3 or 0.5.0-dev.1", version)
	}
	return nil
}

// DevVersion returns the version of a stemcell with an unreleased agent. It sorts before every release, and by the time
// of the commit.
func DevVersion(commitTime, commit string) string {
	version := "0." + commitTime + ".0-dev." + commit
	if commitTime == "" || commit == "" || CheckVersion(version) != nil {
		return "0.0.0-dev"
	}
	return version
}

// diskSize is the minimum disk size of the stemcell's VMs in MiB.
const diskSize = 5120

// EnsureStemcell returns the path of the tarball of a stemcell with the agent. It builds the tarball if it does not
// exist.
func (c Cache) EnsureStemcell(ctx context.Context, agent string, s Stemcell) (string, error) {
	if s.IaaS == "" {
		s.IaaS = "openstack"
	}
	infrastructure, err := FindInfrastructure(s.IaaS)
	if err != nil {
		return "", err
	}
	if err := CheckVersion(s.Version); err != nil {
		return "", err
	}
	files, err := s.files(infrastructure)
	if err != nil {
		return "", err
	}
	p := packer{stemcell: s, infrastructure: infrastructure, agent: agent}
	b := builder{stemcell: true, hardened: !s.Plain, files: files}
	dir := ""
	if infrastructure.Container {
		if p.lists, err = c.container(ctx, agent, b); err != nil {
			return "", fmt.Errorf("stemcell: %w", err)
		}
		dir = p.lists
	} else {
		img, err := c.ensure(ctx, agent, b)
		if err != nil {
			return "", err
		}
		p.disk, p.lists = img.Disk, filepath.Dir(img.Kernel)
		dir = filepath.Dir(img.Disk)
	}
	h := sha256.Sum256(fmt.Append(nil, dir, s, infrastructure, p.manifest("")))
	dir += "-stemcell-" + hex.EncodeToString(h[:])[:16]
	err = c.once(dir, func(work string) error {
		c.progress("packing the stemcell")
		p.work = work
		target := filepath.Join(work, p.file())
		return p.pack(ctx, target)
	})
	return filepath.Join(dir, p.file()), err
}

// files returns the files of a stemcell for one IaaS and version, besides the agent.
func (s Stemcell) files(i Infrastructure) ([]file, error) {
	config, err := assets.AgentJSON(i.Name)
	if err != nil {
		return nil, err
	}
	const etc = "/var/vcap/bosh/etc/"
	files := []file{{"/var/vcap/bosh/agent.json", string(config)}, {etc + "infrastructure", i.Name},
		{etc + "stemcell_version", s.Version}}
	if s.Commit != "" {
		files = append(files, file{etc + "stemcell_git_sha1", s.Commit})
	}
	if i.Name == "azure" && !s.Plain {
		files = append(files, file{"/etc/modprobe.d/bosh-udf.conf",
			"# Azure hands settings to its VMs on this file system.\n"})
	}
	return files, nil
}

// container returns a directory with the packed root file system for containers, and its lists.
func (c Cache) container(ctx context.Context, agent string, b builder) (string, error) {
	root, err := tree.Cache{Dir: c.Dir}.Ensure(ctx)
	if err != nil {
		return "", err
	}
	if b.tree, err = c.stemcellTree(ctx, root); err != nil {
		return "", err
	}
	digest, err := fileDigest(agent)
	if err != nil {
		return "", err
	}
	b.guest = agent
	h := sha256.Sum256(fmt.Append(nil, recipe, b.tree, digest, assets.Digest(), b.files, b.hardened))
	dir := filepath.Join(c.Dir, "vm-container-agent-"+hex.EncodeToString(h[:])[:16])
	return dir, c.once(dir, func(work string) error {
		b.work = work
		layer := tree.Layer{Tree: b.tree, Dir: filepath.Join(work, "layer")}
		if err := layer.Make(); err != nil {
			return err
		}
		err := layer.Mounted(func(root string) error {
			if err := b.fill(ctx, root); err != nil {
				return err
			}
			dir, err := os.OpenRoot(root)
			if err != nil {
				return err
			}
			defer func() { _ = dir.Close() }()
			for _, f := range b.files {
				if err := dir.WriteFile(strings.TrimPrefix(f.path, "/"), []byte(f.content), 0o644); err != nil {
					return err
				}
			}
			// A container has its devices from outside.
			return run(ctx, "tar", "--create", "--gzip", "--file", filepath.Join(work, "image"), "--directory", root,
				"--numeric-owner", "--sort=name", "--exclude=./dev/*", ".")
		})
		return errors.Join(err, os.RemoveAll(layer.Dir))
	})
}

// packer builds a stemcell's tarball.
type packer struct {
	stemcell       Stemcell
	infrastructure Infrastructure
	agent          string
	disk           string // a raw image
	lists          string // the directory with the output of builder.writeLists
	work           string
}

func (p packer) name() string { return "bosh-" + p.infrastructure.slug() }

func (p packer) file() string {
	return "bosh-stemcell-" + p.stemcell.Version + "-" + p.infrastructure.slug() + ".tgz"
}

// manifest returns stemcell.MF, which the Director, the CLI and the CPI read. Versions are quoted, because 1.10 is not
// a number.
func (p packer) manifest(digest string) string {
	i := p.infrastructure
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, `---
name: %[1]s
version: %[2]q
bosh_protocol: 1
api_version: 3
sha1: %[3]s
operating_system: %[4]s
stemcell_formats:
- %[5]s
cloud_properties:
  name: %[1]s
  version: %[2]q
  infrastructure: %[6]s
  hypervisor: %[7]s
  disk: %[8]d
  disk_format: %[9]s
  container_format: bare
  os_type: linux
  os_distro: debian
  architecture: x86_64
`, p.name(), p.stemcell.Version, digest, operatingSystem, strings.Join(i.Formats, "\n- "), i.Name, i.Hypervisor, diskSize, i.DiskFormat)
	for _, line := range i.Cloud {
		b.WriteString("  " + line + "\n")
	}
	return b.String()
}

// pack writes the tarball, with the same members and order as upstream's packager.
func (p packer) pack(ctx context.Context, file string) error {
	image := file + ".image"
	defer func() { _ = os.Remove(image) }()
	if err := p.image(ctx, image); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	digest, err := sha1File(image)
	if err != nil {
		return err
	}
	packages, err1 := os.ReadFile(filepath.Join(p.lists, packageTable))
	tools, err2 := os.ReadFile(filepath.Join(p.lists, devToolsList))
	bill, err3 := p.bill(image)
	spdx, err4 := bill.SPDX()
	cdx, err5 := bill.CycloneDX()
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
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
	err = errors.Join(addBytes(w, "stemcell.MF", []byte(p.manifest(digest))), addBytes(w, packageTable, packages),
		addBytes(w, "dev_tools_file_list.txt", tools),
		addFile(w, "image", image), addBytes(w, "sbom.spdx.json", spdx), addBytes(w, "sbom.cdx.json", cdx))
	return errors.Join(err, w.Close(), zip.Close(), out.Close())
}

// bill returns the bill of materials of an image: Debian's packages and the agent's modules.
func (p packer) bill(image string) (sbom.Product, error) {
	product := sbom.Product{Name: p.name(), Version: p.stemcell.Version, Made: p.stemcell.Made}
	digest, err1 := fileDigest(image)
	packages, err2 := os.ReadFile(filepath.Join(p.lists, "packages"))
	modules, err3 := sbom.Modules(p.agent)
	product.SHA256, product.Parts = digest, append(sbom.Debian(string(packages), tree.Suite), modules...)
	return product, errors.Join(err1, err2, err3)
}

// image writes the member "image" in the format of the IaaS.
func (p packer) image(ctx context.Context, to string) error {
	i := p.infrastructure
	if i.Container {
		return os.Link(filepath.Join(p.lists, "image"), to)
	}
	disk := p.disk
	if i.sizeUnit > 0 {
		disk = to + ".raw"
		defer func() { _ = os.Remove(disk) }()
		if err := run(ctx, "cp", "--sparse=always", "--reflink=auto", p.disk, disk); err != nil {
			return err
		}
		if err := run(ctx, "truncate", fmt.Sprintf("--size=%%%d", i.sizeUnit), disk); err != nil {
			return err
		}
	}
	if i.convert != nil {
		converted := to + ".converted"
		defer func() { _ = os.Remove(converted) }()
		args := append([]string{"convert", "-f", "raw"}, i.convert...)
		if err := run(ctx, "qemu-img", append(args, disk, converted)...); err != nil {
			return err
		}
		disk = converted
	}
	if i.bzip2 {
		return run(ctx, "sh", "-c", `bzip2 -1 -c "$1" >"$2"`, "sh", disk, to)
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	zip, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err != nil {
		return errors.Join(err, out.Close())
	}
	w := tar.NewWriter(zip)
	if i.ovf {
		err = addOVF(w, p.name(), p.disk, disk)
	}
	err = errors.Join(err, addFile(w, i.Member, disk))
	return errors.Join(err, w.Close(), zip.Close(), out.Close())
}

func sha1File(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha1.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

// epoch is the time of all files in the tarball, so that builds are reproducible.
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

func sha1Sum(content string) [sha1.Size]byte { return sha1.Sum([]byte(content)) }
