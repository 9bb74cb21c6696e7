package netns

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Tap creates a link on the bridge. Frames that are written to the returned file are received by the bridge. The link
// is removed when the last descriptor of the file is closed.
func (n Namespace) Tap(bridge, name string) (file *os.File, err error) {
	err = n.Do(func() error {
		master, err := netlink.LinkByName(bridge)
		if err != nil {
			return fmt.Errorf("bridge %s: %w", bridge, err)
		}
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun: %w", err)
		}
		request, err := unix.NewIfreq(name)
		if err != nil {
			return errors.Join(fmt.Errorf("link name %q: %w", name, err), unix.Close(fd))
		}
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			return errors.Join(fmt.Errorf("link %s: %w", name, err), unix.Close(fd))
		}
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetMaster(link, master)
		}
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("link %s: %w", name, err), unix.Close(fd))
		}
		file = os.NewFile(uintptr(fd), name)
		return nil
	})
	return file, err
}
