// Package store keeps what must survive a restart, in the files and shapes of
// cloudfoundry/bosh-agent so that either agent can take over from the other, and holds the
// settings in force: it asks the sources, caches what they say, serves the cache when they
// fail, and merges updates.
//
// All files are 0600, replaced atomically and durably, with the previous generation beside them. A
// damaged file is replaced by its previous generation, with a warning; it never keeps the agent
// from starting. Where the settings ask for it, the files with secrets live on a tmpfs and nowhere
// else.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"

	"cambium/internal/atomicfile"
	"cambium/internal/report"
	"cambium/internal/secret"
	"cambium/internal/vcap"
	"cambium/settings"
)

// Fetched is the result of asking the sources.
type Fetched struct {
	Raw  secret.JSON
	From string // the source, such as "HTTP http://169.254.169.254/latest/user-data"
	// Clear, if not nil, is called once the document is durably cached: it ejects or erases a
	// source that can be read only once.
	Clear func(context.Context) error
}

// Options of a store. Fetch may be nil where only the cache is wanted or FetchFrom is called,
// MountTmpfs where no tmpfs is.
type Options struct {
	// Fetch asks the sources.
	Fetch func(context.Context) (Fetched, error)
	// MountTmpfs makes the directory at path a tmpfs unless it is one.
	MountTmpfs func(ctx context.Context, path string) error
	// ReadOnly writes no file; settings are then in force in memory only.
	ReadOnly bool
	Log      *logrus.Entry
}

// Loaded says how the settings in force came about.
type Loaded struct {
	// From names the document: its source, or the file of the cached copy.
	From string
	// Cached is true when the sources failed and the cached copy serves; Why is their failure.
	Cached bool
	Why    error
	// Spent is true when that was to be expected: the sources were cleared when the copy was made.
	Spent bool
	// NotCached is the error of writing the document, which is in force all the same.
	NotCached error
	// Wrote is the file of the cached copy if the document was written to it, or would be by a store
	// that is not read-only; empty if the copy was the same before.
	Wrote string
	// Foreign is the agent id whose state was found and set aside.
	Foreign string
	// Report holds the warnings about the document.
	Report report.Report
}

// state is one consistent view; it is replaced as a whole and never changed.
type state struct {
	present   bool // there are settings
	place     vcap.Place
	settings  settings.Settings
	update    settings.Update
	effective settings.Effective
	hints     map[string]settings.PersistentDisk
	mounted   string
	// mountedDamaged is the error of reading the record of the mounted disk; nil if it is known which disk was
	// mounted.
	mountedDamaged error
	hosts          bool
	last           Loaded
	// version counts changes of update, for Preview and Commit.
	version int
}

// Current is the settings in force. All methods may be called at any time from any goroutine;
// readers never wait for a writer or a source.
type Current struct {
	dirs    vcap.Dirs
	options Options
	disk    disk
	loading chan struct{} // held while a source is asked
	writing sync.Mutex    // held while files change; guards the replacement of state
	state   atomic.Pointer[state]
	fetched bool // a source has answered in this process; guarded by writing
}

// Open reads the existing files. It fails only when the directory cannot be made; damaged files are
// set aside with a warning.
func Open(dirs vcap.Dirs, o Options) (*Current, error) { return open(dirs, o, nil) }

func open(dirs vcap.Dirs, o Options, step func(string)) (*Current, error) {
	if o.Log == nil {
		quiet := logrus.New()
		quiet.SetOutput(io.Discard)
		o.Log = logrus.NewEntry(quiet)
	}
	c := &Current{dirs: dirs, options: o, disk: disk{readOnly: o.ReadOnly, step: step}, loading: make(chan struct{}, 1)}
	if !o.ReadOnly {
		if err := c.disk.mkdir(dirs.Bosh()); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
		for _, place := range dirs.Places() {
			if err := atomicfile.Sweep(string(place)); err != nil {
				o.Log.WithField("path", place).WithError(err).Warn("cannot remove temporary files of an earlier run")
			}
		}
	}
	s := &state{place: vcap.Place(dirs.Bosh())}
	c.restore(s)
	c.state.Store(s)
	return c, nil
}

// FetchFrom sets how Load asks the sources. It is called before the first Load, where the sources
// ask the store in turn: what it accepts, and whether it has a copy.
func (c *Current) FetchFrom(fetch func(context.Context) (Fetched, error)) { c.options.Fetch = fetch }

// moving are the files that move from one place to the other with the settings.
var moving = []func(vcap.Place) string{vcap.Place.UpdateSettings, vcap.Place.DiskHints, vcap.Place.Settings}

// restore reads all files into s.
func (c *Current) restore(s *state) {
	if data, place := c.first(c.dirs.Places(), vcap.Place.Settings, c.Check); data != nil {
		from := "cached " + place.Settings()
		var rep report.Report
		s.settings, rep = settings.Decode(from, secret.NewJSON(data))
		s.present, s.place = true, place
		s.last = Loaded{From: from, Cached: true, Report: rep}
	}
	// Without settings.json, which prepare_configure_networks removes, the others still count, and
	// those on the tmpfs are never older. Where settings.json is on the tmpfs, they were put there
	// before it, so what the disk has is left over.
	order := c.dirs.Places()
	if s.present && s.place == order[0] {
		order = order[:1]
	}
	var from vcap.Place
	if data, place := c.first(order, vcap.Place.UpdateSettings, acceptUpdate); data != nil {
		s.update, _ = settings.DecodeUpdate(settings.UpdateName, secret.NewJSON(data))
		from = place
	}
	if data, place := c.first(order, vcap.Place.DiskHints, acceptHints); data != nil {
		s.hints, _ = settings.DecodeHints(secret.NewJSON(data))
		from = place
	}
	if !s.present && from != "" {
		s.place = from
	}
	s.mounted, s.mountedDamaged = c.readManagedCID()
	s.hosts = c.hostsConfigured()
	s.effective = settings.Merge(s.settings, s.update)
	if s.present && !c.disk.readOnly {
		if err := errors.Join(c.writeUpdate(s.place, s.update), c.writeHints(s.place, s.hints)); err != nil {
			c.options.Log.WithError(err).Warn("cannot move settings files to one directory")
			return
		}
		c.clean(s.place)
	}
}

// first returns the file from the first place that has a good one.
func (c *Current) first(in []vcap.Place, path func(vcap.Place) string, accept func([]byte) error) ([]byte, vcap.Place) {
	for _, place := range in {
		if data := c.salvage(path(place), accept); data != nil {
			return data, place
		}
	}
	return nil, ""
}

func acceptUpdate(data []byte) error {
	_, rep := settings.DecodeUpdate(settings.UpdateName, secret.NewJSON(data))
	return rep.Err()
}

func acceptHints(data []byte) error {
	_, rep := settings.DecodeHints(secret.NewJSON(data))
	return rep.Err()
}

// salvage reads a file and repairs it when it is damaged. Repair is best effort: what could be
// read is used either way.
func (c *Current) salvage(path string, accept func([]byte) error) []byte {
	f := read(path, accept)
	if f.damaged == nil {
		if err := c.disk.tighten(path); err != nil {
			c.options.Log.WithField("path", path).WithError(err).Warn("cannot restrict the mode of a file to 0600")
		}
		return f.data
	}
	log := c.options.Log.WithFields(logrus.Fields{"path": path, "error": f.damaged.Error()})
	if f.data != nil {
		log.Warn("file is damaged; using its previous generation")
	} else {
		log.Warn("file is damaged and has no valid previous generation; setting it aside")
	}
	if c.disk.readOnly {
		return f.data
	}
	if err := c.disk.repair(path, f); err != nil {
		c.options.Log.WithField("path", path).WithError(err).Warn("cannot repair file")
	}
	return f.data
}

// clean removes what a crash in the middle of a move left in the places that are not in use.
func (c *Current) clean(place vcap.Place) {
	for _, other := range c.dirs.Places() {
		if other == place {
			continue
		}
		if err := c.empty(other); err != nil {
			c.options.Log.WithField("path", other).WithError(err).Warn("cannot remove old copies of settings")
		}
	}
}

// empty removes the settings files from a place, settings.json first: without it the place
// does not count any more.
func (c *Current) empty(place vcap.Place) error {
	for i := len(moving) - 1; i >= 0; i-- {
		path := moving[i](place)
		if err := c.disk.remove(path); err != nil {
			return err
		}
		for _, evidence := range []string{path + corruptSuffix, path + atomicfile.PreviousSuffix + corruptSuffix} {
			if err := c.disk.remove(evidence); err != nil {
				return err
			}
		}
	}
	return nil
}

// Check reports whether a source's document can be accepted: it parses and has an agent id.
func (c *Current) Check(raw []byte) error {
	_, rep := settings.Decode("settings", secret.NewJSON(raw))
	return rep.Err()
}

// Present reports whether there are settings, loaded or cached.
func (c *Current) Present() bool { return c.state.Load().present }

// Effective returns the settings in force. The copy is the caller's own.
func (c *Current) Effective() settings.Effective { return c.state.Load().effective.Clone() }

// Last says how the settings in force came about.
func (c *Current) Last() Loaded { return c.state.Load().last }

// Place is the directory that holds the settings files: on the disk or on the tmpfs.
func (c *Current) Place() vcap.Place { return c.state.Load().place }

// replace makes a changed copy of the state current. The caller holds writing.
func (c *Current) replace(change func(*state)) {
	next := *c.state.Load()
	change(&next)
	c.state.Store(&next)
}
