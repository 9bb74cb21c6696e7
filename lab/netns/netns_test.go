package netns

import (
	"context"
	"errors"
	"net"
	"testing"
)

// Programs outside of this project hand these to libraries instead of the functions of package net.
var (
	_ func(network, address string) (net.Listener, error)                        = Namespace{}.Listen
	_ func(network, address string) (net.Conn, error)                            = Namespace{}.Dial
	_ func(ctx context.Context, network, address string) (c net.Conn, err error) = Namespace{}.DialContext
)

func TestListenKnowsTCPAlone(t *testing.T) {
	var unknown net.UnknownNetworkError
	if l, err := (Namespace{}).Listen("udp", "127.0.0.1:0"); !errors.As(err, &unknown) || l != nil {
		t.Errorf("a listener for udp: %v, %v; want an error that names the network", l, err)
	}
}
