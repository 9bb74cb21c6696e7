package host

import (
	"errors"
	"regexp"
	"strings"
)

const (
	ipv6Conf   = "/proc/sys/net/ipv6/conf"
	sysctlFile = "/etc/sysctl.d/60-bosh-sysctl.conf"
)

// errIPv6Off is returned if the running kernel has no IPv6, which only a reboot with other arguments can change.
var errIPv6Off = errors.New("the kernel was started without IPv6")

type ipv6State struct {
	kernel  bool              // the sysctls exist
	cmdline string            // of the kernel
	sysctl  map[string]string // path → value
	file    []byte            // the stemcell's sysctl.d file
}

var ipv6Wanted = []struct{ path, value string }{
	{ipv6Conf + "/all/accept_ra", "1"},
	{ipv6Conf + "/default/accept_ra", "1"},
	{ipv6Conf + "/all/disable_ipv6", "0"},
	{ipv6Conf + "/default/disable_ipv6", "0"},
}

func (h *Host) observeIPv6() (s ipv6State, err error) {
	cmdline, err := h.read("/proc/cmdline")
	if err != nil {
		return s, err
	}
	s.cmdline = string(cmdline)
	if s.file, err = h.read(sysctlFile); err != nil {
		return s, err
	}
	s.sysctl = make(map[string]string)
	for _, w := range ipv6Wanted {
		value, err := h.read(w.path)
		if err != nil {
			return s, err
		}
		if value != nil {
			s.kernel = true
			s.sysctl[w.path] = strings.TrimSpace(string(value))
		}
	}
	return s, nil
}

// disabled matches the lines with which stemcells disable IPv6 at boot.
var disabled = regexp.MustCompile(
	`(?m)^([ \t]*net[./]ipv6[./]conf[./](?:all|default)[./]disable_ipv6[ \t]*=[ \t]*)1([ \t]*)$`)

func diffIPv6(have ipv6State) (changes []Change, err error) {
	if !have.kernel {
		for _, argument := range strings.Fields(have.cmdline) {
			if argument == "ipv6.disable=1" {
				return nil, errors.Join(
					errIPv6Off,
					errors.New(
						"remove ipv6.disable=1 from the kernel arguments (in the stemcell's boot loader configuration) and reboot",
					),
				)
			}
		}
		return nil, errors.Join(
			errIPv6Off,
			errors.New(
				"its sysctls are missing and ipv6.disable=1 is not among the kernel arguments: the ipv6 module is missing",
			),
		)
	}
	if edited := disabled.ReplaceAll(have.file, []byte("${1}0${2}")); have.file != nil {
		changes = append(changes, file(sysctlFile, have.file, edited, 0o644)...)
	}
	for _, w := range ipv6Wanted {
		// 2 means "accept router advertisements even when forwarding", which includes 1.
		value, there := have.sysctl[w.path]
		if there && value != w.value && !(w.value == "1" && value == "2") {
			changes = append(changes, Change{Op: OpSetSysctl, Path: w.path, Content: []byte(w.value)})
		}
	}
	return changes, nil
}
