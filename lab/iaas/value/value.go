// Package value has the types of validated arguments of calls. A value of a type is safe for every use: as a file name,
// as an argument of a program, or in a line on a terminal. In JSON all of them are strings; the empty string is the
// zero value.
package value

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName bounds the length of names in bytes.
const maxName = 255

// Name is an identifier chosen by a caller, for an agent, a network or a Director. It is a line of printable characters
// without a slash.
type Name struct{ text string }

// ParseName parses a name.
func ParseName(text string) (Name, error) {
	printable := func(r rune) bool { return unicode.IsPrint(r) && r != '/' && r != utf8.RuneError }
	switch {
	case len(text) > maxName:
		return Name{}, fmt.Errorf("%.20q… is too long for a name: want at most %d bytes", text, maxName)
	case text == "." || text == ".." || strings.ContainsFunc(text, func(r rune) bool { return !printable(r) }):
		return Name{}, fmt.Errorf("%q is not a name: want printable characters without a slash", text)
	}
	return Name{text}, nil
}

// MustName parses a constant name.
func MustName(text string) Name {
	n, err := ParseName(text)
	if err != nil {
		panic(err)
	}
	return n
}

func (n Name) String() string { return n.text }

// MarshalText returns the name.
func (n Name) MarshalText() ([]byte, error) { return []byte(n.text), nil }

// UnmarshalText parses a name.
func (n *Name) UnmarshalText(text []byte) (err error) {
	*n, err = ParseName(string(text))
	return err
}

// Addr is an IP address without a zone.
type Addr struct{ ip netip.Addr }

// AddrOf returns the address without its zone.
func AddrOf(ip netip.Addr) Addr { return Addr{ip.WithZone("")} }

// MustAddr parses a constant address.
func MustAddr(text string) Addr { return AddrOf(netip.MustParseAddr(text)) }

// IP returns the address; it is invalid if there is none.
func (a Addr) IP() netip.Addr { return a.ip }

func (a Addr) String() string {
	if !a.ip.IsValid() {
		return ""
	}
	return a.ip.String()
}

// MarshalText returns the address in its usual form.
func (a Addr) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText parses an address. It rejects IPv4 addresses in IPv6 notation, so that each address has one form.
func (a *Addr) UnmarshalText(text []byte) error {
	*a = Addr{}
	if len(text) == 0 {
		return nil
	}
	ip, err := netip.ParseAddr(string(text))
	if err != nil || ip.Zone() != "" || ip.Is4In6() {
		return fmt.Errorf("%.50q is not an IP address without a zone", text)
	}
	a.ip = ip
	return nil
}

// Bits is the length of a prefix. In JSON it is a string, as agents expect.
type Bits struct{ text string }

// UnmarshalText parses a length.
func (b *Bits) UnmarshalText(text []byte) error {
	*b = Bits{string(text)}
	if n, err := strconv.ParseUint(b.text, 10, 8); b.text != "" && (err != nil || n > 128) {
		return fmt.Errorf("%.50q is not the length of a prefix", text)
	}
	return nil
}

// Of returns the prefix of this length with the address, or the address alone if there is no length.
func (b Bits) Of(a Addr) (netip.Prefix, error) {
	bits := a.ip.BitLen()
	if b.text != "" {
		bits, _ = strconv.Atoi(b.text) // as parsed
	}
	p, err := a.ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("prefix %s of address %s: %w", b.text, a, err)
	}
	return p, nil
}

// MarshalText returns the length in decimal.
func (b Bits) MarshalText() ([]byte, error) { return []byte(b.text), nil }

// MAC is the hardware address of a network card. It is not a group address.
type MAC struct{ bytes [6]byte }

// MACOf converts an address of six bytes.
func MACOf(address net.HardwareAddr) MAC { return MAC{[6]byte(address)} }

// IsZero reports whether there is no address.
func (m MAC) IsZero() bool { return m == MAC{} }

// Hardware converts the address for package net.
func (m MAC) Hardware() net.HardwareAddr { return m.bytes[:] }

func (m MAC) String() string {
	if m.IsZero() {
		return ""
	}
	return m.Hardware().String()
}

// MarshalText returns the address in lower case.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText parses an address.
func (m *MAC) UnmarshalText(text []byte) error {
	*m = MAC{}
	if len(text) == 0 {
		return nil
	}
	address, err := net.ParseMAC(string(text))
	if err != nil || len(address) != len(m.bytes) || address[0]&1 != 0 {
		return fmt.Errorf("mac %.50q is not an address of a network card", text)
	}
	*m = MACOf(address)
	return nil
}

// Group is a group of network cards, for which callers send a number or a name.
type Group struct{ json string }

var number = regexp.MustCompile(`^[0-9]{1,9}$`)

// MarshalJSON returns the group in its original form.
func (g Group) MarshalJSON() ([]byte, error) {
	if g.json == "" {
		return []byte("null"), nil
	}
	return []byte(g.json), nil
}

// UnmarshalJSON parses a group.
func (g *Group) UnmarshalJSON(data []byte) error {
	*g = Group{}
	var name *Name
	if number.Match(data) {
		g.json = string(data)
		return nil
	}
	if err := json.Unmarshal(data, &name); err != nil || name == nil {
		return err
	}
	quoted, err := json.Marshal(name)
	g.json = string(quoted)
	return err
}

// Bounds of metadata: the number of entries, and the length of a value in bytes.
const (
	maxMetadata      = 1000
	maxMetadataValue = 4096
)

// Metadata has a caller's notes about an object. Each is a line of printable text, because people read it on a
// terminal.
type Metadata map[string]string

// UnmarshalJSON converts values that are not strings to JSON. It replaces characters that a terminal would not print.
func (m *Metadata) UnmarshalJSON(data []byte) error {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(data, &given); err != nil {
		return err
	}
	if len(given) > maxMetadata {
		return fmt.Errorf("%d metadata entries, want at most %d", len(given), maxMetadata)
	}
	*m = Metadata{}
	for key, value := range given {
		var text string
		if json.Unmarshal(value, &text) != nil {
			text = string(value)
		}
		if len(key) > maxName || len(text) > maxMetadataValue {
			return errors.New("a metadata key or value is too long")
		}
		(*m)[printable(key)] = printable(text)
	}
	return nil
}

func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, text)
}
