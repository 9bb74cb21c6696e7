// Package hwaddr parses hardware addresses of network interfaces.
package hwaddr

import (
	"encoding/hex"
	"fmt"
	"net"
	"strings"
)

// Parse returns an Ethernet or InfiniBand address as the kernel writes it: lower case, with colons. It accepts all
// common spellings: colons, dashes, dots or no separators, upper or lower case, and groups without leading zeros.
func Parse(text string) (string, error) {
	var address net.HardwareAddr
	separator := func(r rune) bool { return strings.ContainsRune(":-.", r) }
	for group := range strings.FieldsFuncSeq(strings.TrimSpace(text), separator) {
		if len(group) == 1 {
			group = "0" + group
		}
		octets, err := hex.DecodeString(group)
		if err != nil {
			return "", fmt.Errorf("%q is not a hardware address", text)
		}
		address = append(address, octets...)
	}
	if len(address) != 6 && len(address) != 20 {
		return "", fmt.Errorf("%q is not a hardware address", text)
	}
	return address.String(), nil
}
