package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"cambium/internal/atomicfile"
)

// Action is what an operator asks about a disk.
type Action string

// The actions. The agent acts upon a request at its next decision about disks.
const (
	Accept  Action = "accept"  // take the disk that is there for this CID, and record it
	Release Action = "release" // remove the record of this CID
)

// request is one file, so that a command and the agent never write the same one.
type request struct {
	Version int    `json:"version"`
	Action  Action `json:"action"`
	CID     string `json:"cid"`
}

func (f File) requestPath(r request) string {
	return filepath.Join(f.requests, string(r.Action)+"-"+url.PathEscape(r.CID))
}

// Request leaves a request for the agent.
func (f File) Request(a Action, cid string) error {
	if cid == "" {
		return errors.New("the disk's CID is empty")
	}
	// Records that are damaged are what a request is for.
	records, err := f.All()
	if err != nil && !errors.Is(err, errDamaged) {
		return err
	}
	if _, known := records[cid]; a == Release && err == nil && !known {
		return fmt.Errorf("disk %s is not on record; these are: %q", cid, slices.Sorted(maps.Keys(records)))
	}
	// The directory above is the agent's: without it there is no agent to read the request.
	if err := os.Mkdir(f.requests, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	r := request{Action: a, CID: cid}
	data, err := json.Marshal(request{Version: version, Action: a, CID: cid})
	if err != nil {
		return err
	}
	return atomicfile.Write(f.requestPath(r), data, 0o600)
}

// pending returns the requests, without their version, in the order of their names.
func (f File) pending() ([]request, error) {
	entries, err := os.ReadDir(f.requests)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read requests about disks: %w", err)
	}
	var all []request
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(f.requests, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // another program has just ended it, or was writing it
		}
		if err != nil {
			return nil, fmt.Errorf("read requests about disks: %w", err)
		}
		var r request
		if err := json.Unmarshal(data, &r); err != nil || r.Version != version || r.CID == "" {
			continue // an incomplete file
		}
		r.Version = 0
		all = append(all, r)
	}
	return all, nil
}

// Accepted is the CID of the only disk that an operator has accepted; empty if there is none, or several.
func (f File) Accepted() (cid string, err error) {
	asked, err := f.pending()
	if err != nil {
		return "", err
	}
	for _, r := range asked {
		if r.Action != Accept {
			continue
		}
		if cid != "" {
			return "", nil
		}
		cid = r.CID
	}
	return cid, nil
}

// ApplyReleases removes the records that operators have released, and returns their CIDs. Put ends requests to accept a disk.
func (f File) ApplyReleases() (released []string, err error) {
	asked, err := f.pending()
	if err != nil {
		return nil, err
	}
	for _, r := range asked {
		if r.Action != Release {
			continue
		}
		records, err := f.read()
		if err != nil {
			return released, err
		}
		if _, known := records[r.CID]; known {
			delete(records, r.CID)
			if err := f.write(records); err != nil {
				return released, err
			}
		}
		// A release also ends a request to accept the same disk.
		if err := errors.Join(f.clear(request{Action: Accept, CID: r.CID}), f.clear(r)); err != nil {
			return released, err
		}
		released = append(released, r.CID)
	}
	return released, nil
}

// EndAccept ends a request to accept a disk whose identity is not put on record.
func (f File) EndAccept(cid string) error {
	r := request{Action: Accept, CID: cid}
	if _, err := os.Lstat(f.requestPath(r)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return f.clear(r)
}

func (f File) clear(r request) error { return atomicfile.Remove(f.requestPath(r)) }
