package recordfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"cambium/internal/atomicfile"
	"cambium/storage/record"
)

// Earlier versions kept identities, unfinished work and requests in files of their own. They are read until the first
// change of the record.

func (f File) readFormer() (record.Record, error) {
	r := record.New()
	identities := struct {
		Version int                    `json:"version"`
		Disks   map[string]record.Disk `json:"disks"`
	}{}
	there, err := readJSON(f.dirs.FormerDiskRecords(), &identities)
	if err == nil && there && (identities.Version != 1 || identities.Disks == nil) {
		err = damaged(f.dirs.FormerDiskRecords(), fmt.Errorf("version %d, want 1", identities.Version))
	}
	if err != nil {
		return record.Record{}, err
	}
	if there {
		r.Disks = identities.Disks
	}
	var intents map[string]struct {
		Table string `json:"table"`
	}
	there, err = readJSON(f.dirs.FormerDiskIntents(), &intents)
	if err == nil && there && intents == nil {
		err = damaged(f.dirs.FormerDiskIntents(), errors.New("it is null"))
	}
	if err != nil {
		return record.Record{}, err
	}
	for key, i := range intents {
		switch key {
		case ".migration":
			r.Migration.From, r.Migration.To, _ = strings.Cut(i.Table, " to ")
		case ".migrated":
			r.Migrated = i.Table
		default:
			r.Unfinished[key] = i.Table
		}
	}
	return r, f.readFormerRequests(&r)
}

func readJSON(path string, into any) (there bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the disk record: %w", err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return false, damaged(path, err)
	}
	return true, nil
}

func (f File) readFormerRequests(r *record.Record) error {
	entries, err := os.ReadDir(f.dirs.FormerDiskRequests())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read requests about disks: %w", err)
	}
	for _, e := range entries {
		var asked struct {
			Action record.Action `json:"action"`
			CID    string        `json:"cid"`
		}
		there, err := readJSON(filepath.Join(f.dirs.FormerDiskRequests(), e.Name()), &asked)
		if err == nil && there && asked.CID != "" && (asked.Action == record.Accept || asked.Action == record.Release) {
			r.Asked[asked.CID] = asked.Action // others are incomplete files
		}
	}
	return nil
}

func (f File) removeFormer() error {
	if err := os.RemoveAll(f.dirs.FormerDiskRequests()); err != nil {
		return err
	}
	return errors.Join(atomicfile.Remove(f.dirs.FormerDiskRecords()), atomicfile.Remove(f.dirs.FormerDiskIntents()))
}
