package monit

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/sirupsen/logrus"

	"cambium/internal/retry"
	"cambium/internal/sockowner"
)

// Port restores monit's port. Any user can take it while monit is down. monit then runs without its interface and does
// not try again.
type Port struct {
	*Client
	Log *logrus.Entry
	// Held is called with an error that names the process that has the port, and with nil when the port is restored.
	// Alert is called only with the first error.
	Held, Alert func(error)
}

// Run waits until a request finds that the port is taken, then until it is free, and restarts monit. It ends with ctx.
// It signals no process except monit.
func (p Port) Run(ctx context.Context) error {
	at, err := url.Parse(p.URL)
	if err != nil {
		return fmt.Errorf("monit's address: %w", err)
	}
	address, err := netip.ParseAddrPort(at.Host)
	if err != nil {
		return fmt.Errorf("monit's address: %w", err)
	}
	for {
		select {
		case <-p.Taken:
			if err := p.regain(ctx, address); err != nil && ctx.Err() == nil {
				p.Log.WithError(err).Warn("monit does not answer; another process had taken its port")
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// regain waits until no other process has the port, and then restarts monit unless it answers.
func (p Port) regain(ctx context.Context, address netip.AddrPort) error {
	closed, err := sockowner.WatchClosed(address.Port())
	wait := func() error { return retry.Sleep(ctx, portPause) } // a kernel without such events
	if err == nil {
		defer closed.Close()
		wait = func() error { return closed.Wait(ctx) }
	}
	for first := true; ; first = false {
		held := p.holder(address)
		if held == nil {
			// If a process takes the port again while monit starts, the wait begins anew; the time limit of a start
			// bounds how often monit is restarted.
			err := p.takeBack(ctx)
			if held = p.holder(address); held == nil || err == nil {
				p.Held(nil)
				return err
			}
		}
		p.Held(held)
		if first {
			p.Alert(held)
		}
		if err := wait(); err != nil {
			return err
		}
	}
}

// takeBack restarts monit if it does not answer, because it has started without its port.
func (p Port) takeBack(ctx context.Context) error {
	if _, err := p.Status(ctx); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, reloadWait, fmt.Errorf("no answer within %v", reloadWait))
	defer cancel()
	if err := p.Daemon.Kill(ctx, UnitName); err != nil {
		return nil // it does not run, and takes the port when it is started
	}
	p.Log.Info("monit's port is free again; restarting monit")
	return p.start(ctx, 0, nil)
}

// holder returns an error that names the process that has monit's port, or nil if no other process has it.
func (c *Client) holder(address netip.AddrPort) error {
	uid, err := c.Sockets.Listener(address)
	if err == nil && uid == c.Owner {
		return nil
	}
	if errors.Is(err, sockowner.ErrUnknown) {
		// No listener: a socket that is only bound, or was accepted, may keep monit away.
		if free, err := sockowner.IsFree(address); free || err != nil {
			return nil
		}
	}
	text := "a process that the kernel does not list"
	if h, err := c.Sockets.Holder(address, c.Owner); err == nil {
		text = h.String()
	}
	return fmt.Errorf("%s has monit's port %s: end it, and monit is restarted", text, address)
}

// nobody is the uid of no socket.
const nobody = ^uint32(0)

// DescribePortHolder describes the process that has the port of a monit that does not answer, or "" if it is unknown,
// monit, or the agent's own supervisor. It also finds a process of root, which a request cannot distinguish from monit.
func (c *Client) DescribePortHolder() string {
	at, err := url.Parse(c.URL)
	if err != nil {
		return ""
	}
	address, err := netip.ParseAddrPort(at.Host)
	if err != nil {
		return ""
	}
	h, err := c.Sockets.Holder(address, nobody)
	if err != nil || h.PID == 0 || strings.HasPrefix(h.Command, "monit") || h.Command == "bosh-agent" {
		return ""
	}
	return fmt.Sprintf("%s has its port %s", h, address)
}

// named returns an error that names the process with monit's port, and notifies Port. If no other process has the port,
// it returns err.
func (c *Client) named(address netip.AddrPort, err error) error {
	held := c.holder(address)
	if held == nil {
		return err
	}
	select {
	case c.Taken <- struct{}{}:
	default:
	}
	return held
}
