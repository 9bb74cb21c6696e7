// Package user edits accounts: password hashes, authorized keys, and the ephemeral users of `bosh ssh`. It edits the
// account files itself, under the locks of the shadow tools. Each file is replaced atomically, and lines that it does
// not understand are preserved. Secrets never appear in a shell or a process list.
package user

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"

	"cambium/internal/advice"
	"cambium/internal/secret"
)

// sessionPrefix begins the names of the ephemeral ssh users that Directors and the CLI create. Other users are never
// removed.
const sessionPrefix = "bosh_"

// sessionGroups lists the groups of an ephemeral ssh user besides its own.
var sessionGroups = []string{"vcap", "admin", "bosh_sudoers", "bosh_sshers"}

// errNoUser is returned if an account does not exist.
var errNoUser = errors.New("no such user")

// Accounts reads and changes the accounts of the machine below Root.
type Accounts struct {
	Root string
	Log  *logrus.Entry
}

func (a *Accounts) joinRoot(path string) string { return filepath.Join(a.Root, path) }

// Account is a user account.
type Account struct {
	Name     string
	UID, GID int
	Home     string
}

// Session is an ephemeral ssh user.
type Session struct {
	Name     string
	HomeBase string // parent directory of its home
	Keys     []string
	Groups   []string // sessionGroups if empty
}

// NoPassword is a hash that matches no password.
const NoPassword = "*"

// Desired describes the wanted accounts. Others stay as they are.
type Desired struct {
	// Passwords holds crypt(3) hashes by user. An empty hash disables passwords.
	Passwords map[string]secret.String
	// Keys holds the authorized keys by user. They replace all existing keys or, with KeepKeys, precede them.
	Keys     map[string][]string
	KeepKeys bool
	Sessions []Session
	// Remove lists ephemeral ssh users to remove.
	Remove []string
}

// State describes the accounts as observed.
type State struct {
	Accounts map[string]Account
	hashes   map[string]secret.String
	members  map[string][]string // group → names
	keys     map[string]keyFile  // user → authorized_keys
}

// Op is the kind of a change.
type Op string

// Kinds of changes.
const (
	OpSetPassword Op = "set-password"
	OpSetKeys     Op = "set-keys"
	OpAddUser     Op = "add-user"
	OpSetGroups   Op = "set-groups"
	OpRemoveUser  Op = "remove-user"
)

// Change is a step towards the desired state.
type Change struct {
	Op      Op
	User    string
	hash    secret.String
	keys    []string
	session Session
}

// Runs returns false: a change starts no program or service.
func (Change) Runs() bool { return false }

// String describes the change in one line, without hashes and keys.
func (c Change) String() string {
	switch c.Op {
	case OpSetPassword:
		return "set password of " + c.User
	case OpSetKeys:
		return "set authorized keys of " + c.User
	case OpAddUser:
		return "add user " + c.User
	case OpSetGroups:
		return "set groups of " + c.User
	case OpRemoveUser:
		return "remove user " + c.User
	}
	return string(c.Op)
}

// Hash returns the password hash of an OpSetPassword.
func (c Change) Hash() secret.String { return c.hash }

// Observe reads the accounts, and the keys of those that want contains.
func (a *Accounts) Observe(ctx context.Context, want Desired) (State, error) {
	if ctx.Err() != nil {
		return State{}, context.Cause(ctx)
	}
	db, err := a.load()
	if err != nil {
		return State{}, err
	}
	s := State{
		Accounts: make(map[string]Account),
		hashes:   make(map[string]secret.String),
		members:  make(map[string][]string),
		keys:     make(map[string]keyFile),
	}
	for r := range db.passwd.all {
		account, err := account(r)
		if _, twice := s.Accounts[r[0]]; err != nil || twice {
			continue // skip damaged lines and duplicate names
		}
		s.Accounts[account.Name] = account
		s.hashes[account.Name] = secret.New(r[1])
		if line, there := db.shadow.find(account.Name); there {
			s.hashes[account.Name] = secret.New(line[1])
		}
	}
	for r := range db.group.all {
		s.members[r[0]] = members(r[3])
	}
	for name := range want.Keys {
		if account, there := s.Accounts[name]; there {
			s.keys[name] = a.readKeys(account)
		}
	}
	for _, session := range want.Sessions {
		if account, there := s.Accounts[session.Name]; there {
			s.keys[session.Name] = a.readKeys(account)
		}
	}
	return s, nil
}

// validName matches the names that useradd accepts by default.
var validName = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)

// Diff returns the changes to the desired state.
func Diff(have State, want Desired) (changes []Change, err error) {
	for _, name := range slices.Sorted(maps.Keys(want.Passwords)) {
		hash := want.Passwords[name]
		if hash.Empty() {
			hash = secret.New(NoPassword)
		}
		if _, there := have.Accounts[name]; !there {
			return nil, advice.With("make the account in the stemcell",
				fmt.Errorf("password of %s: %w", name, errNoUser))
		}
		if strings.ContainsFunc(hash.Reveal(), func(r rune) bool { return r == ':' || r < ' ' || r > '~' }) {
			return nil, fmt.Errorf("password of %s: the hash contains an invalid character", name)
		}
		if !hash.Equal(have.hashes[name]) {
			changes = append(changes, Change{Op: OpSetPassword, User: name, hash: hash})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want.Keys)) {
		account, there := have.Accounts[name]
		if !there {
			return nil, fmt.Errorf("authorized keys of %s: %w", name, errNoUser)
		}
		keys := want.Keys[name]
		if want.KeepKeys {
			keys = have.keys[name].appendTo(keys)
		}
		if !have.keys[name].has(keys, account) {
			changes = append(changes, Change{Op: OpSetKeys, User: name, keys: keys})
		}
	}
	for _, session := range want.Sessions {
		more, err := diffSession(have, session)
		if err != nil {
			return nil, err
		}
		changes = append(changes, more...)
	}
	for _, name := range want.Remove {
		if !strings.HasPrefix(name, sessionPrefix) {
			return nil, fmt.Errorf("user %s is not an ephemeral ssh user; it is not removed", name)
		}
		if _, there := have.Accounts[name]; there {
			changes = append(changes, Change{Op: OpRemoveUser, User: name})
		}
	}
	return changes, nil
}

func diffSession(have State, s Session) ([]Change, error) {
	if !validName.MatchString(s.Name) {
		return nil, fmt.Errorf("user name %q is not valid: use at most 32 lower case letters, digits, _ and -", s.Name)
	}
	if len(s.Groups) == 0 {
		s.Groups = sessionGroups
	}
	for _, group := range s.Groups {
		if _, there := have.members[group]; !there {
			return nil, fmt.Errorf("user %s: no group %q on this machine", s.Name, group)
		}
	}
	account, there := have.Accounts[s.Name]
	if !there {
		return []Change{{Op: OpAddUser, User: s.Name, session: s, keys: s.Keys}}, nil
	}
	if account.Home != filepath.Join(s.HomeBase, s.Name) {
		return nil, fmt.Errorf("user %s exists and is not an ephemeral ssh user", s.Name)
	}
	var changes []Change
	for group, names := range have.members {
		if slices.Contains(names, s.Name) != slices.Contains(s.Groups, group) {
			changes = append(changes, Change{Op: OpSetGroups, User: s.Name, session: s})
			break
		}
	}
	if !have.keys[s.Name].has(s.Keys, account) {
		changes = append(changes, Change{Op: OpSetKeys, User: s.Name, keys: s.Keys})
	}
	return changes, nil
}

// Lookup returns the account with that name.
func (a *Accounts) Lookup(name string) (Account, error) {
	t, err := readTable(a.joinRoot("etc/passwd"), 7)
	if err != nil {
		return Account{}, err
	}
	r, there := t.find(name)
	if !there {
		return Account{}, fmt.Errorf("%s: %w", name, errNoUser)
	}
	return account(r)
}

// account parses a line of passwd.
func account(r []string) (Account, error) {
	uid, err := number(r[2])
	if err != nil {
		return Account{}, fmt.Errorf("account %s: %w", r[0], err)
	}
	gid, err := number(r[3])
	if err != nil {
		return Account{}, fmt.Errorf("account %s: %w", r[0], err)
	}
	return Account{Name: r[0], UID: uid, GID: gid, Home: r[5]}, nil
}

func number(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, errors.New("not a valid user or group id")
	}
	return int(n), nil
}
