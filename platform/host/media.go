package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"cambium/internal/command"
)

// mediaRules makes udev restrict drives of removable media to root. By default they belong to the groups cdrom and
// floppy, of which vcap is a member, or to the user at the console (73-seat-late.rules). Other disks belong to the
// group disk. A stemcell has the same rules in installedMediaRules, which udev ignores if mediaRules exists.
const (
	mediaRules          = "/run/udev/rules.d/" + mediaRulesName
	installedMediaRules = "/usr/lib/udev/rules.d/" + mediaRulesName
	mediaRulesName      = "72-cambium-media.rules"

	mediaRulesText = `# From the BOSH agent: such media may hold this machine's settings, which contain secrets.
SUBSYSTEM=="block", KERNEL=="sr[0-9]*|fd[0-9]*", OWNER:="root", GROUP:="root", MODE:="0600", TAG-="uaccess"
SUBSYSTEM=="scsi_generic", ATTRS{type}=="5", OWNER:="root", GROUP:="root", MODE:="0600", TAG-="uaccess"
`
)

// mediaState describes the drives of removable media and udev's rules for them, as observed.
type mediaState struct {
	udev   bool   // udev is running
	rules  []byte // as udev reads them
	drives []drive
}

// drive is a device node of a drive, and whether only root has access.
type drive struct {
	path    string
	private bool
}

// HasDrives reports whether the machine has drives of removable media.
func (h *Host) HasDrives() bool {
	found, err := h.drives()
	return err == nil && len(found) > 0
}

func (h *Host) observeMedia() (s mediaState, err error) {
	for _, path := range []string{mediaRules, installedMediaRules} {
		if s.rules, err = h.read(path); s.rules != nil || err != nil {
			break
		}
	}
	if err != nil {
		return s, err
	}
	_, err = os.Stat(h.joinRoot("/run/udev/control"))
	s.udev = err == nil
	s.drives, err = h.drives()
	return s, err
}

// drives returns the device nodes of optical and floppy drives, and those of optical drives for SCSI commands.
func (h *Host) drives() (all []drive, err error) {
	var names []string
	for _, pattern := range []string{"/dev/sr[0-9]*", "/dev/fd[0-9]*"} {
		found, err := filepath.Glob(h.joinRoot(pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			names = append(names, filepath.Base(path))
		}
	}
	types, err := filepath.Glob(h.joinRoot("/sys/class/scsi_generic/sg[0-9]*/device/type"))
	if err != nil {
		return nil, err
	}
	for _, path := range types {
		if kind, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(kind)) == "5" {
			names = append(names, filepath.Base(filepath.Dir(filepath.Dir(path))))
		}
	}
	for _, name := range names {
		path := filepath.Join("/dev", name)
		info, err := os.Lstat(h.joinRoot(path))
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().Type() == fs.ModeSymlink {
			continue
		}
		if err != nil {
			return nil, err
		}
		// A stemcell's bosh-agent-rc gives the drive to root, with mode 0660.
		owner := info.Sys().(*syscall.Stat_t)
		all = append(all, drive{path, info.Mode().Perm()&0o007 == 0 && owner.Uid == 0 && owner.Gid == 0})
	}
	return all, nil
}

// diffMedia changes the modes first and then the rules: an event that udev is processing by the old rules may change
// the modes again, and the event for the new rules comes after it.
func diffMedia(have mediaState) (changes []Change) {
	for _, d := range have.drives {
		if !d.private {
			changes = append(changes, Change{Op: OpKeepToRoot, Path: d.path, Mode: 0o600})
		}
	}
	if have.udev && !bytes.Equal(have.rules, []byte(mediaRulesText)) {
		changes = append(changes, file(mediaRules, have.rules, []byte(mediaRulesText), 0o644)...)
		changes = append(changes, Change{Op: OpApplyUdevRules})
	}
	return changes
}

// udevTimeout bounds the wait for udev.
const udevTimeout = 10 * time.Second

// applyUdevRules makes udev read its rules and apply them to the drives. It uses udevadm, since the protocol of udev's
// socket is private and differs between versions.
func (h *Host) applyUdevRules(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, udevTimeout, fmt.Errorf("no answer within %s", udevTimeout))
	defer cancel()
	if _, err := command.Run(ctx, command.Cmd{Name: "udevadm", Args: []string{"control", "--reload"}}); err != nil {
		return err
	}
	found, err := h.drives()
	if err != nil || len(found) == 0 {
		return err
	}
	args := []string{"trigger", "--action=change", "--settle"}
	for _, d := range found {
		args = append(args, d.path)
	}
	_, err = command.Run(ctx, command.Cmd{Name: "udevadm", Args: args})
	return err
}

// keepToRoot changes owner and mode of a drive's device node. The node may be gone if the drive was removed.
func (h *Host) keepToRoot(path string, mode fs.FileMode) error {
	path = h.joinRoot(path)
	if err := errors.Join(os.Chmod(path, mode), os.Lchown(path, 0, 0)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
