package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	chronySources   = "/etc/chrony/sources.d/bosh.sources"
	chronySocket    = "/run/chrony/chronyd.sock"
	timesyncdDropIn = "/etc/systemd/timesyncd.conf.d/60-bosh.conf"
	syncTime        = "sync-time"
)

// timeState tells which programs can synchronize the time, in order of preference.
type timeState struct {
	serverFile string // path of the list of servers
	servers    []byte // its content
	chrony     bool
	sources    []byte
	timesyncd  bool
	dropIn     []byte
	hook       hookState // the stemcell's program sync-time
}

func (h *Host) observeTime() (s timeState, err error) {
	s.serverFile = h.Dirs.TimeServers()
	if s.servers, err = h.read(s.serverFile); err != nil {
		return s, err
	}
	if s.sources, err = h.read(chronySources); err != nil {
		return s, err
	}
	if s.dropIn, err = h.read(timesyncdDropIn); err != nil {
		return s, err
	}
	for _, probe := range []struct {
		paths []string
		found *bool
	}{
		{[]string{filepath.Dir(chronySources)}, &s.chrony},
		{[]string{"/usr/lib/systemd/systemd-timesyncd", "/lib/systemd/systemd-timesyncd"}, &s.timesyncd},
	} {
		for _, path := range probe.paths {
			if _, err := os.Stat(h.joinRoot(path)); err == nil {
				*probe.found = true
			} else if !errors.Is(err, fs.ErrNotExist) {
				return s, err
			}
		}
	}
	if hook := h.observeHook(syncTime); filepath.Dir(hook.path) == h.Dirs.BoshBin() {
		s.hook = hook // unlike other hooks, it is not searched in PATH
	}
	return s, nil
}

// diffTime writes the list of servers last if a daemon has to be notified, since the list marks completion. The
// stemcell's program reads the list, so for that it is written first.
func diffTime(have timeState, servers []string) ([]Change, error) {
	for _, server := range servers {
		if server == "" || hasSeparator(server) {
			return nil, fmt.Errorf("time server %q is not a name or an address", server)
		}
	}
	list := file(have.serverFile, have.servers, []byte(strings.Join(servers, " ")), 0o644)
	switch {
	case have.chrony:
		var b strings.Builder
		for _, server := range servers {
			fmt.Fprintf(&b, "server %s iburst\n", server)
		}
		sources := file(chronySources, have.sources, []byte(b.String()), 0o644)
		if len(sources)+len(list) == 0 {
			return nil, nil
		}
		return append(append(sources, Change{Op: OpReloadChrony}), list...), nil
	case have.timesyncd:
		dropIn := file(timesyncdDropIn, have.dropIn, []byte("[Time]\nNTP="+strings.Join(servers, " ")+"\n"), 0o644)
		if len(dropIn)+len(list) == 0 {
			return nil, nil
		}
		return append(append(dropIn, Change{Op: OpRestartTimesyncd}), list...), nil
	case have.hook.path != "" && (len(list) > 0 || !have.hook.succeeded):
		return append(list, Change{Op: OpRunHook, Path: have.hook.path}), nil
	}
	return list, nil
}
