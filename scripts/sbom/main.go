// Command sbom writes the bills of materials of a binary, from the list of modules that the binary
// itself has, beside it: BINARY.spdx.json and BINARY.cdx.json.
package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"cambium/internal/sbom"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: sbom VERSION COMMIT_TIME BINARY")
	}
	seconds, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return fmt.Errorf("commit time: %w", err)
	}
	program, err1 := os.ReadFile(args[2])
	modules, err2 := sbom.Modules(args[2])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	product := sbom.Product{Name: filepath.Base(args[2]), Version: args[0],
		SHA256: fmt.Sprintf("%x", sha256.Sum256(program)), Made: time.Unix(seconds, 0), Parts: modules}
	spdx, err1 := product.SPDX()
	cdx, err2 := product.CycloneDX()
	return errors.Join(err1, err2, os.WriteFile(args[2]+".spdx.json", spdx, 0o644),
		os.WriteFile(args[2]+".cdx.json", cdx, 0o644))
}
