//go:build linux

package main

import (
	"context"
	"fmt"

	"cambium/lab"
)

func (s *show) migrate(ctx context.Context) (string, error) {
	before, err := s.output(ctx, "cat", "/var/vcap/store/web/started")
	if err != nil {
		return "", err
	}
	old, bigger := s.d.Disk, "disk-2"
	if err := s.sequence(ctx, []any{"drain", "shutdown", map[string]any{}}, []any{"stop"}); err != nil {
		return "", err
	}
	if err := s.i.NewDisk(bigger, 2*lab.GiB); err != nil {
		return "", err
	}
	hint, err := s.i.AttachDisk(ctx, bigger)
	if err != nil {
		return "", err
	}
	err = s.sequence(ctx, []any{"add_persistent_disk", bigger, hint}, []any{"mount_disk", bigger},
		[]any{"migrate_disk", old, bigger},
		[]any{"unmount_disk", old}, []any{"remove_persistent_disk", old})
	if err != nil {
		return "", err
	}
	if err := s.i.DetachDisk(ctx, old); err != nil {
		return "", err
	}
	s.d.Disk = bigger
	if after, err := s.output(ctx, "cat", "/var/vcap/store/web/started"); err != nil || after != before {
		return "", fmt.Errorf("the new disk has %q, want %q (%w)", after, before, err)
	}
	return s.size(ctx)
}

// size returns the size of the file system on the persistent disk.
func (s *show) size(ctx context.Context) (string, error) {
	return s.output(ctx, "findmnt", "-n", "-o", "SOURCE,SIZE", "/var/vcap/store")
}

func (s *show) grow(ctx context.Context) (string, error) {
	before, err := s.size(ctx)
	if err != nil {
		return "", err
	}
	if err := s.sequence(ctx, []any{"unmount_disk", s.d.Disk}); err != nil {
		return "", err
	}
	if err := s.i.Resize(ctx, s.d.Disk, 4*lab.GiB); err != nil {
		return "", err
	}
	if err := s.sequence(ctx, []any{"mount_disk", s.d.Disk}); err != nil {
		return "", err
	}
	after, err := s.size(ctx)
	if err == nil && after == before {
		err = fmt.Errorf("the file system still has %s", after)
	}
	if err != nil {
		return "", err
	}
	if _, err := s.i.Agent.Do(ctx, "start"); err != nil {
		return "", err
	}
	if err := s.web(ctx); err != nil {
		return "", err
	}
	s.pid, err = s.output(ctx, "cat", "/var/vcap/sys/run/web/web.pid")
	return after, err
}
