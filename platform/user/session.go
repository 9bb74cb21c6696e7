package user

import (
	"context"
	"maps"
	"slices"
	"strings"

	"cambium/platform"
)

// Sessions manages the ephemeral ssh users of a machine.
type Sessions struct {
	Accounts *Accounts
	HomeBase string // directory of their homes
}

// Create creates a user that can log in with the key. If it created that user before, it replaces the key. The name of
// another account is an error.
func (s Sessions) Create(ctx context.Context, name, publicKey string) error {
	session := Session{Name: name, HomeBase: s.HomeBase, Keys: []string{publicKey}}
	_, err := platform.Converge(ctx, s.Accounts, Diff, Desired{Sessions: []Session{session}})
	return err
}

// Remove removes all users with sessionPrefix for which match returns true, with their home and mail, even if they are
// logged in. It does not call match for other users. An error for one user does not affect the others.
func (s Sessions) Remove(ctx context.Context, match func(name string) bool) error {
	have, err := s.Accounts.Observe(ctx, Desired{})
	if err != nil {
		return err
	}
	var want Desired
	for _, name := range slices.Sorted(maps.Keys(have.Accounts)) {
		if strings.HasPrefix(name, sessionPrefix) && match(name) {
			want.Remove = append(want.Remove, name)
		}
	}
	_, err = platform.Converge(ctx, s.Accounts, Diff, want)
	return err
}
