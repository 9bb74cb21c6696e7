package device

import (
	"context"

	"cambium/internal/watch"
)

// Await calls ready until it says true or fails, again after every kernel event about a
// device and after every change in the directories (or, while they are missing, in their
// nearest parents). It ends with the context's cause.
func Await(ctx context.Context, dirs []string, ready func() (bool, error)) error {
	return watch.UntilDevice(ctx, dirs, ready)
}
