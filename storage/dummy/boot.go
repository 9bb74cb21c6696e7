package dummy

import (
	"context"
	"time"

	"cambium/settings"
	"cambium/storage/decide"
)

// Boot adapts Disks to the interface of a boot. Its plans are empty, since there are no devices to change.
type Boot struct{ *Disks }

// MountStore records the last disk as mounted again.
func (b Boot) MountStore(_ context.Context, acting bool) ([]decide.Change, string, error) {
	if !acting {
		return nil, "", nil
	}
	return nil, "", b.Disks.MountStore()
}

// CurrentWork returns zero values: there are no real disks to check or mount.
func (Boot) CurrentWork() (cid, what string, since time.Time) { return "", "", time.Time{} }

// PlanMount plans nothing.
func (Boot) PlanMount(context.Context) ([]decide.Change, error) { return nil, nil }

// CheckKnown returns an error if an associated disk is not known, or if too many disks are.
func (b Boot) CheckKnown(associations []settings.DiskAssociation) error {
	known := map[string]bool{}
	for cid := range b.Known.Disks() {
		known[cid] = true
	}
	var named []decide.Association
	for _, a := range associations {
		named = append(named, decide.Association{Name: a.Name, CID: a.CID})
	}
	return decide.CheckKnown(known, len(known), named)
}

// Associate records the names of disks.
func (b Boot) Associate(ctx context.Context, associations []settings.DiskAssociation,
	acting bool) ([]decide.Change, error) {
	if !acting {
		return nil, nil
	}
	return nil, b.Disks.Associate(ctx, associations)
}
