package tcp

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestPlainTCP: the kernel has the socket as one of TCP, whatever a client asks for.
func TestPlainTCP(t *testing.T) {
	listener, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	raw, err := listener.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var protocol int
	var failed error
	if err := raw.Control(func(fd uintptr) {
		protocol, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PROTOCOL)
	}); err != nil || failed != nil || protocol != unix.IPPROTO_TCP {
		t.Errorf("the protocol is %d (%v, %v), want %d", protocol, err, failed, unix.IPPROTO_TCP)
	}
}
