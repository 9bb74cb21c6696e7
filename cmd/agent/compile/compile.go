// Package compile implements `agent compile`, which compiles release tarballs without a Director, on a machine made
// from a stemcell.
package compile

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"cambium/cmd/agent/cli"
	"cambium/internal/vcap"
	"cambium/jobs/bundle"
	"cambium/jobs/compile"

	"github.com/sirupsen/logrus"
)

// osRelease identifies the operating system.
const osRelease = "/etc/os-release"

// Run runs `agent compile`.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return run(ctx, osRelease, args, stdout, stderr)
}

func run(ctx context.Context, osRelease string, args []string, stdout, stderr io.Writer) int {
	flags := cli.NewFlags("compile", cli.Help{Arguments: "[-output-directory DIR] RELEASE.tgz…",
		Purpose: "Compiles release tarballs on this machine, without a Director, and prints where the compiled releases are.\n" +
			"All packages that are installed on the machine are removed.",
		Examples: []string{"agent compile -output-directory /tmp nats-release-54.tgz"}}, stdout, stderr)
	output := flags.String("output-directory", ".", "`DIR` for the compiled releases")
	base := flags.String("b", vcap.DefaultBase, "`BASE` directory")
	if code, ok := flags.Parse(args, 1, -1); !ok {
		return code
	}
	dirs := vcap.New(*base)
	stemcell, err := stemcellSlug(osRelease, dirs)
	if info, missing := os.Stat(*output); err == nil && (missing != nil || !info.IsDir()) {
		// Before hours of compilation, not after.
		err = fmt.Errorf("-output-directory: %s is not a directory", *output)
	}
	if err == nil {
		err = MakeWorkDirs(dirs)
	}
	if err != nil {
		fmt.Fprintf(stderr, "agent compile: %v\n", err)
		return cli.ExitFailed
	}
	logger := logrus.New()
	logger.SetOutput(stderr)
	compiler := compile.Compiler{
		Dirs:     dirs,
		Owner:    bundle.Owner{UID: os.Geteuid(), GID: os.Getegid()},
		Parallel: 1,
		Log:      logger.WithField("component", "compile"),
	}
	for _, tarball := range flags.Args() {
		path, err := compiler.Release(ctx, tarball, *output, stemcell)
		if err != nil {
			fmt.Fprintf(stderr, "agent compile: %v\n", err)
			return cli.ExitFailed
		}
		fmt.Fprintln(stdout, path)
	}
	return cli.ExitOK
}

// stemcellSlug returns "name/version" of this machine's stemcell, with the name that a Director uses:
// ubuntu-noble/1.484. The stemcell's file operating_system has only ubuntu.
func stemcellSlug(osRelease string, dirs vcap.Dirs) (string, error) {
	release, err := os.ReadFile(osRelease)
	if err != nil {
		return "", fmt.Errorf("identify the stemcell: %w", err)
	}
	keys := map[string]string{}
	for line := range strings.Lines(string(release)) {
		if key, value, found := strings.Cut(strings.TrimSpace(line), "="); found {
			keys[key] = strings.Trim(value, `"'`)
		}
	}
	versionFile := dirs.StemcellFile("stemcell_version")
	version, err := os.ReadFile(versionFile)
	if err != nil {
		return "", fmt.Errorf("identify the stemcell: %w", err)
	}
	for _, part := range []struct{ value, from string }{
		{keys["ID"], "ID in " + osRelease}, {keys["VERSION_CODENAME"], "VERSION_CODENAME in " + osRelease}, {strings.TrimSpace(string(version)), versionFile},
	} {
		if part.value == "" || strings.ContainsAny(part.value, "/ \n") {
			return "", fmt.Errorf("identify the stemcell: %s is invalid: %q", part.from, part.value)
		}
	}
	return keys["ID"] + "-" + keys["VERSION_CODENAME"] + "/" + strings.TrimSpace(string(version)), nil
}

// MakeWorkDirs creates the directories that compilations and errands need. On a real machine, a boot does that.
func MakeWorkDirs(dirs vcap.Dirs) error {
	for _, dir := range []string{dirs.Tmp(), dirs.Compile(), dirs.JobLogs()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}
