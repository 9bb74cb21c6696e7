package storage

import (
	"context"

	"cambium/platform/copytree"
	"cambium/platform/copytree/apart"
)

// trees copies the store and proves it. Close returns when nothing is written any more.
type trees interface {
	Copy(ctx context.Context, from, to string, o copytree.Options) error
	Verify(ctx context.Context, from, to string, o copytree.Options) error
	Close() error
}

// here does it in this process.
type here struct{ sums copytree.Sums }

func (h *here) Copy(ctx context.Context, from, to string, o copytree.Options) error {
	o.Sums = &h.sums
	return copytree.Copy(ctx, from, to, o)
}

func (h *here) Verify(ctx context.Context, from, to string, o copytree.Options) error {
	o.Sums = &h.sums
	return copytree.Verify(ctx, from, to, o)
}

func (h *here) Close() error { return nil }

// trees does it in a process of its own where it can.
func (d *Migration) trees(ctx context.Context) trees {
	if d.Program != "" {
		other, err := apart.Start(ctx, d.Program)
		if err == nil {
			return other
		}
		d.Log.WithError(err).Warn("disks are copied by the agent's own process, which may answer later meanwhile")
	}
	return &here{}
}
