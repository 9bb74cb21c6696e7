package monit

import (
	"context"
	"syscall"

	"golang.org/x/sys/unix"
)

// Unit is the monit daemon as a service of the machine's service manager: systemd or runit.
type Unit struct {
	Services interface {
		Kill(ctx context.Context, name string, signal syscall.Signal) error
		Start(ctx context.Context, name string) error
	}
	Name string // "monit"
}

// Kill ends the main process only. monit handles SIGTERM only after what it is waiting for, which
// can be a start program's timeout.
func (u Unit) Kill(ctx context.Context) error { return u.Services.Kill(ctx, u.Name, unix.SIGKILL) }

// Start makes sure that the daemon runs.
func (u Unit) Start(ctx context.Context) error { return u.Services.Start(ctx, u.Name) }
