package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"cambium/internal/atomicfile"
	"cambium/platform/disk"
)

// An intent is on record from before a disk is partitioned until its file system is complete.
// A crash in between leaves it, and the next start goes on instead of refusing a disk that
// carries our partition with something half made inside. It is bound to one partition table
// by its identifier, so that it can never speak about another disk.
type intent struct {
	// Table is the GUID of a GPT or the signature of a DOS table; for a migration, the disks.
	Table string `json:"table"`
	// Exact is for migrations: the target was empty before the first attempt.
	Exact bool `json:"exact,omitempty"`
}

// ephemeralIntent is the key of the ephemeral disk; CIDs never begin with a dot.
const ephemeralIntent = ".ephemeral"

func (d *machine) intentFile() string { return filepath.Join(d.Dirs.Bosh(), "disk_intents.json") }

func (d *machine) intents() (map[string]intent, error) {
	all := map[string]intent{}
	data, err := os.ReadFile(d.intentFile())
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read disk intents: %w", err)
	}
	if err := json.Unmarshal(data, &all); err != nil {
		// Without the record an unfinished disk is refused instead of completed: safe.
		d.Log.WithError(err).Warn("disk intents cannot be read and are ignored")
		return map[string]intent{}, nil
	}
	return all, nil
}

// begin records the intent to make a new table and returns the identifier it must get.
func (d *machine) begin(key string, label disk.Label) (string, error) {
	id := strings.ToUpper(uuid.NewString())
	if label == disk.MBR {
		id = strings.ToLower(id[:8])
	}
	return id, d.record(key, &intent{Table: id})
}

// beginFormat records the intent to fill a table that exists.
func (d *machine) beginFormat(key, table string) error { return d.record(key, &intent{Table: table}) }

// done ends an intent.
func (d *machine) done(key string) error { return d.record(key, nil) }

func (d *machine) record(key string, i *intent) error {
	all, err := d.intents()
	if err != nil {
		return err
	}
	if _, known := all[key]; !known && i == nil {
		return nil
	}
	if i == nil {
		delete(all, key)
	} else {
		all[key] = *i
	}
	if err := ensureDir(d.Dirs.Bosh(), 0o755); err != nil {
		return err
	}
	data, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return atomicfile.Write(d.intentFile(), data, 0o600)
}

// pending reports whether the making of exactly this table is unfinished.
func (d *machine) pending(key string, t disk.Table) (bool, error) {
	all, err := d.intents()
	if err != nil {
		return false, err
	}
	i, ok := all[key]
	return ok && t.Label != disk.None && strings.EqualFold(i.Table, t.GUID), nil
}
