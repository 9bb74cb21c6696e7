package image

import (
	"context"
	"crypto/sha512"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"

	assets "cambium/stemcell-assets"
)

// setID lists the programs that keep their set-user-ID bit, by which people become root.
var setID = []string{"usr/bin/su", "usr/bin/sudo"}

// minDays matches the line of login.defs with the minimum age of a password before its owner may change it.
var minDays = regexp.MustCompile(`(?m)^PASS_MIN_DAYS\s.*$`)

// harden applies the settings that audits require to a stemcell's tree, besides the files of PutHardened.
func harden(ctx context.Context, root string, dir *os.Root) error {
	if err := assets.PutHardened(root); err != nil {
		return err
	}
	if err := run(ctx, "chroot", root, "chage", "--mindays=1", "vcap"); err != nil {
		return err
	}
	for _, name := range []string{"etc/shadow", "etc/gshadow", "etc/shadow-", "etc/gshadow-"} {
		// Root reads them anyway; others have set-group-ID programs no more.
		if err := dir.Chmod(name, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := dir.Chown(name, 0, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	defs, err := dir.ReadFile("etc/login.defs")
	if err != nil {
		return err
	}
	if !minDays.Match(defs) {
		return errors.New("/etc/login.defs has no line PASS_MIN_DAYS")
	}
	if err := dir.WriteFile("etc/login.defs", minDays.ReplaceAll(defs, []byte("PASS_MIN_DAYS\t1")), 0o644); err != nil {
		return err
	}
	return stripSetID(dir)
}

// stripSetID removes the set-user-ID and set-group-ID bits of all programs except those of setID.
func stripSetID(dir *os.Root) error {
	return fs.WalkDir(dir.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || slices.Contains(setID, path) {
			return err
		}
		info, err := d.Info()
		if err != nil || info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) == 0 {
			return err
		}
		return dir.Chmod(path, info.Mode().Perm())
	})
}

// bootPassword returns lines that protect the boot loader's prompt with a password that nobody knows: the hash belongs
// to no password. The machine boots without one.
func bootPassword() string {
	salt := sha512.Sum512([]byte("salt"))
	hash := sha512.Sum512(salt[:])
	return fmt.Sprintf("set superusers=\"vcap\"\npassword_pbkdf2 vcap grub.pbkdf2.sha512.10000.%X.%X\n", salt, hash)
}
