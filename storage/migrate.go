package storage

import (
	"context"
	"errors"
)

// Migrate moves the content of the store to the disk on the migration target.
func (d *Disks) Migrate(context.Context) error {
	return errors.New("migrate disk: this agent cannot copy disks yet")
}
