package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"

	"cambium/internal/blob"
	"cambium/jobs/bundle"
)

// bundles returns the bundles of spec, the jobs in the order of the spec.
func bundles(spec Spec) (jobs, packages []bundle.Bundle, err error) {
	if names := spec.JobNames(); len(names) > 0 {
		digest, err := blob.ParseDigest(spec.Archive.digest())
		if err != nil {
			return nil, nil, fmt.Errorf("rendered templates archive: %w", err)
		}
		for _, t := range spec.Job.Templates {
			jobs = append(jobs, bundle.Bundle{Name: t.Name, Hash: bundleHash(t.Version, digest.String())})
		}
	}
	for _, key := range spec.PackageNames() {
		b, err := spec.Packages[key].Bundle()
		if err != nil {
			return nil, nil, err
		}
		packages = append(packages, b)
	}
	return jobs, packages, nil
}

// Bundle returns the bundle of the package.
func (p Package) Bundle() (bundle.Bundle, error) {
	digest, err := blob.ParseDigest(p.Digest)
	if err != nil {
		return bundle.Bundle{}, fmt.Errorf("package %q: %w", p.Name, err)
	}
	return bundle.Bundle{Name: p.Name, Hash: bundleHash(p.Version, digest.String())}, nil
}

// Prepare installs missing bundles of spec without enabling them.
func (i *Instance) Prepare(ctx context.Context, spec Spec) error {
	spec.fill()
	if err := i.check(spec); err != nil {
		return err
	}
	if err := i.fetch(ctx, spec); err != nil {
		return err
	}
	if err := i.checkMonitFiles(spec); err != nil {
		return err
	}
	i.forgetArchive(spec)
	return nil
}

// fetch downloads and unpacks missing bundles, several at a time. Bundles that succeed are installed even if others
// fail.
func (i *Instance) fetch(ctx context.Context, spec Spec) error {
	jobs, packages, err := bundles(spec)
	if err != nil {
		return err
	}
	var work []stager
	missing := i.missing(i.jobs(), jobs)
	if len(missing) > 0 {
		work = append(work,
			func(ctx context.Context) ([]*bundle.Staged, error) { return i.stageJobs(ctx, *spec.Archive, missing) })
	}
	for n, b := range packages {
		if i.packages().Installed(b) {
			continue
		}
		p := spec.Packages[spec.PackageNames()[n]]
		work = append(work, one(func(ctx context.Context) (*bundle.Staged, error) {
			return stagePackage(ctx, i.Blobs, i.packages(), p)
		}))
	}
	staged, err := inParallel(ctx, i.Parallel, work)
	return errors.Join(err, bundle.Commit(staged))
}

type stager func(context.Context) ([]*bundle.Staged, error)

func one(stage func(context.Context) (*bundle.Staged, error)) stager {
	return func(ctx context.Context) ([]*bundle.Staged, error) {
		staged, err := stage(ctx)
		if err != nil {
			return nil, err
		}
		return []*bundle.Staged{staged}, nil
	}
}

func (i *Instance) missing(c bundle.Collection, all []bundle.Bundle) (missing []bundle.Bundle) {
	for _, b := range all {
		if !c.Installed(b) {
			missing = append(missing, b)
		}
	}
	return missing
}

// inParallel runs the work with several workers. A worker stops at its first error, but the others continue. So one bad
// package does not discard the downloads of others, and an unavailable blobstore gets at most one request per worker.
func inParallel(ctx context.Context, workers int, work []stager) ([]*bundle.Staged, error) {
	queue := make(chan stager, len(work))
	for _, w := range work {
		queue <- w
	}
	close(queue)
	var mu sync.Mutex // guards staged and faults
	var staged []*bundle.Staged
	var faults []error
	var running sync.WaitGroup
	for range min(max(workers, 1), len(work)) {
		running.Go(func() {
			for w := range queue {
				done, err := w(ctx)
				mu.Lock()
				staged = append(staged, done...)
				if err != nil {
					faults = append(faults, err)
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	running.Wait()
	return staged, errors.Join(faults...)
}

// InstallPackages installs missing packages, several at a time. The compiler uses it for dependencies.
func InstallPackages(ctx context.Context, blobs blob.Opener, packages bundle.Collection, workers int,
	list []Package) error {
	var work []stager
	for _, p := range list {
		work = append(work, one(func(ctx context.Context) (*bundle.Staged, error) {
			return stagePackage(ctx, blobs, packages, p)
		}))
	}
	staged, err := inParallel(ctx, workers, work)
	return errors.Join(err, bundle.Commit(staged))
}

// stagePackage fetches and unpacks a package beside its place.
func stagePackage(ctx context.Context, blobs blob.Opener, packages bundle.Collection,
	p Package) (*bundle.Staged, error) {
	b, err := p.Bundle()
	if err != nil {
		return nil, err
	}
	ref, err := p.ref()
	if err != nil {
		return nil, fmt.Errorf("package %q: %w", p.Name, err)
	}
	staged, err := packages.Stage(b)
	if err != nil {
		return nil, err
	}
	// The content belongs to root and its group; only the bundle's directory is the group vcap's.
	err = unpack(ctx, blobs, ref,
		bundle.Rules{Target: bundle.Into(staged.Root), UID: packages.Owner.UID, GID: os.Getegid()})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("package %q: %w", p.Name, err), staged.Discard())
	}
	return staged, nil
}

func unpack(ctx context.Context, blobs blob.Opener, ref blob.Ref, rules bundle.Rules) (err error) {
	content, err := blobs.Open(ctx, ref)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeArchive(content)) }()
	_, err = bundle.Unpack(ctx, content, rules)
	return err
}

func closeArchive(c io.Closer) error {
	if err := c.Close(); err != nil {
		return fmt.Errorf("close archive: %w", err)
	}
	return nil
}

// stageJobs fetches the archive with rendered templates once, and unpacks all missing jobs from it.
func (i *Instance) stageJobs(ctx context.Context, archive Archive,
	missing []bundle.Bundle) (staged []*bundle.Staged, err error) {
	ref, err := archive.ref()
	if err != nil {
		return nil, fmt.Errorf("rendered templates archive: %w", err)
	}
	roots := map[string]*os.Root{}
	found := map[string]bool{}
	defer func() {
		if err != nil {
			for _, s := range staged {
				err = errors.Join(err, s.Discard())
			}
			staged = nil
		}
	}()
	for _, b := range missing {
		s, err := i.jobs().Stage(b)
		if err != nil {
			return staged, err
		}
		staged = append(staged, s)
		roots[b.Name] = s.Root
	}
	err = unpack(ctx, i.Blobs, ref, bundle.Rules{
		Target: func(name string) (*os.Root, string) {
			job, rel, below := strings.Cut(name, "/")
			if !below {
				rel = "."
			}
			found[job] = true
			return roots[job], rel
		},
		NoLinks: true, Mode: jobMode, UID: i.Owner.UID, GID: i.Owner.GID,
	})
	if err != nil {
		return staged, fmt.Errorf("rendered templates archive: %w", err)
	}
	for _, b := range missing {
		if !found[b.Name] {
			return staged, fmt.Errorf("rendered templates archive: it does not contain job %q", b.Name)
		}
	}
	return staged, nil
}

// jobMode returns fixed modes, whatever the archive has: only root and the group vcap may read a job's files, which
// contain secrets, and only files below bin are executable.
func jobMode(rel string, dir bool) fs.FileMode {
	if dir || strings.HasPrefix(rel, "bin/") {
		return 0o750
	}
	return 0o640
}
