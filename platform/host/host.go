// Package host configures the machine as a whole: host name, hosts file, IPv6, time servers and trusted certificates.
// It also removes the development tools that a hardened stemcell must not have, restricts drives of removable media to
// root, and runs the stemcell's hooks.
//
// Everything that Desired does not contain stays as it is.
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
	"unicode"

	"cambium/internal/atomicfile"
	"cambium/internal/vcap"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// Host reads and changes the machine below Root.
type Host struct {
	Root string
	Dirs vcap.Dirs
	Log  *logrus.Entry
	// Units restarts services. It is nil without a service manager.
	Units interface {
		Restart(ctx context.Context, name string) error
	}

	// Tests replace these, since the kernel's host name is not below Root.
	setHostname func(name []byte) error
	hostname    func() (string, error)
}

func (h *Host) joinRoot(path string) string { return filepath.Join(h.Root, path) }

// Desired describes the wanted state of the machine. Zero fields are ignored.
type Desired struct {
	Hostname string
	Hosts    []byte // content of the hosts file, see HostsFile
	IPv6     bool
	// TimeServers lists names or addresses. If it is empty, the stemcell's servers stay.
	TimeServers []string
	// Certificates is a text with PEM blocks. "" means no certificates; nil leaves them as they are.
	Certificates *string
	// RootMedia restricts drives of removable media to root.
	RootMedia bool
	// Hooks lists programs of the stemcell, in the agent's directory of programs or in PATH. Missing ones are skipped.
	// A hook that has succeeded runs again only after the next boot, since a restart of the agent does not undo its
	// work.
	Hooks []string
	// Marks lists empty files that have to exist. They are written in this order.
	Marks []string
	// RemoveListed names files of the stemcell that list paths to remove, one on each line: compilers, static
	// libraries. A missing file is an empty list. Diff returns an error for paths that must not be removed (relative
	// ones, the root, its children); the others are removed nevertheless.
	RemoveListed []string
}

// State describes the parts of the machine that Desired contains, as observed.
type State struct {
	Hostname     string // of the kernel
	HostnameFile []byte
	Hosts        []byte
	IPv6         ipv6State
	Time         timeState
	Certificates certificateState
	Media        mediaState
	Marks        map[string]bool // whether they exist
	hooks        map[string]hookState
	lists        map[string][]listedPath
	base         string // the agent's base directory, which must not be removed
}

// Op is the kind of a change.
type Op string

// Kinds of changes.
const (
	OpSetHostname        Op = "set-hostname"
	OpWriteFile          Op = "write-file"
	OpRemoveFile         Op = "remove-file"
	OpSetSysctl          Op = "set-sysctl"
	OpReloadChrony       Op = "reload-chronyd"
	OpRestartTimesyncd   Op = "restart-timesyncd"
	OpUpdateCertificates Op = "update-certificates"
	OpRunHook            Op = "run-hook"
	OpRemoveListed       Op = "remove-listed"
	OpKeepToRoot         Op = "keep-to-root"
	OpApplyUdevRules     Op = "apply-udev-rules"
)

// Change is a step towards the desired state.
type Change struct {
	Op      Op
	Path    string // of a file, without the root
	Content []byte // of a file or sysctl, or a name
	Mode    fs.FileMode
	Listed  []string // paths to remove, for OpRemoveListed
}

// String describes the change in one line.
func (c Change) String() string {
	switch c.Op {
	case OpSetHostname:
		return fmt.Sprintf("set host name to %s", c.Content)
	case OpSetSysctl:
		return fmt.Sprintf("set %s to %s", c.Path, c.Content)
	case OpWriteFile:
		return "write " + c.Path
	case OpRemoveFile:
		return "remove " + c.Path
	case OpReloadChrony:
		return "make chronyd reload its sources"
	case OpRestartTimesyncd:
		return "restart systemd-timesyncd"
	case OpUpdateCertificates:
		return "update the certificate store"
	case OpRunHook:
		return "run " + c.Path
	case OpKeepToRoot:
		return fmt.Sprintf("restrict %s to root, mode %04o", c.Path, c.Mode)
	case OpApplyUdevRules:
		return "make udev apply its rules to the drives"
	case OpRemoveListed:
		return fmt.Sprintf("remove %d paths that %s lists", len(c.Listed), c.Path)
	}
	return string(c.Op)
}

// Runs reports whether the change starts a program or a service, whose own changes are not known.
func (c Change) Runs() bool {
	switch c.Op {
	case OpRunHook, OpApplyUdevRules, OpRestartTimesyncd, OpReloadChrony:
		return true
	}
	return false
}

// Observe reads the parts of the machine that want contains.
func (h *Host) Observe(ctx context.Context, want Desired) (s State, err error) {
	if ctx.Err() != nil {
		return State{}, context.Cause(ctx)
	}
	s.base = h.Dirs.Base()
	if want.Hostname != "" {
		hostname := h.hostname
		if hostname == nil {
			hostname = os.Hostname
		}
		if s.Hostname, err = hostname(); err != nil {
			return State{}, fmt.Errorf("read host name: %w", err)
		}
		if s.HostnameFile, err = h.read(hostnamePath); err != nil {
			return State{}, err
		}
	}
	if want.Hosts != nil {
		if s.Hosts, err = h.read(hostsPath); err != nil {
			return State{}, err
		}
	}
	if want.IPv6 {
		if s.IPv6, err = h.observeIPv6(); err != nil {
			return State{}, err
		}
	}
	if len(want.TimeServers) > 0 {
		if s.Time, err = h.observeTime(); err != nil {
			return State{}, err
		}
	}
	if want.Certificates != nil {
		if s.Certificates, err = h.observeCertificates(); err != nil {
			return State{}, err
		}
	}
	if want.RootMedia {
		if s.Media, err = h.observeMedia(); err != nil {
			return State{}, err
		}
	}
	s.Marks = make(map[string]bool, len(want.Marks))
	for _, path := range want.Marks {
		_, err := os.Lstat(h.joinRoot(path))
		s.Marks[path] = err == nil
	}
	s.hooks = h.observeHooks(want.Hooks)
	s.lists, err = h.observeLists(want.RemoveListed)
	return s, err
}

// read reads a file. It returns nil if the file does not exist.
func (h *Host) read(path string) ([]byte, error) {
	data, err := os.ReadFile(h.joinRoot(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// Diff returns the changes, in order. The error names everything that cannot be configured. The changes returned with
// it are for the rest, and may be applied.
func Diff(have State, want Desired) (changes []Change, err error) {
	var failed []error
	add := func(more []Change, err error) {
		changes, failed = append(changes, more...), append(failed, err)
	}
	if want.Hostname != "" {
		add(diffHostname(have, want.Hostname))
	}
	if want.Hosts != nil {
		add(file(hostsPath, have.Hosts, want.Hosts, 0o644), nil)
	}
	if want.IPv6 {
		add(diffIPv6(have.IPv6))
	}
	if len(want.TimeServers) > 0 {
		add(diffTime(have.Time, want.TimeServers))
	}
	if want.Certificates != nil {
		add(diffCertificates(have.Certificates, *want.Certificates), nil)
	}
	if want.RootMedia {
		add(diffMedia(have.Media), nil)
	}
	for _, path := range want.Marks {
		if !have.Marks[path] {
			add([]Change{{Op: OpWriteFile, Path: path, Mode: 0o600}}, nil)
		}
	}
	add(diffHooks(have, want.Hooks), nil)
	add(diffListed(have, want.RemoveListed))
	return changes, errors.Join(failed...)
}

func diffHostname(have State, name string) (changes []Change, err error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if have.Hostname != name {
		changes = append(changes, Change{Op: OpSetHostname, Content: []byte(name)})
	}
	return append(changes, file(hostnamePath, have.HostnameFile, []byte(name), 0o644)...), nil
}

// file returns a change that writes a file, unless it has the wanted content.
func file(path string, have, want []byte, mode fs.FileMode) []Change {
	if have != nil && bytes.Equal(have, want) {
		return nil
	}
	return []Change{{Op: OpWriteFile, Path: path, Content: want, Mode: mode}}
}

// Apply makes the changes in order until one fails, and returns those made. Changes may be repeated.
func (h *Host) Apply(ctx context.Context, changes []Change) (made []Change, err error) {
	for _, c := range changes {
		if ctx.Err() != nil {
			return made, context.Cause(ctx)
		}
		if c.Op == OpRemoveListed {
			c.Listed, err = h.removeListed(ctx, c.Listed)
		} else {
			err = h.apply(ctx, c)
		}
		if err == nil || len(c.Listed) > 0 {
			made = append(made, c)
			h.Log.WithField("change", c.String()).Info("changed host")
		}
		if err != nil {
			return made, fmt.Errorf("%s: %w", c, err)
		}
	}
	return made, nil
}

func (h *Host) apply(ctx context.Context, c Change) error {
	switch c.Op {
	case OpSetHostname:
		if h.setHostname != nil {
			return h.setHostname(c.Content)
		}
		return unix.Sethostname(c.Content)
	case OpWriteFile:
		return h.write(c.Path, c.Content, c.Mode)
	case OpRemoveFile:
		return atomicfile.Remove(h.joinRoot(c.Path))
	case OpSetSysctl:
		return os.WriteFile(h.joinRoot(c.Path), c.Content, 0o644)
	case OpReloadChrony:
		return reloadChrony(ctx, h.joinRoot(chronySocket))
	case OpRestartTimesyncd:
		if h.Units == nil {
			return nil // timesyncd reads the file when it starts
		}
		return h.Units.Restart(ctx, "systemd-timesyncd")
	case OpUpdateCertificates:
		return h.updateCertificates(ctx)
	case OpKeepToRoot:
		return h.keepToRoot(c.Path, c.Mode)
	case OpApplyUdevRules:
		return h.applyUdevRules(ctx)
	case OpRunHook:
		return h.runHook(ctx, c.Path)
	}
	return errors.New("unknown change")
}

// write replaces a file atomically. In a container the hosts file is often a mount point, which cannot be replaced; its
// content is overwritten.
func (h *Host) write(path string, data []byte, mode fs.FileMode) error {
	full := h.joinRoot(path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return err
	}
	err := atomicfile.Write(full, data, mode)
	if errors.Is(err, unix.EBUSY) {
		return os.WriteFile(full, data, mode)
	}
	return err
}

// hasSeparator reports whether a text contains a character that ends a line or a word in these files.
func hasSeparator(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || r == '#'
	})
}
