package user

import (
	"io/fs"
	"maps"
)

// After returns the state after changes of passwords and keys were applied.
func (s State) After(changes []Change) State {
	s.hashes, s.keys = maps.Clone(s.hashes), maps.Clone(s.keys)
	for _, c := range changes {
		switch c.Op {
		case OpSetPassword:
			s.hashes[c.User] = c.hash
		case OpSetKeys:
			uid := s.Accounts[c.User].UID
			s.keys[c.User] = keyFile{
				content:  joinKeys(c.keys),
				mode:     0o600,
				uid:      uid,
				dirMode:  fs.ModeDir | 0o700,
				dirOwner: uid,
			}
		}
	}
	return s
}
