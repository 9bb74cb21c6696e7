//go:build ns

package fabric

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cambium/lab/netns"

	"golang.org/x/sys/unix"
)

// TestNSPortsPassTheirOwnAddressesOnly: a VM sends under the addresses of another, and tells the gateway that they are
// its own. The gateway hears what the VM sends under its own addresses, and nothing of the rest.
func TestNSPortsPassTheirOwnAddressesOnly(t *testing.T) {
	s := newSegments(t, "g")
	card := func(host int, properties string) string {
		return fmt.Sprintf(`{"a":{"type":"manual","ip":"10.88.57.%[1]d","netmask":"255.255.255.0",`+
			`"gateway":"10.88.57.1","nic_group":1,"cloud_properties":{%[2]s}},`+
			`"b":{"type":"manual","ip":"fd88:57::%[1]d",`+
			`"netmask":"ffff:ffff:ffff:ffff::","gateway":"fd88:57::1","nic_group":1}}`, host, properties)
	}
	victim, own := s.connect("victim", card(5, ""), false)
	attacker, foreign := s.connect("attacker", card(6, `"allowed_addresses":["10.88.57.100"]`), false)
	heard := s.hear()
	for _, source := range []string{"10.88.57.5", "fd88:57::5"} {
		say(t, victim, source, "victim")
		if got := <-heard; got != source+" victim" {
			t.Fatalf("the gateway hears %q", got)
		}
	}
	for _, address := range []string{"10.88.57.5/32", "10.88.57.100/32", "fd88:57::5/128"} {
		if err := attacker.AddAddress("eth0", address); err != nil {
			t.Fatal(err)
		}
	}
	for _, source := range []string{"10.88.57.6", "fd88:57::6", "10.88.57.100"} { // also: their gateway is resolved now
		say(t, attacker, source, "own")
		if got := <-heard; got != source+" own" {
			t.Fatalf("the gateway hears %q, want what %s said", got, source)
		}
	}
	say(t, attacker, "10.88.57.5", "attacker")
	say(t, attacker, "fd88:57::5", "attacker")
	for _, frame := range [][]byte{
		arpReply(own.MAC, foreign.MAC, "10.88.57.5"),
		arpReply(foreign.MAC, foreign.MAC, "10.88.57.5"),
		neighborAdvert(foreign.MAC, "fd88:57::5", "fd88:57::5"),
		neighborAdvert(foreign.MAC, linkLocal(foreign.MAC).String(), "fd88:57::5"),
	} {
		raw(t, attacker, frame)
	}
	say(t, attacker, "10.88.57.6", "last") // after all others
	if got := <-heard; got != "10.88.57.6 last" {
		t.Errorf("the gateway hears %q", got)
	}
	for _, address := range []string{"10.88.57.5", "fd88:57::5"} {
		if mac := s.Net.Neighbor(address); mac.String() != own.MAC.String() {
			t.Errorf("the gateway has %s at %s, want it at %s", address, mac, own.MAC)
		}
	}
	say(t, victim, "10.88.57.5", "still there")
	if got := <-heard; got != "10.88.57.5 still there" {
		t.Errorf("the gateway hears %q", got)
	}
}

// TestNSPortsPassTheirDelegatedPrefix: a VM uses any address of the prefix that it was given, and none beside it.
func TestNSPortsPassTheirDelegatedPrefix(t *testing.T) {
	s := newSegments(t, "p")
	card := `{"a":{"type":"manual","ip":"10.88.57.5","prefix":"32","netmask":"255.255.255.0","gateway":"10.88.57.1","nic_group":1},` +
		`"b":{"type":"manual","ip":"fd88:57::8:0:0:0","prefix":"80","netmask":"ffff:ffff:ffff:ffff::","gateway":"fd88:57::1","nic_group":1}}`
	vm, _ := s.connect("vm", card, false)
	heard := s.hear()
	for _, address := range []string{"fd88:57::8:0:0:20/128", "fd88:57::9:0:0:20/128"} {
		if err := vm.AddAddress("eth0", address); err != nil {
			t.Fatal(err)
		}
	}
	say(t, vm, "fd88:57::8:0:0:20", "inside") // also: the gateway answers, which takes a solicitation
	if got := <-heard; got != "fd88:57::8:0:0:20 inside" {
		t.Fatalf("the gateway hears %q", got)
	}
	if mac := s.Net.Neighbor("fd88:57::8:0:0:20"); mac == nil {
		t.Error("the gateway does not know where an address of the prefix is")
	}
	say(t, vm, "fd88:57::9:0:0:20", "beside")
	say(t, vm, "10.88.57.5", "last")
	if got := <-heard; got != "10.88.57.5 last" {
		t.Errorf("the gateway hears %q", got)
	}
}

const guardPort = 9999

// hear has the gateway listen. A new hardware address of a neighbor counts at once.
func (s segments) hear() <-chan string {
	s.t.Helper()
	var conn net.PacketConn
	err := s.Net.Do(func() (err error) {
		locktimes, _ := filepath.Glob("/proc/sys/net/ipv4/neigh/br-*/locktime")
		for _, path := range locktimes {
			if err := os.WriteFile(path, []byte("0"), 0o644); err != nil {
				return err
			}
		}
		conn, err = net.ListenPacket("udp", fmt.Sprintf(":%d", guardPort))
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(4 * time.Minute))
	heard := make(chan string)
	go func() {
		defer close(heard)
		buffer := make([]byte, 100)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			source := from.(*net.UDPAddr).AddrPort().Addr().Unmap()
			heard <- source.String() + " " + string(buffer[:n])
		}
	}()
	return heard
}

// say sends words to the gateway under an address that the VM has configured.
func say(t *testing.T, space netns.Namespace, source, words string) {
	t.Helper()
	gateway := net.ParseIP("10.88.57.1")
	if net.ParseIP(source).To4() == nil {
		gateway = net.ParseIP("fd88:57::1")
	}
	err := space.Do(func() error {
		local, remote := net.UDPAddr{IP: net.ParseIP(source)}, net.UDPAddr{IP: gateway, Port: guardPort}
		conn, err := net.DialUDP("udp", &local, &remote)
		if err != nil {
			return err
		}
		_, err = conn.Write([]byte(words))
		_ = conn.Close()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// raw sends a frame from the card of a VM.
func raw(t *testing.T, space netns.Namespace, frame []byte) {
	t.Helper()
	err := space.Do(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Index, Halen: 6})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// arpReply is a frame to all that says where an IPv4 address is.
func arpReply(from, sender net.HardwareAddr, ip string) []byte {
	at := netip.MustParseAddr(ip).As4()
	frame := append(append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, from...), 0x08, 0x06,
		0, 1, 0x08, 0, 6, 4, 0, 2) // Ethernet, IPv4, a reply
	for range 2 { // of the sender, and to itself
		frame = append(append(frame, sender...), at[:]...)
	}
	return frame
}

// neighborAdvert is a frame to all nodes that says where an IPv6 address is, and to forget other places.
func neighborAdvert(from net.HardwareAddr, source, target string) []byte {
	sender, of := netip.MustParseAddr(source).As16(), netip.MustParseAddr(target).As16()
	nodes := netip.MustParseAddr("ff02::1").As16()
	message := append([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, of[:]...)
	message = append(append(message, 2, 1), from...)
	pseudo := append(append(append([]byte{}, sender[:]...), nodes[:]...), 0, 0, 0, byte(len(message)), 0, 0, 0, 58)
	sum := uint32(0)
	for _, part := range [][]byte{pseudo, message} {
		for n := 0; n < len(part); n += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[n:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum))
	frame := append(append([]byte{0x33, 0x33, 0, 0, 0, 1}, from...), 0x86, 0xdd,
		0x60, 0, 0, 0, 0, byte(len(message)), 58, 255)
	return append(append(append(frame, sender[:]...), nodes[:]...), message...)
}
