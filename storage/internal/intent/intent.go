// Package intent keeps the record of disk work that has begun and is not complete. A crash leaves it, and
// the next start goes on instead of refusing a disk that carries our partition with something half made inside.
package intent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sirupsen/logrus"

	"cambium/internal/atomicfile"
	"cambium/platform/disk"
)

// Intent is on record from before a disk is partitioned until its file system is complete, or from before the
// first byte of a migration is copied until the new disk is on the store. It is bound to one partition table
// by its identifier, so that it never applies to another disk.
type Intent struct {
	// Table is the GUID of a GPT or the signature of a DOS table; for a migration, the disks.
	Table string `json:"table"`
}

// Keys that are no CIDs; those never begin with a dot.
const (
	Ephemeral = ".ephemeral"
	Migration = ".migration" // the migration that is not complete
	Migrated  = ".migrated"  // the disk of the last one that is
)

// MigrationID names a migration in its record.
func MigrationID(from, to string) string { return from + " to " + to }

// Moves reports whether a migration's record has this disk as its target.
func (i Intent) Moves(to string) bool { return to != "" && strings.HasSuffix(i.Table, " to "+to) }

// Concerns reports whether a migration's record names this disk on either side.
func (i Intent) Concerns(cid string) bool {
	return i.Moves(cid) || strings.HasPrefix(i.Table, MigrationID(cid, ""))
}

// File is where the intents are kept.
type File struct {
	Path string
	Log  *logrus.Entry
}

// All returns what is on record.
func (f File) All() (map[string]Intent, error) {
	all := map[string]Intent{}
	data, err := os.ReadFile(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read disk intents: %w", err)
	}
	if err := json.Unmarshal(data, &all); err != nil || all == nil {
		// Without the record a disk with an incomplete copy would become the store.
		return nil, fmt.Errorf("%w: %s: %w: run agent disk accept with the CID of the disk that is to be used", ErrDamaged, f.Path, cmp.Or(err, errors.New("it is null")))
	}
	return all, nil
}

// ErrDamaged means that there is a record of unfinished work that cannot be read.
var ErrDamaged = errors.New("record of unfinished disk work is damaged")

// SetAside renames a damaged record, so that an operator can inspect it.
func (f File) SetAside() error {
	if err := os.Rename(f.Path, f.Path+".damaged"); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(f.Path))
}

// Set records an intent.
func (f File) Set(key string, i Intent) error {
	all, err := f.All()
	if err != nil {
		return err
	}
	all[key] = i
	return f.write(all)
}

// Clear ends an intent; one that is not on record is fine.
func (f File) Clear(key string) error {
	all, err := f.All()
	if err != nil {
		return err
	}
	if _, known := all[key]; !known {
		return nil
	}
	delete(all, key)
	return f.write(all)
}

func (f File) write(all map[string]Intent) error {
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return err
	}
	data, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return atomicfile.Write(f.Path, data, 0o600)
}

// Pending reports whether the making of exactly this table is unfinished.
func (f File) Pending(key string, t disk.Table) (bool, error) {
	all, err := f.All()
	if err != nil {
		return false, err
	}
	i, ok := all[key]
	return ok && t.Label != disk.None && strings.EqualFold(i.Table, t.GUID), nil
}
