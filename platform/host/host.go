// Package host sets what a machine is: its name, its hosts file, whether IPv6 works, where it
// gets the time from and whom it trusts. It also removes what a hardened image should not
// have, and runs the stemcell's hooks.
//
// A Desired names only what the caller cares about; the rest of the machine stays as it is.
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
	// Units restarts services; nil where there is no service manager.
	Units interface {
		Restart(ctx context.Context, name string) error
	}

	// The kernel's host name is not below Root, so tests bring their own.
	setHostname func(name []byte) error
	hostname    func() (string, error)
}

func (h *Host) at(path string) string { return filepath.Join(h.Root, path) }

// Desired is what the machine should be. Zero fields are left alone.
type Desired struct {
	Hostname string
	Hosts    []byte // content of the hosts file, see HostsFile
	IPv6     bool
	// TimeServers are names or addresses; an empty list leaves the stemcell's own.
	TimeServers []string
	// Certificates is a text with PEM blocks in it; an empty text means none, nil means as
	// they are.
	Certificates *string
}

// State is what Observe saw.
type State struct {
	Hostname     string // of the kernel
	HostnameFile []byte
	Hosts        []byte
	IPv6         ipv6State
	Time         timeState
	Certificates certificateState
}

// Action is one kind of Change.
type Action string

const (
	SetHostname        Action = "set host name"
	WriteFile          Action = "write"
	RemoveFile         Action = "remove"
	SetSysctl          Action = "set"
	ReloadChrony       Action = "let chronyd read its sources again"
	RestartTimesyncd   Action = "restart systemd-timesyncd"
	RunSyncTime        Action = "run sync-time"
	UpdateCertificates Action = "update the certificate store"
)

// Change is one step from what is to what should be.
type Change struct {
	Action  Action
	Path    string // of a file, without the root
	Content []byte // of a file or sysctl, or a name
	Mode    fs.FileMode
}

func (c Change) String() string {
	switch c.Action {
	case SetHostname:
		return fmt.Sprintf("set host name to %s", c.Content)
	case SetSysctl:
		return fmt.Sprintf("set %s to %s", c.Path, c.Content)
	case WriteFile, RemoveFile:
		return fmt.Sprintf("%s %s", c.Action, c.Path)
	}
	return string(c.Action)
}

// Observe reads what the fields of Desired are compared with.
func (h *Host) Observe(ctx context.Context) (s State, err error) {
	if ctx.Err() != nil {
		return State{}, context.Cause(ctx)
	}
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
	if s.Hosts, err = h.read(hostsPath); err != nil {
		return State{}, err
	}
	if s.IPv6, err = h.observeIPv6(); err != nil {
		return State{}, err
	}
	if s.Time, err = h.observeTime(); err != nil {
		return State{}, err
	}
	s.Certificates, err = h.observeCertificates()
	return s, err
}

// read returns nil for a file that is not there.
func (h *Host) read(path string) ([]byte, error) {
	data, err := os.ReadFile(h.at(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// Diff decides what has to be done, in order.
func Diff(have State, want Desired) (changes []Change, err error) {
	if want.Hostname != "" {
		if err := checkName(want.Hostname); err != nil {
			return nil, err
		}
		if have.Hostname != want.Hostname {
			changes = append(changes, Change{Action: SetHostname, Content: []byte(want.Hostname)})
		}
		changes = append(changes, file(hostnamePath, have.HostnameFile, []byte(want.Hostname), 0o644)...)
	}
	if want.Hosts != nil {
		changes = append(changes, file(hostsPath, have.Hosts, want.Hosts, 0o644)...)
	}
	if want.IPv6 {
		more, err := diffIPv6(have.IPv6)
		if err != nil {
			return nil, err
		}
		changes = append(changes, more...)
	}
	if len(want.TimeServers) > 0 {
		more, err := diffTime(have.Time, want.TimeServers)
		if err != nil {
			return nil, err
		}
		changes = append(changes, more...)
	}
	if want.Certificates != nil {
		changes = append(changes, diffCertificates(have.Certificates, *want.Certificates)...)
	}
	return changes, nil
}

func file(path string, have, want []byte, mode fs.FileMode) []Change {
	if have != nil && bytes.Equal(have, want) {
		return nil
	}
	return []Change{{Action: WriteFile, Path: path, Content: want, Mode: mode}}
}

// Converge makes the machine be as desired and returns what that took.
func (h *Host) Converge(ctx context.Context, want Desired) ([]Change, error) {
	have, err := h.Observe(ctx)
	if err != nil {
		return nil, err
	}
	changes, err := Diff(have, want)
	if err != nil {
		return nil, err
	}
	return changes, h.Apply(ctx, changes)
}

// Apply does the changes in order and stops at the first that fails. Each may be done twice.
func (h *Host) Apply(ctx context.Context, changes []Change) error {
	for _, c := range changes {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := h.apply(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
		if h.Log != nil {
			h.Log.WithField("change", c.String()).Info("changed host")
		}
	}
	return nil
}

func (h *Host) apply(ctx context.Context, c Change) error {
	switch c.Action {
	case SetHostname:
		if h.setHostname != nil {
			return h.setHostname(c.Content)
		}
		return unix.Sethostname(c.Content)
	case WriteFile:
		return h.write(c.Path, c.Content, c.Mode)
	case RemoveFile:
		return atomicfile.Remove(h.at(c.Path))
	case SetSysctl:
		return os.WriteFile(h.at(c.Path), c.Content, 0o644)
	case ReloadChrony:
		return reloadChrony(ctx, h.at(chronySocket))
	case RestartTimesyncd:
		if h.Units == nil {
			return nil // it reads the file when it starts
		}
		return h.Units.Restart(ctx, "systemd-timesyncd")
	case RunSyncTime:
		return h.runHook(ctx, syncTime, h.at(filepath.Join(h.Dirs.BoshBin(), syncTime)))
	case UpdateCertificates:
		return h.updateCertificates(ctx)
	}
	return errors.New("unknown change")
}

// write replaces a file at once. In a container the hosts file and its like are often mount
// points of their own, which no rename can replace; there the content is.
func (h *Host) write(path string, data []byte, mode fs.FileMode) error {
	full := h.at(path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return err
	}
	err := atomicfile.Write(full, data, mode)
	if errors.Is(err, unix.EBUSY) {
		return os.WriteFile(full, data, mode)
	}
	return err
}

// hasLineBreak reports what would end a line or a word in the files written here.
func hasLineBreak(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r == 0x7f || r == '#' || r == 0x85 || r == 0xa0 || r == 0x2028 || r == 0x2029
	})
}
