package user

import (
	"context"
	"maps"
	"slices"
	"strings"

	"cambium/internal/secret"
)

// SetPasswords sets crypt(3) hashes by user, an empty one meaning that no password fits, and
// returns how many changes that took.
func (a *Accounts) SetPasswords(ctx context.Context, hashes map[string]secret.String) (int, error) {
	changes, err := a.Converge(ctx, Desired{Passwords: hashes})
	return len(changes), err
}

// AuthorizeKeys makes these the only keys that let somebody in as the user, or with keep the first
// ones, and returns how many changes that took.
func (a *Accounts) AuthorizeKeys(ctx context.Context, name string, keys []string, keep bool) (int, error) {
	changes, err := a.Converge(ctx, Desired{Keys: map[string][]string{name: keys}, KeepKeys: keep})
	return len(changes), err
}

// Sessions are the short-lived users of a machine.
type Sessions struct {
	Accounts *Accounts
	HomeBase string // directory of their homes
}

// Create makes a user that may log in with the key; one that exists gets the key.
func (s Sessions) Create(ctx context.Context, name, publicKey string) error {
	_, err := s.Accounts.Converge(ctx, Desired{Sessions: []Session{{Name: name, HomeBase: s.HomeBase, Keys: []string{publicKey}}}})
	return err
}

// Remove removes every short-lived user for which match says so, with home and mail, logged in
// or not. Users of other names are never asked for. A failure with one does not keep the others.
func (s Sessions) Remove(ctx context.Context, match func(name string) bool) error {
	have, err := s.Accounts.Observe(ctx, Desired{})
	if err != nil {
		return err
	}
	var want Desired
	for _, name := range slices.Sorted(maps.Keys(have.Accounts)) {
		if strings.HasPrefix(name, SessionPrefix) && match(name) {
			want.Remove = append(want.Remove, name)
		}
	}
	changes, err := Diff(have, want)
	if err != nil {
		return err
	}
	return s.Accounts.Apply(ctx, changes)
}
