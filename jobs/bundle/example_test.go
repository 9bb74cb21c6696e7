package bundle_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"cambium/jobs/bundle"
)

// A package is packed, unpacked beside its place, committed, and enabled by a link.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "bundle")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	source := filepath.Join(dir, "source")
	check(os.MkdirAll(filepath.Join(source, "bin"), 0o755))
	check(os.WriteFile(filepath.Join(source, "bin", "web"), []byte("#!/bin/sh\n"), 0o755))
	var archive bytes.Buffer
	check(bundle.PackGzip(ctx, source, &archive))

	owner := bundle.Owner{UID: os.Geteuid(), GID: os.Getegid()}
	packages := bundle.Collection{Store: filepath.Join(dir, "data/packages"), Links: filepath.Join(dir, "packages"),
		Mode: 0o755, Owner: owner}
	web := bundle.Bundle{Name: "web", Hash: "1-8f14e45f"}
	staged, err := packages.Stage(web)
	check(err)
	compression, err := bundle.Unpack(ctx, &archive,
		bundle.Rules{Target: bundle.Into(staged.Root), UID: owner.UID, GID: owner.GID})
	check(err)
	fmt.Println("compression:", compression, "installed:", packages.Installed(web))
	check(bundle.Commit([]*bundle.Staged{staged}))
	fmt.Println("installed:", packages.Installed(web))

	check(packages.EnsureLinks())
	var links bundle.Switch // can be rolled back until it is done
	check(links.Set(packages.Link("web"), packages.Dir(web)))
	check(links.Sync())
	_, err = os.Stat(filepath.Join(packages.Link("web"), "bin/web"))
	fmt.Println("enabled:", err == nil)
	// Output:
	// compression: gzip installed: false
	// installed: true
	// enabled: true
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
