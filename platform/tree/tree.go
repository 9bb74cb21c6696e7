// Package tree maintains the directories, links, bind mounts and tmpfs mounts that jobs and the operating system expect
// around the agent's base directory. Table lists all of them. Observe, Diff and Apply change only what differs.
//
// Nothing is written to fstab: mounts are made again at each boot.
package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"strings"
)

// Kind is the kind of an entry.
type Kind uint8

const (
	// Dir is a directory.
	Dir Kind = iota
	// File is a regular file, created empty.
	File
	// Symlink is a link at Path to Source.
	Symlink
	// Bind is a bind mount of the directory Source on Path.
	Bind
	// Tmpfs is a tmpfs with a maximum size of Size.
	Tmpfs
	// Mounted adds Flags to an existing mount point; a missing one is skipped.
	Mounted
	// Existing sets mode and owner of an existing path; a missing one is skipped.
	Existing
)

// Flags holds flags of a mount. They are added, never removed.
type Flags uint8

const (
	NoDev Flags = 1 << iota
	NoSuid
	NoExec
)

func (f Flags) String() string {
	var names []string
	for _, n := range []struct {
		flag Flags
		name string
	}{{NoDev, "nodev"}, {NoSuid, "nosuid"}, {NoExec, "noexec"}} {
		if f&n.flag != 0 {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, ",")
}

// Owner names a user and a group. If a name is empty, that part is not changed.
type Owner struct{ User, Group string }

// Entry is a row of the table.
type Entry struct {
	Group  string // such as Devices
	Path   string
	Kind   Kind
	Mode   fs.FileMode // permissions, optionally with fs.ModeSticky
	Owner  Owner
	Source string // of a Symlink or Bind
	Size   string // of a Tmpfs, as for mount(8): 16m, 10%
	Flags  Flags
	// CreateOnly does not change mode and owner of an existing path.
	CreateOnly bool
	// IfUser skips the entry if that user does not exist.
	IfUser string
	// NoFollow refuses a symbolic link at Path. It is set if users other than root can create one.
	NoFollow bool
	// JobOwned accepts anything at Path: a job can replace it at any time, and must not be able to prevent the agent
	// from starting.
	JobOwned bool
	// OrRoot makes root the owner if Owner does not exist, instead of failing.
	OrRoot bool
}

// Desired lists the wanted entries, in the table's order. Other paths stay as they are.
type Desired []Entry

// Found describes a path as observed.
type Found struct {
	Exists    bool
	Type      fs.FileMode // type bits
	Mode      fs.FileMode // permissions, sticky, setuid and setgid
	UID, GID  int
	LinkTo    string // target, if the entry is a Symlink
	Empty     bool   // an empty directory, if the entry is a Symlink
	Dev, Ino  uint64
	MountRoot bool
	Tmpfs     bool
	Flags     Flags
}

// State holds the observed paths, users and groups of the table.
type State struct {
	Paths  map[string]Found
	Users  map[string]int
	Groups map[string]int
}

// Op is the kind of a change.
type Op string

// Kinds of changes.
const (
	OpMake       Op = "make"
	OpSetMode    Op = "set-mode"
	OpSetOwner   Op = "set-owner"
	OpSetAside   Op = "set-aside"
	OpLink       Op = "link"
	OpBind       Op = "bind"
	OpMountTmpfs Op = "mount-tmpfs"
	OpSetFlags   Op = "set-flags"
)

// Change is a step towards the desired state.
type Change struct {
	Op       Op
	Entry    Entry
	UID, GID int // -1 means no change
}

// Runs returns false: a change starts no program or service.
func (Change) Runs() bool { return false }

// String describes the change in one line.
func (c Change) String() string {
	e := c.Entry
	switch c.Op {
	case OpMake:
		what := "directory"
		if e.Kind == File {
			what = "file"
		}
		return fmt.Sprintf("make %s %s, mode %s", what, e.Path, octal(e.Mode))
	case OpSetMode:
		return fmt.Sprintf("set mode of %s to %s", e.Path, octal(e.Mode))
	case OpSetOwner:
		return fmt.Sprintf("set owner of %s to %s", e.Path, strings.TrimSuffix(e.Owner.User+":"+e.Owner.Group, ":"))
	case OpSetAside:
		return fmt.Sprintf("set aside what is at %s", e.Path)
	case OpLink:
		return fmt.Sprintf("link %s to %s", e.Path, e.Source)
	case OpBind:
		return fmt.Sprintf("bind %s to %s (%s)", e.Source, e.Path, e.Flags)
	case OpMountTmpfs:
		return fmt.Sprintf("mount tmpfs at %s, size %s, mode %s", e.Path, e.Size, octal(e.Mode))
	case OpSetFlags:
		return fmt.Sprintf("set mount flags of %s to %s", e.Path, e.Flags)
	}
	return string(c.Op) + " " + e.Path
}

func octal(m fs.FileMode) string {
	o := uint32(m.Perm())
	if m&fs.ModeSticky != 0 {
		o |= 0o1000
	}
	return fmt.Sprintf("%04o", o)
}

// tmpfsSize matches the values that the kernel accepts for size=. Others could inject further options.
var tmpfsSize = regexp.MustCompile(`^[0-9]{1,18}[kKmMgGtT%]?$`)

// Diff returns the changes, in order. It never removes or hides foreign data: a file in place of a directory is an
// error, and then it returns no changes.
func Diff(have State, want Desired) ([]Change, error) {
	var changes []Change
	var failed []error
	var fresh []string // mount points of earlier changes, which are empty
	paths := maps.Clone(have.Paths)
	for _, e := range want {
		if !filepath.IsAbs(e.Path) || e.Path != filepath.Clean(e.Path) {
			failed = append(failed, fmt.Errorf("%q is not a path that may be in the tree", e.Path))
			continue
		}
		if e.IfUser != "" {
			if _, there := have.Users[e.IfUser]; !there {
				continue
			}
		}
		uid, gid, err := have.ids(e)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		found := paths[e.Path]
		for _, f := range fresh {
			if strings.HasPrefix(e.Path, f+"/") {
				found = Found{}
			}
		}
		some, err := diffEntry(found, paths[e.Source], e, uid, gid)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		for _, c := range some {
			switch c.Op {
			case OpBind, OpMountTmpfs:
				fresh = append(fresh, e.Path)
			case OpMake:
				paths[e.Path] = createdState(e, uid, gid)
			}
		}
		changes = append(changes, some...)
	}
	if len(failed) > 0 {
		return nil, errors.Join(failed...)
	}
	return changes, nil
}

// createdState returns the state that creating an entry leaves. A later entry may have the same path.
func createdState(e Entry, uid, gid int) Found {
	f := Found{Exists: true, Mode: e.Mode, UID: max(uid, 0), GID: max(gid, 0)}
	if e.Kind != File {
		f.Type = fs.ModeDir
	}
	return f
}

func diffEntry(found, source Found, e Entry, uid, gid int) ([]Change, error) {
	change := func(op Op) Change { return Change{Op: op, Entry: e, UID: uid, GID: gid} }
	switch e.Kind {
	case Dir, File:
		wantType := fs.FileMode(0)
		if e.Kind == Dir {
			wantType = fs.ModeDir
		}
		switch {
		case !found.Exists:
			return []Change{change(OpMake)}, nil
		case found.Type != wantType && e.JobOwned:
			return nil, nil // see Warnings
		case found.Type != wantType:
			return nil, fmt.Errorf("%s is a %s, but another file type is expected there; move it away", e.Path,
				typeName(found.Type))
		case e.CreateOnly:
			return nil, nil
		}
		return permissions(found, e, uid, gid), nil
	case Existing:
		if !found.Exists {
			return nil, nil
		}
		return permissions(found, e, uid, gid), nil
	case Symlink:
		switch {
		case found.Exists && found.Type == fs.ModeSymlink && found.LinkTo == e.Source:
			return nil, nil
		case !found.Exists, found.Type == fs.ModeSymlink, found.Type == fs.ModeDir && found.Empty && !found.MountRoot:
			return []Change{change(OpLink)}, nil
		case found.MountRoot:
			return nil, fmt.Errorf("%s is a mount point, but a link is expected there; unmount it", e.Path)
		}
		return []Change{change(OpSetAside), change(OpLink)}, nil
	case Bind:
		// Mount over a foreign tmpfs, such as the system's own on /tmp. Another foreign volume stays and gets the
		// flags; Warnings reports it.
		switch {
		case !found.MountRoot, e.Source != e.Path && found.Tmpfs && !sameFile(found, source):
			return []Change{change(OpBind)}, nil
		case found.Flags&e.Flags != e.Flags:
			return []Change{change(OpSetFlags)}, nil
		}
		return nil, nil
	case Tmpfs:
		if !tmpfsSize.MatchString(e.Size) {
			return nil, fmt.Errorf("tmpfs at %s: size %q is not a number with an optional k, m, g, t or %%", e.Path,
				e.Size)
		}
		switch {
		case !found.Exists:
			return []Change{change(OpMake), change(OpMountTmpfs)}, nil
		case found.Type != fs.ModeDir:
			return nil, fmt.Errorf("%s is a %s, not a directory to mount on; move it away", e.Path,
				typeName(found.Type))
		case !found.MountRoot:
			return []Change{change(OpMountTmpfs)}, nil
		case !found.Tmpfs:
			return nil, nil // see Warnings
		}
		return permissions(found, e, uid, gid), nil
	case Mounted:
		if found.MountRoot && found.Flags&e.Flags != e.Flags {
			return []Change{change(OpSetFlags)}, nil
		}
		return nil, nil
	}
	return nil, fmt.Errorf("%s: unknown kind %d", e.Path, e.Kind)
}

// permissions returns the changes to set owner and mode.
func permissions(found Found, e Entry, uid, gid int) (changes []Change) {
	if uid >= 0 && uid != found.UID || gid >= 0 && gid != found.GID {
		changes = append(changes, Change{Op: OpSetOwner, Entry: e, UID: uid, GID: gid})
	}
	if found.Mode != e.Mode {
		changes = append(changes, Change{Op: OpSetMode, Entry: e, UID: -1, GID: -1})
	}
	return changes
}

// ids returns the uid and gid of an entry's owner, or -1 for no change.
func (s State) ids(e Entry) (uid, gid int, err error) {
	uid, gid = -1, -1
	for _, half := range []struct {
		name string
		in   map[string]int
		what string
		id   *int
	}{{e.Owner.User, s.Users, "user", &uid}, {e.Owner.Group, s.Groups, "group", &gid}} {
		if half.name == "" {
			continue
		}
		id, there := half.in[half.name]
		switch {
		case half.name == "root":
			*half.id = 0
		case there:
			*half.id = id
		case e.OrRoot:
			*half.id = 0
		default:
			return 0, 0, fmt.Errorf("%s: no %s %q on this machine", e.Path, half.what, half.name)
		}
	}
	return uid, gid, nil
}

// Warnings describes differences from the table that Diff does not change.
func Warnings(have State, want Desired) (texts []string) {
	for _, e := range want {
		found := have.Paths[e.Path]
		switch {
		case e.Kind == Bind && found.MountRoot && !found.Tmpfs && e.Source != e.Path &&
			!sameFile(found, have.Paths[e.Source]):
			texts = append(texts, fmt.Sprintf("something other than %s is mounted at %s; it is left alone",
				e.Source, e.Path))
		case e.Kind == Tmpfs && found.MountRoot && !found.Tmpfs:
			texts = append(texts, fmt.Sprintf("something other than a tmpfs is mounted at %s; it is left alone",
				e.Path))
		case e.JobOwned && found.Exists && found.Type != fs.ModeDir:
			texts = append(texts,
				fmt.Sprintf("%s is a %s, not a directory; it is left alone", e.Path, typeName(found.Type)))
		}
		if e.OrRoot {
			strict := e
			strict.OrRoot = false
			if _, _, err := have.ids(strict); err != nil {
				texts = append(texts, err.Error()+"; root owns it")
			}
		}
	}
	return texts
}

func sameFile(a, b Found) bool { return a.Exists && b.Exists && a.Dev == b.Dev && a.Ino == b.Ino }

func typeName(t fs.FileMode) string {
	switch t {
	case 0:
		return "file"
	case fs.ModeDir:
		return "directory"
	case fs.ModeSymlink:
		return "symbolic link"
	}
	return "special file"
}

// Select returns the entries of the named groups, in the table's order.
func Select(entries Desired, groups ...string) (selected Desired) {
	for _, e := range entries {
		for _, g := range groups {
			if e.Group == g {
				selected = append(selected, e)
				break
			}
		}
	}
	return selected
}
