package sockowner

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/skiptest"
)

func TestOwnSockets(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		t.Run(address, func(t *testing.T) {
			listener, err := net.Listen("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close() }()
			at := listener.Addr().(*net.TCPAddr).AddrPort()
			if address == "[::]:0" {
				at = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), at.Port())
			}
			for _, table := range []Table{{}, {Dir: "/proc/net"}} {
				if uid, err := table.Listener(at); err != nil || uid != uint32(os.Getuid()) {
					t.Errorf("%+v: listener: got %d, %v; want %d", table, uid, err, os.Getuid())
				}
			}
			client, err := net.Dial("tcp", at.String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close() }()
			server, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = server.Close() }()
			for _, table := range []Table{{}, {Dir: "/proc/net"}} {
				for name, end := range map[string]func(net.Conn) (uint32, error){"peer": table.Peer, "other end": table.OtherEnd} {
					if uid, err := end(server); err != nil || uid != uint32(os.Getuid()) {
						t.Errorf("%+v: %s: got %d, %v; want %d", table, name, uid, err, os.Getuid())
					}
				}
			}
			// It has closed its sending half, and still receives.
			if err := client.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			for _, table := range []Table{{}, {Dir: "/proc/net"}} {
				if uid, err := table.Peer(server); !errors.Is(err, ErrUnknown) {
					t.Errorf("%+v: half-closed peer: got %d, %v; want none", table, uid, err)
				}
				if uid, err := table.OtherEnd(server); err != nil || uid != uint32(os.Getuid()) {
					t.Errorf("%+v: half-closed other end: got %d, %v; want %d", table, uid, err, os.Getuid())
				}
			}
			if err := client.Close(); err != nil {
				t.Fatal(err)
			}
			if uid, err := (Table{}).Peer(server); !errors.Is(err, ErrUnknown) {
				t.Errorf("closed peer: got %d, %v; want none", uid, err)
			}
		})
	}
	if uid, err := (Table{}).Listener(netip.MustParseAddrPort("127.0.0.1:1")); !errors.Is(err, ErrUnknown) {
		t.Errorf("no listener: got %d, %v", uid, err)
	}
}

// TestPeerAmongManySockets: a job can open thousands of sockets, and those that accept connections must not pay for them.
func TestPeerAmongManySockets(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for range 1000 {
		client, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		server, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, client, server)
	}
	peer, own, err := addresses(conns[len(conns)-1])
	if err != nil {
		t.Fatal(err)
	}
	uid, err := diagPeer(peer, own)
	if errors.Is(err, errNoDiag) {
		skiptest.Skip(t, "this kernel has no sock_diag: the table is read instead")
	}
	if err != nil || uid != uint32(os.Getuid()) {
		t.Errorf("got %d, %v; want %d", uid, err, os.Getuid())
	}
	// The shortest of 20: the others may have waited for a processor.
	ask := func(f func() error) time.Duration {
		shortest := time.Duration(math.MaxInt64)
		for range 20 {
			begun := time.Now()
			if err := f(); err != nil {
				t.Fatal(err)
			}
			shortest = min(shortest, time.Since(begun))
		}
		return shortest
	}
	one := ask(func() error { _, err := diagPeer(peer, own); return err })
	table := ask(func() error { _, err := (Table{Dir: "/proc/net"}).Peer(conns[len(conns)-1]); return err })
	t.Logf("among %d sockets: %s for one, %s for the table", len(conns), one, table)
	if one > table {
		t.Errorf("asking for one socket takes %s, reading the table %s", one, table)
	}
}

// TestTimeWait: the kernel lists a socket in TIME_WAIT with uid 0, whatever its owner was.
func TestTimeWait(t *testing.T) {
	dir := t.TempDir()
	table := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   0: 0100007F:9C40 0100007F:0B09 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0\n"
	if err := os.WriteFile(filepath.Join(dir, "tcp"), []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	conn := fakeConn{local: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2825},
		remote: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 40000}}
	if uid, err := (Table{Dir: dir}).Peer(conn); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %d, %v; want none", uid, err)
	}
	// Established, but nobody's: what is left of a connection of multipath TCP.
	for inode, want := range map[string]error{"0": ErrUnknown, "4711": nil} {
		line := strings.Replace(strings.Replace(table, " 06 ", " 01 ", 1), " 0 0 3 0\n", " 0 "+inode+" 3 0\n", 1)
		if err := os.WriteFile(filepath.Join(dir, "tcp"), []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		for name, end := range map[string]func(net.Conn) (uint32, error){"peer": Table{dir}.Peer,
			"other end": Table{dir}.OtherEnd} {
			if uid, err := end(conn); !errors.Is(err, want) || uid != 0 {
				t.Errorf("inode %s: %s: got %d, %v; want 0, %v", inode, name, uid, err, want)
			}
		}
	}
}

type fakeConn struct {
	net.Conn
	local, remote net.Addr
}

func (c fakeConn) LocalAddr() net.Addr  { return c.local }
func (c fakeConn) RemoteAddr() net.Addr { return c.remote }

func FuzzTable(f *testing.F) {
	f.Add("heading\n   0: 0100007F:9C40 0100007F:0B09 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0\n")
	f.Add("heading\n 1: 00000000000000000000000001000000:0B09 00000000000000000000000000000000:0000 0A x x x 1000")
	f.Fuzz(func(t *testing.T, table string) {
		_, _, _ = search(strings.NewReader(table), func(s socket) bool { return s.local.Port() == s.remote.Port() })
	})
}

// TestSocketsOfAnotherUser makes sockets as a user other than root, whose number is zero like much that is wrong.
func TestSocketsOfAnotherUser(t *testing.T) {
	skiptest.WithoutRoot(t, "to make sockets as another user")
	const other = 4711
	// socket makes one that belongs to other: its owner is the file system user of the thread.
	socket := func() (fd int) {
		t.Helper()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if _, err := unix.SetfsuidRetUid(other); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if _, back := unix.SetfsuidRetUid(0); err != nil || back != nil {
			t.Fatal(err, back)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	port := func(fd int) int {
		name, err := unix.Getsockname(fd)
		if err != nil {
			t.Fatal(err)
		}
		return name.(*unix.SockaddrInet4).Port
	}
	listening := socket()
	if err := unix.Listen(listening, 5); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	client := socket()
	if err := unix.Connect(client, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1},
		Port: listener.Addr().(*net.TCPAddr).Port}); err != nil {
		t.Fatal(err)
	}
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	peer, own, err := addresses(server)
	if err != nil {
		t.Fatal(err)
	}
	if uid, err := diagPeer(peer, own); !errors.Is(err, errNoDiag) && (err != nil || uid != other) {
		t.Errorf("sock_diag: got %d, %v; want %d", uid, err, other)
	}
	for _, table := range []Table{{}, {Dir: "/proc/net"}} {
		if uid, err := table.Peer(server); err != nil || uid != other {
			t.Errorf("%+v: peer: got %d, %v; want %d", table, uid, err, other)
		}
		if uid, err := table.OtherEnd(server); err != nil || uid != other {
			t.Errorf("%+v: other end: got %d, %v; want %d", table, uid, err, other)
		}
		if uid, err := table.Listener(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"),
			uint16(port(listening)))); err != nil || uid != other {
			t.Errorf("%+v: listener: got %d, %v; want %d", table, uid, err, other)
		}
	}
}
