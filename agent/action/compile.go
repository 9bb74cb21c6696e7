package action

import (
	"context"
	"io"
	"maps"
	"slices"

	"cambium/internal/blob"
	"cambium/internal/secret"
	"cambium/jobs"
	"cambium/jobs/compile"
)

// Compiler compiles packages.
type Compiler interface {
	Compile(ctx context.Context, r compile.Request, upload compile.Upload) error
}

// Uploads stores archives in the blobstore.
type Uploads interface {
	Put(ctx context.Context, produce func(io.Writer) error) (id, digest string, err error)
	PutSigned(ctx context.Context, url secret.URL, headers map[string]secret.String,
		produce func(io.Writer) error) (digest string, err error)
}

// dependency is a compiled package that another one needs.
type dependency struct {
	Name        string            `json:"name"`
	Version     string            `json:"version"`
	Digest      string            `json:"sha1"`
	BlobstoreID string            `json:"blobstore_id"`
	SignedURL   string            `json:"package_get_signed_url"`
	Headers     map[string]string `json:"blobstore_headers"`
}

func packages(deps dependencies) []jobs.Package {
	var list []jobs.Package
	for _, name := range slices.Sorted(maps.Keys(deps)) {
		d := deps[name]
		list = append(
			list,
			jobs.Package{
				Name:        d.Name,
				Version:     d.Version,
				Digest:      d.Digest,
				BlobstoreID: d.BlobstoreID,
				SignedURL:   d.SignedURL,
				Headers:     d.Headers,
			},
		)
	}
	return list
}

// compiled is the result of both compile actions.
type compiled struct {
	Result compiledPackage `json:"result"`
}

// compiledPackage has the blob id of a compiled package, and its digest.
type compiledPackage struct {
	Digest      string `json:"sha1"`
	BlobstoreID string `json:"blobstore_id,omitempty"`
}

type dependencies = map[string]dependency

func compilePackage(d Deps) func(context.Context, string, string, string, string, dependencies) (compiled, error) {
	return func(ctx context.Context, id, digest, name, version string, deps dependencies) (compiled, error) {
		request, err := compileRequest(blob.Ref{ID: id}, digest, name, version, deps)
		if err != nil {
			return compiled{}, err
		}
		var c compiled
		err = d.Compiler.Compile(ctx, request, func(produce func(io.Writer) error) (err error) {
			c.Result.BlobstoreID, c.Result.Digest, err = d.Uploads.Put(ctx, produce)
			return err
		})
		return c, err
	}
}

// signedCompilation is the argument of compile_package_with_signed_url.
type signedCompilation struct {
	SourceURL secret.URL               `json:"package_get_signed_url"`
	UploadURL secret.URL               `json:"upload_signed_url"`
	Headers   map[string]secret.String `json:"blobstore_headers"`
	Digest    string                   `json:"digest"`
	Name      string                   `json:"name"`
	Version   string                   `json:"version"`
	Deps      dependencies             `json:"deps"`
}

func compileSigned(d Deps) func(context.Context, signedCompilation) (compiled, error) {
	return func(ctx context.Context, s signedCompilation) (compiled, error) {
		request, err := compileRequest(blob.Ref{SignedURL: s.SourceURL, Headers: s.Headers}, s.Digest, s.Name,
			s.Version, s.Deps)
		if err != nil {
			return compiled{}, err
		}
		var c compiled
		err = d.Compiler.Compile(ctx, request, func(produce func(io.Writer) error) (err error) {
			c.Result.Digest, err = d.Uploads.PutSigned(ctx, s.UploadURL, s.Headers, produce)
			return err
		})
		return c, err
	}
}

func compileRequest(source blob.Ref, digest, name, version string, deps dependencies) (compile.Request, error) {
	var err error
	if source.Digest, err = blob.ParseDigest(digest); err != nil {
		return compile.Request{}, err
	}
	return compile.Request{Name: name, Version: version, Source: source, Dependencies: packages(deps)}, nil
}
