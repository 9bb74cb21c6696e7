package main

import (
	"context"

	"cambium/internal/secret"
	"cambium/platform/user"
)

// users is the machine's accounts as boot and ssh action want them. A dummy machine has none,
// and takes every change as done.
type users struct {
	accounts *user.Accounts
	homes    string // of short-lived users
}

func (u users) converge(ctx context.Context, want user.Desired) (int, error) {
	if u.accounts == nil {
		return 0, nil
	}
	done, err := u.accounts.Converge(ctx, want)
	return len(done), err
}

// SetPasswords sets password hashes.
func (u users) SetPasswords(ctx context.Context, hashes map[string]secret.String) (int, error) {
	return u.converge(ctx, user.Desired{Passwords: hashes})
}

// AuthorizeKeys replaces a user's authorized keys.
func (u users) AuthorizeKeys(ctx context.Context, name string, keys []string) (int, error) {
	return u.converge(ctx, user.Desired{Keys: map[string][]string{name: keys}})
}

// Create makes a short-lived user.
func (u users) Create(ctx context.Context, name, publicKey string) error {
	_, err := u.converge(ctx, user.Desired{Sessions: []user.Session{{Name: name, HomeBase: u.homes, Keys: []string{publicKey}}}})
	return err
}

// Remove deletes every account for which match says so.
func (u users) Remove(ctx context.Context, match func(name string) bool) error {
	if u.accounts == nil {
		return nil
	}
	have, err := u.accounts.Observe(ctx, user.Desired{})
	if err != nil {
		return err
	}
	var names []string
	for name := range have.Accounts {
		if match(name) {
			names = append(names, name)
		}
	}
	_, err = u.converge(ctx, user.Desired{Remove: names})
	return err
}
