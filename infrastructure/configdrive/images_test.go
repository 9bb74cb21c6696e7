//go:build root || vm

package configdrive

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// foreignImages makes media of file systems that no config drive has, each with a file env, by
// the name of their kind.
func foreignImages(t *testing.T, dir string) map[string]string {
	t.Helper()
	tree := filepath.Join(dir, "foreign")
	if err := os.Mkdir(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	envFile(t, tree)
	images := map[string]string{}
	for _, medium := range []struct {
		kind    string
		size    int64
		command func(image string) []string
	}{
		// The protofile of mkfs.xfs: boot block, blocks and inodes, the root, its one file.
		{"xfs", 320 << 20, func(image string) []string { return []string{"mkfs.xfs", "-q", "-p", protofile(t, tree), image} }},
		{"btrfs", 128 << 20, func(image string) []string { return []string{"mkfs.btrfs", "-q", "--rootdir", tree, image} }},
		{"squashfs", 0, func(image string) []string {
			return []string{"mksquashfs", tree, image, "-noappend", "-quiet", "-no-progress"}
		}},
	} {
		image := filepath.Join(dir, medium.kind+".img")
		if err := os.WriteFile(image, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(image, medium.size); err != nil {
			t.Fatal(err)
		}
		tool(t, medium.command(image)...)
		images[medium.kind] = image
	}
	return images
}

// extImage makes an ext4 medium with a file env and with what must be of no use on it: a device,
// a setuid program, a link out of the medium.
func extImage(t *testing.T, dir string) string {
	t.Helper()
	tree := filepath.Join(dir, "ext4")
	for _, command := range [][]string{
		{"mkdir", tree},
		{"cp", "/bin/true", filepath.Join(tree, "program")},
		{"chmod", "4755", filepath.Join(tree, "program")},
		{"mknod", filepath.Join(tree, "zero"), "c", "1", "5"},
		{"ln", "-s", "/proc/version", filepath.Join(tree, "outside")},
		{"cp", envFile(t, dir), filepath.Join(tree, "env")},
		{"mkfs.ext4", "-q", "-L", "config-2", "-d", tree, tree + ".img", "16m"},
		// A journal that wants to be replayed, as after a power cut.
		{"debugfs", "-w", "-R", "feature +needs_recovery", tree + ".img"},
	} {
		tool(t, command...)
	}
	return tree + ".img"
}

func envFile(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "env")
	if err := os.WriteFile(path, []byte(files["env"]), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func tool(t *testing.T, command ...string) {
	t.Helper()
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
}

func protofile(t *testing.T, tree string) string {
	t.Helper()
	path := tree + ".proto"
	text := "/dev/null\n0 0\nd--755 0 0\nenv ---600 0 0 " + filepath.Join(tree, "env") + "\n$\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
