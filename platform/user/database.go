package user

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// database holds all account files.
type database struct {
	passwd, shadow, group, gshadow, subuid, subgid *table
	loginDefs                                      map[string]string
	runningUIDs                                    map[int]bool
}

func (a *Accounts) load() (*database, error) {
	var db database
	var err error
	for _, f := range []struct {
		name   string
		fields int
		table  **table
	}{{"passwd", 7, &db.passwd}, {"shadow", 9, &db.shadow}, {"group", 4, &db.group}, {"gshadow", 4, &db.gshadow},
		{"subuid", 3, &db.subuid}, {"subgid", 3, &db.subgid}} {
		if *f.table, err = readTable(a.joinRoot("etc/"+f.name), f.fields); err != nil {
			return nil, err
		}
	}
	if !db.passwd.present {
		return nil, fmt.Errorf("read accounts: %s does not exist", db.passwd.path)
	}
	db.loginDefs = make(map[string]string)
	// Without a readable file the defaults of the shadow tools apply.
	if data, err := os.ReadFile(a.joinRoot("etc/login.defs")); err == nil {
		for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
			if words := strings.Fields(s.Text()); len(words) >= 2 && !strings.HasPrefix(words[0], "#") {
				db.loginDefs[words[0]] = words[1]
			}
		}
	}
	return &db, nil
}

// setting returns a number from login.defs.
func (db *database) setting(name string, otherwise int) int {
	if n, err := strconv.ParseInt(db.loginDefs[name], 0, 32); err == nil {
		return int(n)
	}
	return otherwise
}

func today() string { return strconv.FormatInt(time.Now().Unix()/86400, 10) }

// setPassword writes the hash to shadow if that file exists, otherwise to passwd.
func (db *database) setPassword(name, hash string) error {
	line, there := db.passwd.find(name)
	if !there {
		return errNoUser
	}
	if !db.shadow.present {
		line[1] = hash
		db.passwd.set(line...)
		return nil
	}
	entry, there := db.shadow.find(name)
	if !there {
		entry = db.shadowLine(name)
		line[1] = "x"
		db.passwd.set(line...)
	}
	entry[1], entry[2] = hash, today()
	db.shadow.set(entry...)
	return nil
}

func (db *database) shadowLine(name string) []string {
	// Neither "*" nor "!" matches a password, but an sshd without PAM treats "!" as a locked account and refuses keys,
	// too.
	return []string{
		name,
		"*",
		today(),
		db.age("PASS_MIN_DAYS", "0"),
		db.age("PASS_MAX_DAYS", "99999"),
		db.age("PASS_WARN_AGE", "7"),
		"",
		"",
		"",
	}
}

func (db *database) age(name, otherwise string) string {
	if n, err := strconv.Atoi(db.loginDefs[name]); err == nil {
		if n < 0 {
			return ""
		}
		return strconv.Itoa(n)
	}
	return otherwise
}

// add creates the entries of a new user in all files. Entries of the same name without an account are left over from an
// interrupted run, and are reused.
func (db *database) add(s Session) (Account, error) {
	if _, there := db.passwd.find(s.Name); there {
		return Account{}, errors.New("the user was created in the meantime")
	}
	uid, err := db.freeUID()
	if err != nil {
		return Account{}, err
	}
	gid := -1
	if line, there := db.group.find(s.Name); there {
		if !strings.HasPrefix(s.Name, sessionPrefix) || line[3] != "" {
			return Account{}, fmt.Errorf("a group %s exists that is not this user's", s.Name)
		}
		if gid, err = number(line[2]); err != nil {
			return Account{}, err
		}
	} else if gid, err = db.freeGID(uid); err != nil {
		return Account{}, err
	}
	account := Account{Name: s.Name, UID: uid, GID: gid, Home: filepath.Join(s.HomeBase, s.Name)}
	password := "*"
	if db.shadow.present {
		password = "x"
		db.shadow.set(db.shadowLine(s.Name)...)
	}
	db.passwd.set(s.Name, password, strconv.Itoa(uid), strconv.Itoa(gid), "", account.Home, "/bin/bash")
	db.group.set(s.Name, "x", strconv.Itoa(gid), "")
	if db.gshadow.present {
		db.gshadow.set(s.Name, "!", "", "")
	}
	for _, sub := range []struct {
		t    *table
		kind string
	}{{db.subuid, "UID"}, {db.subgid, "GID"}} {
		sub.t.remove(s.Name)
		if first, count := db.freeRange(sub.t, sub.kind); sub.t.present && count > 0 {
			sub.t.set(s.Name, strconv.Itoa(first), strconv.Itoa(count))
		}
	}
	db.setGroups(s.Name, s.Groups)
	return account, nil
}

// setGroups makes the user a member of exactly these groups.
func (db *database) setGroups(name string, groups []string) {
	for _, t := range []*table{db.group, db.gshadow} {
		t.edit(func(r []string) { r[3] = withMember(r[3], name, slices.Contains(groups, r[0])) })
	}
}

// remove removes a user from all files, and its own group unless others use it.
func (db *database) remove(account Account) {
	for _, t := range []*table{db.passwd, db.shadow, db.subuid, db.subgid} {
		t.remove(account.Name)
	}
	db.setGroups(account.Name, nil)
	db.gshadow.edit(func(r []string) { r[2] = withMember(r[2], account.Name, false) })
	own, there := db.group.find(account.Name)
	if there && (own[2] != strconv.Itoa(account.GID) || own[3] != "") {
		return
	}
	for r := range db.passwd.all {
		if there && r[3] == own[2] {
			return
		}
	}
	db.group.remove(account.Name)
	db.gshadow.remove(account.Name)
}

// freeUID returns the number after the highest in use, like useradd, so that a new user does not own files of a removed
// one. A number is in use while it has running processes.
func (db *database) freeUID() (int, error) {
	used := make(map[int]bool)
	for uid := range db.runningUIDs {
		used[uid] = true
	}
	for r := range db.passwd.all {
		if uid, err := number(r[2]); err == nil {
			used[uid] = true
		}
	}
	return nextFree(used, db.setting("UID_MIN", 1000), db.setting("UID_MAX", 60000), "user")
}

func (db *database) freeGID(uid int) (int, error) {
	used := make(map[int]bool)
	for r := range db.group.all {
		if gid, err := number(r[2]); err == nil {
			used[gid] = true
		}
	}
	if !used[uid] {
		return uid, nil
	}
	return nextFree(used, db.setting("GID_MIN", 1000), db.setting("GID_MAX", 60000), "group")
}

// nextFree returns the number after the highest in use, or the lowest free one if that is too high.
func nextFree(used map[int]bool, lowest, highest int, what string) (int, error) {
	next := lowest
	for id := range used {
		if id >= next && id <= highest {
			next = id + 1
		}
	}
	if next <= highest {
		return next, nil
	}
	for id := lowest; id <= highest; id++ {
		if !used[id] {
			return id, nil
		}
	}
	return 0, fmt.Errorf("no free %s id between %d and %d", what, lowest, highest)
}

// freeRange returns a range of subordinate ids for another user. count is 0 if none is left.
func (db *database) freeRange(t *table, kind string) (first, count int) {
	first, count = db.setting("SUB_"+kind+"_MIN", 100000), db.setting("SUB_"+kind+"_COUNT", 65536)
	for r := range t.all {
		start, err1 := number(r[1])
		n, err2 := number(r[2])
		if err1 == nil && err2 == nil && start+n > first {
			first = start + n
		}
	}
	if first+count > db.setting("SUB_"+kind+"_MAX", 600100000)+1 {
		return 0, 0
	}
	return first, count
}

// running returns the uids that own processes.
func (a *Accounts) running() map[int]bool {
	entries, err := os.ReadDir(a.joinRoot("proc"))
	if err != nil {
		return nil // without /proc, no uid counts as in use
	}
	uids := make(map[int]bool)
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // ended meanwhile
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			uids[int(st.Uid)] = true
		}
	}
	return uids
}

// save writes all files except passwd.
func (db *database) save() error {
	for _, t := range []*table{db.group, db.gshadow, db.shadow, db.subuid, db.subgid} {
		if err := t.save(); err != nil {
			return err
		}
	}
	return nil
}

// Apply makes the changes under the locks and returns those made. It can be interrupted at any point: everything that
// belongs to a new user is complete before the account appears, and everything of a removed one is gone before the
// account disappears. An error for one user does not affect the others.
func (a *Accounts) Apply(ctx context.Context, changes []Change) (made []Change, err error) {
	if len(changes) == 0 {
		return nil, nil
	}
	unlock, err := a.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	db, err := a.load()
	if err != nil {
		return nil, err
	}
	db.runningUIDs = a.running()
	failed := make([]error, len(changes))
	inHome := make([]func() error, len(changes))
	for i, c := range changes {
		inHome[i], failed[i] = a.edit(db, c)
	}
	if err := db.save(); err != nil {
		return nil, errors.Join(append(failed, err)...)
	}
	for i := range changes {
		if failed[i] == nil && inHome[i] != nil {
			failed[i] = inHome[i]()
		}
	}
	// Save again, since users whose home could not be created were removed from db.
	if err := errors.Join(db.save(), db.passwd.save()); err != nil {
		return nil, errors.Join(append(failed, err)...)
	}
	for i, c := range changes {
		if failed[i] != nil {
			failed[i] = fmt.Errorf("%s: %w", c, failed[i])
			continue
		}
		made = append(made, c)
		a.Log.WithField("change", c.String()).Info("changed accounts")
	}
	return made, errors.Join(failed...)
}

// edit makes a change in db. inHome, if not nil, completes it in the user's home, after all files except passwd were
// saved.
func (a *Accounts) edit(db *database, c Change) (inHome func() error, err error) {
	switch c.Op {
	case OpSetPassword:
		return nil, db.setPassword(c.User, c.hash.Reveal())
	case OpSetGroups:
		db.setGroups(c.User, c.session.Groups)
		return nil, nil
	case OpAddUser:
		account, err := db.add(c.session)
		if err != nil {
			return nil, err
		}
		return func() error {
			err := a.makeHome(account, c.session)
			if err != nil {
				db.remove(account)
			}
			return err
		}, nil
	case OpRemoveUser:
		line, there := db.passwd.find(c.User)
		if !there {
			return nil, nil
		}
		account, err := account(line)
		if err == nil {
			err = a.removeHome(account, db.loginDefs["MAIL_DIR"])
		}
		db.remove(account) // even if its home stays
		return nil, err
	case OpSetKeys:
		return func() error {
			line, there := db.passwd.find(c.User)
			if !there {
				return errNoUser
			}
			account, err := account(line)
			if err != nil {
				return err
			}
			return a.writeKeys(account, c.keys)
		}, nil
	}
	return nil, errors.New("unknown change")
}
