package monit

import (
	"context"
	"syscall"

	"golang.org/x/sys/unix"
)

// Unit controls the monit daemon through the service manager: systemd or runit.
type Unit struct {
	Services interface {
		Kill(ctx context.Context, name string, signal syscall.Signal) error
		Start(ctx context.Context, name string) error
	}
	Name string // "monit"
}

// Kill kills the main process only. On SIGTERM monit would first finish what it is waiting for, which can take as long
// as a start program.
func (u Unit) Kill(ctx context.Context) error { return u.Services.Kill(ctx, u.Name, unix.SIGKILL) }

// Start makes sure that the daemon is running.
func (u Unit) Start(ctx context.Context) error { return u.Services.Start(ctx, u.Name) }
