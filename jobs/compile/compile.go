// Package compile compiles a package: it installs the dependencies, runs the packaging script, packs the result and
// uploads it.
package compile

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"cambium/internal/blob"
	"cambium/internal/command"
	"cambium/internal/vcap"
	"cambium/jobs"
	"cambium/jobs/bundle"

	"github.com/sirupsen/logrus"
)

// Compiler compiles one package at a time. It installs dependencies as the machine's packages.
type Compiler struct {
	Dirs     vcap.Dirs
	Blobs    blob.Opener
	Owner    bundle.Owner
	Parallel int
	Log      *logrus.Entry
}

// Request describes a package to compile: its source and its compiled dependencies.
type Request struct {
	Name, Version string
	Source        blob.Ref
	Dependencies  []jobs.Package
}

// quoted bounds the end of each output stream that an error quotes, in bytes.
const quoted = 10 << 10

// nice keeps the agent responsive while a compiler uses all CPUs.
const nice = 5

// Upload uploads what produce writes.
type Upload func(produce func(io.Writer) error) error

// Compile compiles a package and uploads the result. No package is installed before and after.
func (c Compiler) Compile(ctx context.Context, r Request, upload Upload) (err error) {
	if r.Name == "" || r.Name != filepath.Base(r.Name) || strings.HasPrefix(r.Name, ".") {
		return fmt.Errorf("compile: package %q: not a valid name", r.Name)
	}
	if r.Version == "" {
		return fmt.Errorf("compile: package %q has no version", r.Name)
	}
	if err := c.clear(ctx); err != nil {
		return fmt.Errorf("compile %s: %w", r.Name, err)
	}
	work := filepath.Join(c.Dirs.Compile(), r.Name)
	defer func() {
		// A canceled compilation is cleaned up all the same.
		cleaned := errors.Join(c.clear(context.WithoutCancel(ctx)), os.RemoveAll(work))
		if err == nil && cleaned != nil {
			err = fmt.Errorf("compile %s: %w", r.Name, cleaned)
		}
	}()
	if err := c.dependencies(ctx, r.Dependencies); err != nil {
		return fmt.Errorf("compile %s: %w", r.Name, err)
	}
	compression, err := c.source(ctx, r, work)
	if err != nil {
		return fmt.Errorf("compile %s: source: %w", r.Name, err)
	}
	target, err := c.target(r)
	if err != nil {
		return fmt.Errorf("compile %s: %w", r.Name, err)
	}
	if err := c.packaging(ctx, r, work); err != nil {
		return fmt.Errorf("compile %s: %w", r.Name, err)
	}
	err = upload(func(w io.Writer) error {
		if compression == bundle.Plain {
			return bundle.Pack(ctx, target, w)
		}
		return bundle.PackGzip(ctx, target, w)
	})
	if err != nil {
		return fmt.Errorf("compile %s: upload: %w", r.Name, err)
	}
	return nil
}

func (c Compiler) packages() bundle.Collection { return jobs.Packages(c.Dirs, c.Owner) }

// clear removes all packages. It removes links first, so that no link leads to a partly deleted package.
func (c Compiler) clear(ctx context.Context) error {
	names, err := c.packages().Linked()
	if err != nil {
		return err
	}
	var change bundle.Switch
	for _, name := range names {
		if err := change.Drop(c.packages().Link(name)); err != nil {
			return err
		}
	}
	return errors.Join(change.Sync(), c.packages().Prune(ctx, nil))
}

func (c Compiler) dependencies(ctx context.Context, list []jobs.Package) error {
	valid := jobs.Spec{Packages: map[string]jobs.Package{}}
	for _, p := range list {
		valid.Packages[p.Name] = p
	}
	if err := valid.Validate(); err != nil {
		return fmt.Errorf("dependencies: %w", err)
	}
	if err := jobs.InstallPackages(ctx, c.Blobs, c.packages(), c.Parallel, list); err != nil {
		return fmt.Errorf("dependencies: %w", err)
	}
	if err := c.packages().EnsureLinks(); err != nil {
		return err
	}
	var change bundle.Switch
	for _, p := range list {
		b, err := p.Bundle()
		if err != nil {
			return err
		}
		if err := change.Set(c.packages().Link(p.Name), c.packages().Dir(b)); err != nil {
			return err
		}
	}
	return nil
}

// source unpacks the source beside the work directory and then renames it, so that the work directory is always
// complete.
func (c Compiler) source(ctx context.Context, r Request, work string) (compression bundle.Compression, err error) {
	unpackDir := work + "-bosh-agent-unpack"
	if err := errors.Join(os.RemoveAll(work), os.RemoveAll(unpackDir), os.MkdirAll(unpackDir, 0o755)); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(unpackDir)) }()
	root, err := os.OpenRoot(unpackDir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	content, err := c.Blobs.Open(ctx, r.Source)
	if err != nil {
		return "", err
	}
	defer content.Close()
	compression, err = bundle.Unpack(ctx, content,
		bundle.Rules{Target: bundle.Into(root), UID: os.Geteuid(), GID: os.Getegid()})
	if err != nil {
		return "", err
	}
	return compression, os.Rename(unpackDir, work)
}

// target creates the empty directory for the result, and its link.
func (c Compiler) target(r Request) (string, error) {
	sum := sha1.Sum([]byte(r.Version))
	b := bundle.Bundle{Name: r.Name, Hash: hex.EncodeToString(sum[:])}
	staged, err := c.packages().Stage(b)
	if err != nil {
		return "", err
	}
	if err := bundle.Commit([]*bundle.Staged{staged}); err != nil {
		return "", err
	}
	if err := c.packages().EnsureLinks(); err != nil {
		return "", err
	}
	var change bundle.Switch
	return c.packages().Dir(b), change.Set(c.packages().Link(r.Name), c.packages().Dir(b))
}

// packaging runs the package's script, if there is one.
func (c Compiler) packaging(ctx context.Context, r Request, work string) error {
	if _, err := os.Lstat(filepath.Join(work, "packaging")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	dir := c.Dirs.CompilationLogs()
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return fmt.Errorf("packaging log: %w", err)
	}
	stdout, err := os.Create(filepath.Join(dir, "packaging.stdout.log"))
	if err != nil {
		return fmt.Errorf("packaging log: %w", err)
	}
	defer stdout.Close()
	stderr, err := os.Create(filepath.Join(dir, "packaging.stderr.log"))
	if err != nil {
		return fmt.Errorf("packaging log: %w", err)
	}
	defer stderr.Close()
	env := append(os.Environ(), "BOSH_COMPILE_TARGET="+work, "BOSH_INSTALL_TARGET="+c.packages().Link(r.Name),
		"BOSH_PACKAGE_NAME="+r.Name, "BOSH_PACKAGE_VERSION="+r.Version, "TMPDIR="+c.Dirs.Tmp())
	_, err = command.Run(
		ctx,
		command.Cmd{
			Name:   "bash",
			Args:   []string{"-x", "packaging"},
			Dir:    work,
			Env:    env,
			Stdout: stdout,
			Stderr: stderr,
			Nice:   nice,
		},
	)
	var exit *command.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("packaging script: exit code %d\nstdout:\n%s\nstderr:\n%s", exit.Status(), end(stdout),
			end(stderr))
	}
	return err
}

// end returns the end of a file, from the beginning of a character.
func end(file *os.File) string {
	info, err := file.Stat()
	if err != nil {
		return ""
	}
	size := min(info.Size(), quoted)
	text := make([]byte, size)
	reader, err := os.Open(file.Name())
	if err != nil {
		return ""
	}
	defer reader.Close()
	n, err := reader.ReadAt(text, info.Size()-size)
	if err != nil && err != io.EOF {
		return ""
	}
	text = text[:n]
	for info.Size() > size && len(text) > 0 && !utf8.RuneStart(text[0]) {
		text = text[1:]
	}
	return string(bytes.ToValidUTF8(text, []byte("?")))
}
