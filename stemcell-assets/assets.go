// Package assets holds what a stemcell needs of the agent: units, configurations per IaaS and
// the script that installs them. It is embedded so that the lab is one file; a stemcell builder
// uses the directory as it is.
package assets

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

//go:embed install swap agent.json etc log all:rootfs hardened share systemd udev
var files embed.FS

// AgentJSON returns the agent.json of an IaaS.
func AgentJSON(iaas string) ([]byte, error) {
	return files.ReadFile("agent.json/" + iaas + ".json")
}

// Unpack writes all assets below dir and returns the path of the install script.
func Unpack(dir string) (string, error) {
	return filepath.Join(dir, "install"), write(files, dir)
}

// PutRootFS writes the files of rootfs/ into the root file system of a stemcell: what a stemcell
// has and an installation on an existing machine must not change.
func PutRootFS(root string) error { return put("rootfs", root) }

// PutHardened writes the files of hardened/ over those of PutRootFS: the settings that audits ask for.
func PutHardened(root string) error { return put("hardened", root) }

func put(dir, root string) error {
	from, err := fs.Sub(files, dir)
	if err != nil {
		return err
	}
	return write(from, root)
}

// write writes files below a directory; links that are there do not lead out of it.
func write(from fs.FS, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return fs.WalkDir(from, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return root.MkdirAll(path, 0o755)
		}
		data, err := fs.ReadFile(from, path)
		if err != nil {
			return err
		}
		mode := os.FileMode(0o644) // embedded files have lost theirs
		if bytes.HasPrefix(data, []byte("#!")) {
			mode = 0o755
		}
		return root.WriteFile(path, data, mode)
	})
}

// Digest changes with the content of any asset.
func Digest() string {
	h := sha256.New()
	_ = fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			data, _ := files.ReadFile(path) // embedded: it is there
			_, _ = fmt.Fprintf(h, "%s %d %s", path, len(data), data)
		}
		return err
	})
	return hex.EncodeToString(h.Sum(nil))
}
