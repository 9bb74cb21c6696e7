package compile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cambium/internal/atomicfile"
	"cambium/internal/blob"
	"cambium/jobs"
	"cambium/jobs/bundle"

	"github.com/sirupsen/logrus"
)

const manifestFile = "release.MF"

// maxManifest bounds the size of a manifest. The largest releases have a few hundred kilobytes.
const maxManifest = 16 << 20

// Release compiles all packages of a release tarball on this machine, and writes the compiled release to dir. It
// returns the path. stemcell is "name/version". Like every compilation, it removes all packages that are installed on
// the machine.
func (c Compiler) Release(ctx context.Context, tarball, dir, stemcell string) (path string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("compile release %s: %w", filepath.Base(tarball), err)
		}
	}()
	work, err := os.MkdirTemp(c.Dirs.Tmp(), "compile-release-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := unpackRelease(ctx, tarball, work); err != nil {
		return "", err
	}
	m, err := readManifest(filepath.Join(work, manifestFile))
	if err != nil {
		return "", err
	}
	order, err := compileOrder(m.Packages)
	if err != nil {
		return "", err
	}
	compiled, err := c.releasePackages(ctx, work, order, stemcell)
	if err != nil {
		return "", err
	}
	text, err := m.compiled(compiled)
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.WriteFile(filepath.Join(work, manifestFile), []byte(text), 0o644),
		os.RemoveAll(filepath.Join(work, "packages")),
		os.Chmod(work, 0o755)); err != nil { // tar gives its mode to the directory into which it unpacks
		return "", err
	}
	path = filepath.Join(dir, fmt.Sprintf("%s-%s-%s.tgz", m.Name, m.Version, strings.ReplaceAll(stemcell, "/", "-")))
	return path, atomicfile.WriteFrom(path, 0o644, func(file *os.File) error {
		return bundle.PackGzip(ctx, work, file, manifestFile) // first, because readers stop after it
	})
}

func unpackRelease(ctx context.Context, tarball, work string) error {
	file, err := os.Open(tarball)
	if err != nil {
		return err
	}
	defer file.Close()
	root, err := os.OpenRoot(work)
	if err != nil {
		return err
	}
	defer root.Close()
	_, err = bundle.Unpack(ctx, file,
		bundle.Rules{Target: bundle.Into(root), NoLinks: true, UID: os.Geteuid(), GID: os.Getegid()})
	return err
}

func readManifest(path string) (manifest, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return manifest{}, fmt.Errorf("not a release: %w", err)
	}
	if info.Size() > maxManifest {
		return manifest{}, errors.New("the manifest is too long")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return manifest{}, err
	}
	m, err := parseManifest(string(text))
	if err != nil {
		return manifest{}, fmt.Errorf("manifest: %w", err)
	}
	return m, nil
}

// compileOrder sorts packages so that dependencies come first, and adds the indirect dependencies to each package,
// because it needs all of them to be compiled.
func compileOrder(packages []manifestPackage) ([]manifestPackage, error) {
	byName := map[string]manifestPackage{}
	for _, p := range packages {
		byName[p.Name] = p
	}
	var order []manifestPackage
	state := map[string]int{} // 1: being visited, 2: done
	var visit func(name, from string) error
	visit = func(name, from string) error {
		p, known := byName[name]
		switch {
		case !known:
			return fmt.Errorf("manifest: package %q depends on %q, which the release does not have", from, name)
		case state[name] == 1:
			return fmt.Errorf("manifest: package %q depends on itself", name)
		case state[name] == 2:
			return nil
		}
		state[name] = 1
		for _, d := range p.Dependencies {
			if err := visit(d, name); err != nil {
				return err
			}
		}
		state[name] = 2
		order = append(order, p)
		return nil
	}
	for _, p := range packages {
		if err := visit(p.Name, p.Name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// closure returns everything on which a package depends, directly or not.
func closure(order []manifestPackage, name string) []string {
	byName := map[string]manifestPackage{}
	for _, p := range order {
		byName[p.Name] = p
	}
	var all []string
	var add func(string)
	add = func(name string) {
		for _, d := range byName[name].Dependencies {
			if !slices.Contains(all, d) {
				all = append(all, d)
				add(d)
			}
		}
	}
	add(name)
	return all
}

// files opens blobs that are files below a directory.
type files struct{ root *os.Root }

func (f files) Open(_ context.Context, ref blob.Ref) (io.ReadCloser, error) {
	file, err := f.root.Open(ref.ID)
	if err != nil {
		return nil, err
	}
	return ref.Digest.Verify(file)
}

func (c Compiler) releasePackages(ctx context.Context, work string, order []manifestPackage,
	stemcell string) ([]manifestPackage, error) {
	root, err := os.OpenRoot(work)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if err := root.Mkdir("compiled_packages", 0o755); err != nil {
		return nil, err
	}
	c.Blobs = files{root}
	built := map[string]jobs.Package{}
	var compiled []manifestPackage
	for _, p := range order {
		digest, err := blob.ParseDigest(p.Digest)
		if err != nil {
			return nil, fmt.Errorf("package %q: %w", p.Name, err)
		}
		request := Request{
			Name:    p.Name,
			Version: p.Version,
			Source:  blob.Ref{ID: "packages/" + p.Name + ".tgz", Digest: digest},
		}
		for _, d := range closure(order, p.Name) {
			request.Dependencies = append(request.Dependencies, built[d])
		}
		c.Log.WithFields(logrus.Fields{"package": p.Name, "version": p.Version}).Info("compiling")
		id := "compiled_packages/" + p.Name + ".tgz"
		sums := blob.NewSums()
		err = c.Compile(ctx, request, func(produce func(io.Writer) error) error {
			out, err := root.Create(id)
			if err != nil {
				return err
			}
			return errors.Join(produce(io.MultiWriter(out, sums)), out.Close())
		})
		if err != nil {
			return nil, err
		}
		built[p.Name] = jobs.Package{Name: p.Name, Version: p.Version, Digest: sums.SHA1(), BlobstoreID: id}
		p.Digest, p.Stemcell = sums.SHA1(), stemcell
		compiled = append(compiled, p)
	}
	return compiled, nil
}
