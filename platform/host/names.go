package host

import (
	"bytes"
	"fmt"
)

const (
	hostnamePath = "/etc/hostname"
	hostsPath    = "/etc/hosts"
)

// HostsFile returns the hosts file of a machine with that name and a line for each record {address, name}. The
// machine's name precedes localhost, so that it is the canonical name of 127.0.0.1.
//
// Records that do not fit on a line (empty, or with white space or a comment sign) are skipped and counted: one invalid
// name must not discard the others.
func HostsFile(name string, records [][2]string) (content []byte, skipped int, err error) {
	if err := checkName(name); err != nil {
		return nil, 0, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "127.0.0.1 %s localhost\n\n", name)
	b.WriteString("# IPv6\n")
	fmt.Fprintf(&b, "::1 %s localhost ip6-localhost ip6-loopback\n", name)
	b.WriteString(
		"fe00::0 ip6-localnet\nff00::0 ip6-mcastprefix\nff02::1 ip6-allnodes\nff02::2 ip6-allrouters\nff02::3 ip6-allhosts\n",
	)
	for _, r := range records {
		if r[0] == "" || r[1] == "" || hasSeparator(r[0]) || hasSeparator(r[1]) {
			skipped++
			continue
		}
		fmt.Fprintf(&b, "%s %s\n", r[0], r[1])
	}
	return b.Bytes(), skipped, nil
}

// checkName accepts names that the kernel accepts and that a file can contain. Agent ids are not always valid DNS
// names.
func checkName(name string) error {
	const limit = 64 // HOST_NAME_MAX
	if name == "" || len(name) > limit {
		return fmt.Errorf("host name is %d bytes long, want 1 to %d", len(name), limit)
	}
	for _, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && r != '-' && r != '.' && r != '_' {
			return fmt.Errorf("host name %q contains %q", name, r)
		}
	}
	return nil
}
