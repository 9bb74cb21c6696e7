package action

import (
	"context"
	"encoding/json"
	"errors"

	"cambium/internal/secret"
	"cambium/settings"
)

// Disks manages the machine's disks by their CIDs. Methods that need the settings reload them first.
type Disks interface {
	Add(ctx context.Context, cid string, hint settings.DiskHint) error
	Remove(ctx context.Context, cid string) error
	Mount(ctx context.Context, cid string) error
	Unmount(ctx context.Context, cid string) (message string, err error)
	Migrate(ctx context.Context, from, to string) error
	List(ctx context.Context) ([]string, error)
	AddDynamic(ctx context.Context, cid string, hint settings.DiskHint) error
	RemoveDynamic(ctx context.Context, cid string) error
}

// cid is the CID of a disk.
type cid string

// Check refuses an empty CID, which, joined to a path, would name the directory of all disks.
func (c *cid) Check() error {
	if *c == "" {
		return errors.New("the disk's CID is empty")
	}
	return nil
}

// hint is a CPI's hint about where a disk is attached, sent as a string or an object.
type hint struct{ settings.DiskHint }

// UnmarshalJSON decodes both forms.
func (h *hint) UnmarshalJSON(data []byte) (err error) {
	var path struct {
		Path any `json:"path"`
	}
	// CPIs send numbers as other members of a hint, which are then read as strings; as the path a number
	// is a mistake.
	if json.Unmarshal(data, &path) == nil {
		if _, text := path.Path.(string); path.Path != nil && !text {
			return errors.New("path: expected a string")
		}
	}
	h.DiskHint, err = settings.DecodeHint(secret.NewJSON(data))
	return err
}

// empty is the result of actions that return nothing.
type empty struct{}

// message is the result of unmount_disk.
type message struct {
	Message string `json:"message"`
}

func diskRows(d Disks) Table {
	return Table{
		"add_persistent_disk": {Mode: Async, Lane: Instance, Cancelable: true, Sensitive: true,
			Bind: Two(func(ctx context.Context, cid cid, hint hint) (empty, error) {
				return empty{}, d.Add(ctx, string(cid), hint.DiskHint)
			})},
		"remove_persistent_disk": {Mode: Async, Lane: Instance, Cancelable: true,
			Bind: One(func(ctx context.Context, cid cid) (empty, error) {
				return empty{}, d.Remove(ctx, string(cid))
			})},
		"mount_disk": {Mode: Async, Lane: Instance, Cancelable: true,
			Bind: One(func(ctx context.Context, cid cid) (empty, error) {
				return empty{}, d.Mount(ctx, string(cid))
			})},
		"unmount_disk": {Mode: Async, Lane: Instance, Cancelable: true,
			Bind: One(func(ctx context.Context, cid cid) (message, error) {
				text, err := d.Unmount(ctx, string(cid))
				return message{text}, err
			})},
		// The Director sends both CIDs, the CLI none; then the disks are those that are mounted.
		"migrate_disk": {Mode: Async, Lane: Instance, Cancelable: true,
			Bind: func(arguments []json.RawMessage) (Run, error) {
				var from, to cid
				if err := decode(arguments, 0, &from, &to); err != nil {
					return nil, err
				}
				return func(ctx context.Context) (any, error) { return empty{}, d.Migrate(ctx, string(from), string(to)) }, nil
			}},
		"list_disk": {Mode: AsyncSince3, Lane: Fast, Cancelable: true,
			Bind: None(func(ctx context.Context) ([]string, error) {
				list, err := d.List(ctx)
				if list == nil {
					list = []string{} // callers take the first element of an array, not of null
				}
				return list, err
			})},
		"add_dynamic_disk": {Mode: Async, Lane: Instance, Cancelable: true, Sensitive: true,
			Bind: Two(func(ctx context.Context, cid cid, hint hint) (empty, error) {
				return empty{}, d.AddDynamic(ctx, string(cid), hint.DiskHint)
			})},
		"remove_dynamic_disk": {Mode: Sync, Lane: Instance,
			Bind: One(func(ctx context.Context, cid cid) (empty, error) {
				return empty{}, d.RemoveDynamic(ctx, string(cid))
			})},
	}
}

// UnmarshalJSON refuses null, as for any text.
func (c *cid) UnmarshalJSON(data []byte) error {
	var text *string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	if text == nil {
		return errors.New("expected a value, got null")
	}
	*c = cid(*text)
	return nil
}
