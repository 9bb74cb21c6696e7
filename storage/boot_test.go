//go:build root || vm

package storage

import (
	"context"
	"errors"
)

// boot is MountLast where nothing is to be warned of.
func boot(d Disks) error {
	_, warning, err := d.Persistent.MountLast(context.Background())
	if warning != "" {
		err = errors.Join(err, errors.New(warning))
	}
	return err
}
