package logs

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"cambium/internal/command"
	"cambium/internal/rootdir"
	"cambium/internal/tempfile"

	"golang.org/x/sys/unix"
)

// currentName is the agent's log file, which people look for. If it is missing, the journal is added under this name.
// If there is one from an earlier boot, the journal is added beside it as journalName.
const (
	currentName = "current"
	journalName = "journal.log"
)

// journalTimeout bounds the time to read the journal, which has at most some 100 MB.
const journalTimeout = 2 * time.Minute

// Journal writes the journal of the agent's unit since the machine's boot as text. It writes nothing on a machine
// without systemd.
func Journal(ctx context.Context, w io.Writer) error {
	program := command.Find("journalctl")
	if program == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, journalTimeout)
	defer cancel()
	_, err := command.Run(ctx, command.Cmd{Name: program, Stdout: w,
		Args: []string{
			"--boot",
			"--unit=bosh-agent.service",
			"--output=short-iso-precise",
			"--utc",
			"--quiet",
			"--no-pager",
		}})
	return err
}

// bootTime returns when the kernel started, according to the current clock.
func bootTime() (time.Time, error) {
	var since unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &since); err != nil {
		return time.Time{}, err
	}
	return time.Now().Add(-time.Duration(since.Nano())), nil
}

// writtenSince reports whether the source has a non-empty file that was written since a time, whatever the filters are.
// If not, current reports whether it has the agent's log file, which may be empty or old.
func (s source) writtenSince(ctx context.Context, since time.Time) (written, current bool, _ error) {
	root, linkRoot, err := s.open()
	if errors.Is(err, fs.ErrNotExist) {
		return false, current, nil
	}
	if err != nil {
		return false, current, err
	}
	defer closeRoots(root, linkRoot)
	err = rootdir.Walk(ctx, root, func(dir *os.Root, rel string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil // unreadable
		}
		file, err := s.openFile(root, linkRoot, dir, rel, entry)
		if err != nil {
			return nil
		}
		defer file.Close()
		current = current || rel == currentName
		if info, err := file.Stat(); err == nil && info.Size() > 0 && !info.ModTime().Before(since) {
			return errFound
		}
		return nil
	})
	if errors.Is(err, errFound) {
		return true, current, nil
	}
	return false, current, err
}

// errFound ends a walk.
var errFound = errors.New("found")

// journal adds the agent's journal if the log directory has nothing of this boot: the stemcell has no log daemon, or
// the daemon has not started yet. It writes the journal to a temporary file first, because tar needs the size before
// the content.
func (p *packing) journal(s source) error {
	if p.c.Journal == nil {
		return nil
	}
	booted, err := bootTime()
	if err != nil {
		return p.skip(journalName, err)
	}
	written, current, err := s.writtenSince(p.ctx, booted)
	if err != nil {
		return p.skip(currentName, err)
	}
	if written {
		return nil
	}
	name := currentName
	if current {
		name = journalName
	}
	if matched, err := matches(p.ctx, p.globs, name); err != nil || !matched {
		return err
	}
	file, err := tempfile.Unnamed(p.c.Dirs.Tmp())
	if err != nil {
		return p.skip(name, err)
	}
	defer file.Close()
	bounded, err := tempfile.NewWriter(file)
	if err == nil {
		err = p.c.Journal(p.ctx, bounded)
	}
	size := int64(0)
	if err == nil {
		size, err = file.Seek(0, io.SeekCurrent)
	}
	if err != nil {
		return p.skip(name, err)
	}
	if size == 0 {
		return nil
	}
	return p.file(file, name)
}

func closeRoots(roots ...*os.Root) {
	for _, r := range roots {
		if r != nil {
			_ = r.Close()
		}
	}
}
