package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"cambium/internal/vcap"
	"cambium/jobs/bundle"
	"cambium/jobs/compile"

	"github.com/sirupsen/logrus"
)

// compileReleases is `agent compile [-output-directory DIR] RELEASE.tgz…`: it compiles release
// tarballs on a machine made from a stemcell, without a Director.
func compileReleases(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("compile", flag.ContinueOnError)
	flags.SetOutput(stderr)
	output := flags.String("output-directory", ".", "where compiled releases are written")
	base := flags.String("b", vcap.DefaultBase, "base directory")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: agent compile [-output-directory DIR] RELEASE.tgz…")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return 2
	}
	dirs := vcap.New(*base)
	stemcell, err := stemcellSlug(dirs)
	if err == nil {
		err = makeCompileDirs(dirs)
	}
	if err != nil {
		fmt.Fprintf(stderr, "agent compile: %v\n", err)
		return 1
	}
	logger := logrus.New()
	logger.SetOutput(stderr)
	compiler := compile.Compiler{Dirs: dirs, Owner: bundle.Owner{UID: os.Geteuid(), GID: os.Getegid()}, Parallel: 1, Log: logger.WithField("component", "compile")}
	for _, tarball := range flags.Args() {
		path, err := compiler.Release(ctx, tarball, *output, stemcell)
		if err != nil {
			fmt.Fprintf(stderr, "agent compile: %v\n", err)
			return 1
		}
		fmt.Fprintln(stdout, path)
	}
	return 0
}

// stemcellSlug is "name/version" of the stemcell that this machine was made from.
func stemcellSlug(dirs vcap.Dirs) (string, error) {
	var parts []string
	for _, name := range []string{"operating_system", "stemcell_version"} {
		data, err := os.ReadFile(filepath.Join(dirs.BoshEtc(), name))
		if err != nil {
			return "", fmt.Errorf("which stemcell this is: %w", err)
		}
		part := strings.TrimSpace(string(data))
		if part == "" || strings.ContainsAny(part, "/ \n") {
			return "", fmt.Errorf("which stemcell this is: %s does not say", filepath.Join(dirs.BoshEtc(), name))
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "/"), nil
}

// makeCompileDirs makes what the boot of an agent would have made.
func makeCompileDirs(dirs vcap.Dirs) error {
	for _, dir := range []string{dirs.Tmp(), dirs.Compile(), filepath.Join(dirs.Sys(), "log")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}
