package sockowner

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestHolder: the process that has the port is found, whether it listens or not, and so is the end of its socket.
func TestHolder(t *testing.T) {
	for name, listens := range map[string]bool{"listening": true, "only bound": false} {
		t.Run(name, func(t *testing.T) {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			socket := os.NewFile(uintptr(fd), "socket")
			defer socket.Close()
			if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
				t.Fatal(err)
			}
			if listens {
				if err := unix.Listen(fd, 1); err != nil {
					t.Fatal(err)
				}
			}
			bound, err := unix.Getsockname(fd)
			if err != nil {
				t.Fatal(err)
			}
			at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(bound.(*unix.SockaddrInet4).Port))
			holder, err := (Table{}).Holder(at, uint32(os.Getuid())+1)
			switch {
			case !listens && errors.Is(err, ErrUnknown): // before Linux 6.8
			case err != nil || holder.PID != os.Getpid() || holder.UID != uint32(os.Getuid()):
				t.Errorf("got %+v, %v; want this process", holder, err)
			}
			if free, err := IsFree(at); free || err != nil {
				t.Errorf("taken: free is %t, %v", free, err)
			}
			closed, err := WatchClosed(at.Port())
			if err != nil {
				t.Fatal(err)
			}
			defer closed.Close()
			other, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			_ = other.Close() // is not told
			short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := closed.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("nothing was closed: got %v", err)
			}
			if err := socket.Close(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := closed.Wait(ctx); err != nil {
				t.Error(err)
			}
			if free, err := IsFree(at); !free || err != nil {
				t.Errorf("closed: free is %t, %v", free, err)
			}
		})
	}
}
