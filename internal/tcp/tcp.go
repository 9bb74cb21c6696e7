// Package tcp opens the TCP ports of agent, supervisor and lab. It disables multipath TCP, which Go's listeners accept
// by default, so that a connection is one socket with one owner.
package tcp

import (
	"context"
	"net"
)

// Listen listens on an address of this machine.
func Listen(ctx context.Context, address string) (*net.TCPListener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return listener.(*net.TCPListener), nil
}
