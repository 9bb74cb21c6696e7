package user

import (
	"context"
	"io/fs"
	"maps"
)

// PlanAfter returns what Converge(want) would change once Converge(first) has been done. It only
// reads.
func (a *Accounts) PlanAfter(ctx context.Context, first, want Desired) ([]Change, error) {
	have, err := a.Observe(ctx, want)
	if err != nil {
		return nil, err
	}
	changes, err := Diff(have, first)
	if err != nil {
		return nil, err
	}
	return Diff(have.after(changes), want)
}

// after is the state that applying changes of passwords and keys leaves.
func (s State) after(changes []Change) State {
	s.hashes, s.keys = maps.Clone(s.hashes), maps.Clone(s.keys)
	for _, c := range changes {
		switch c.Op {
		case OpSetPassword:
			s.hashes[c.User] = c.hash
		case OpSetKeys:
			uid := s.Accounts[c.User].UID
			s.keys[c.User] = keyFile{content: joinKeys(c.keys), mode: 0o600, uid: uid, dirMode: fs.ModeDir | 0o700, dirOwner: uid}
		}
	}
	return s
}
