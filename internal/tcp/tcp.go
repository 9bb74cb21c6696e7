// Package tcp opens the TCP ports of agent, supervisor and lab. They do not accept multipath TCP, as Go's listeners
// do by default: a connection is one socket then, with one owner.
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
