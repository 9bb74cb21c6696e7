package dummy

import (
	"context"
	"time"

	"cambium/settings"
	"cambium/storage/decide"
)

// Boot is Disks as the boot uses them. It plans nothing: there is no device that could change.
type Boot struct{ *Disks }

// PlanMountLast plans nothing.
func (Boot) PlanMountLast(context.Context) ([]decide.Change, string, error) { return nil, "", nil }

// MountLast mounts the disk that was mounted last.
func (b Boot) MountLast(context.Context) ([]decide.Change, string, error) {
	return nil, "", b.Disks.MountLast()
}

// Working returns nothing: no real disk is ever being checked or mounted.
func (Boot) Working() (cid, what string, since time.Time) { return "", "", time.Time{} }

// PlanMount plans nothing.
func (Boot) PlanMount(context.Context) ([]decide.Change, error) { return nil, nil }

// CheckKnown refuses associations of unknown disks, and disks that nothing accounts for.
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

// PlanAssociate plans nothing.
func (Boot) PlanAssociate(context.Context, []settings.DiskAssociation) ([]decide.Change, error) {
	return nil, nil
}

// Associate records the names given to disks.
func (b Boot) Associate(ctx context.Context, associations []settings.DiskAssociation) ([]decide.Change, error) {
	return nil, b.Disks.Associate(ctx, associations)
}
