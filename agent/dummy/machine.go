package dummy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"cambium/internal/atomicfile"
	"cambium/internal/vcap"
	"cambium/platform/user"
	"cambium/settings"
)

// HostKey is the host key in the answer of ssh, since there is no sshd.
const HostKey = "dummy-public-key"

// MakeDirs creates the directories that the suite looks into, as a boot does; sys is a link to data/sys.
func MakeDirs(dirs vcap.Dirs) error {
	for _, dir := range []string{dirs.Bosh(), dirs.SysLog(), dirs.Blobs()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if info, err := os.Lstat(dirs.Sys()); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a directory, want a link to %s: remove it", dirs.Sys(), dirs.DataSys())
	}
	return atomicfile.Symlink(dirs.DataSys(), dirs.Sys())
}

// Users keeps passwords in files, which the suite's specs read. It creates no accounts.
type Users struct{ Dirs vcap.Dirs }

// Observe returns an account for each wanted user, without password and keys.
func (u Users) Observe(_ context.Context, want user.Desired) (user.State, error) {
	accounts := map[string]user.Account{}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(want.Passwords)),
		slices.Collect(maps.Keys(want.Keys))) {
		accounts[name] = user.Account{Name: name}
	}
	return user.State{Accounts: accounts}, nil
}

// Apply writes the password hash of each user to a file.
func (u Users) Apply(_ context.Context, changes []user.Change) ([]user.Change, error) {
	for _, c := range changes {
		if c.Op != user.OpSetPassword || c.Hash().Reveal() == user.NoPassword {
			continue
		}
		path := u.Dirs.DummyPassword(c.User)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		if err := atomicfile.Write(path, []byte(c.Hash().Reveal()), 0o600); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// Hosts keeps the hosts of a deployment in a file, which the suite's specs of DNS read.
type Hosts struct{ Dirs vcap.Dirs }

// WriteHosts implements action.HostsFile.
func (h Hosts) WriteHosts(_ context.Context, records [][2]string) error {
	var lines []byte
	for _, r := range records {
		lines = fmt.Appendf(lines, "%s %s\n", r[0], r[1])
	}
	return atomicfile.Write(h.Dirs.DummyHosts(), lines, 0o644)
}

// Networks returns the networks of the settings. Those of DHCP get the address that the dummy CPI has written to a file
// in place of a lease. Without the file they stay as they are.
func Networks(dirs vcap.Dirs, of map[string]settings.Network) (map[string]settings.Network, error) {
	path := dirs.DummyNetwork()
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return of, nil
	}
	var lease struct {
		IP      string `json:"ip"`
		Netmask string `json:"netmask"`
		Gateway string `json:"gateway"`
	}
	if err == nil {
		err = json.Unmarshal(data, &lease)
	}
	if err != nil {
		return of, fmt.Errorf("%s: %w", path, err)
	}
	found := maps.Clone(of)
	for name, n := range found {
		if n.DHCP() {
			n.IP, n.Netmask, n.Gateway = lease.IP, lease.Netmask, lease.Gateway
			found[name] = n
		}
	}
	return found, nil
}

// NoEffect implements what a dummy machine lacks and does nothing: services, ssh accounts, certificates, neighbors.
type NoEffect struct{}

func (NoEffect) Start(context.Context, string) error             { return nil }
func (NoEffect) Kill(context.Context, string) error              { return nil }
func (NoEffect) PowerOff(context.Context) error                  { return nil }
func (NoEffect) Create(context.Context, string, string) error    { return nil }
func (NoEffect) Remove(context.Context, func(string) bool) error { return nil }
func (NoEffect) Trust(context.Context, string) error             { return nil }
func (NoEffect) Flush(context.Context, netip.Addr) error         { return nil }
