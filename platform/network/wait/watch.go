package wait

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"cambium/internal/rawsocket"
	"cambium/internal/retry"
	"cambium/platform/network"
)

// watcher receives rtnetlink events about links, addresses and routes. Their content is not used: after each event, the
// caller observes the state again, so that nothing is missed.
type watcher struct{ conn *rawsocket.Conn }

func watch() (*watcher, error) {
	groups := unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR |
		unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE
	conn, err := rawsocket.Open(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE,
		&unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: uint32(groups)}, nil)
	if err != nil {
		return nil, fmt.Errorf("watch the network: %w", err)
	}
	return &watcher{conn}, nil
}

func (w *watcher) close() { w.conn.Close() }

// next waits for an event. It returns the context's cause if ctx ends.
func (w *watcher) next(ctx context.Context) error {
	var buffer [1]byte
	// The rest of a datagram is dropped. An overflow (ENOBUFS) means that there were events.
	_, _, err := w.conn.Receive(ctx, buffer[:])
	if errors.Is(err, unix.ENOBUFS) {
		return nil
	}
	return err
}

// Until observes the links now and after each event, until missing returns nil or a retry.Final error. If ctx ends
// first, it returns the last error.
func Until(ctx context.Context, k *network.Kernel, missing func(network.State) error) error {
	w, err := watch()
	if err != nil {
		return err
	}
	defer w.close()
	for {
		have, err := k.ObserveLinks()
		if err != nil {
			return err
		}
		if err = missing(have); err == nil {
			return nil
		}
		if cause, final := retry.IsFinal(err); final {
			return cause
		}
		if ended := w.next(ctx); ended != nil {
			return fmt.Errorf("%w (%w)", err, ended)
		}
	}
}

// Watch calls changed once it is listening, and whenever links, addresses or routes have changed, until ctx ends.
func Watch(ctx context.Context, changed func()) error {
	w, err := watch()
	if err != nil {
		return err
	}
	defer w.close()
	for {
		changed()
		if err := w.next(ctx); err != nil {
			return err
		}
	}
}
