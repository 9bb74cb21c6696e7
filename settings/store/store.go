// Package store holds the settings in force and persists them. It fetches them from the sources, caches the result,
// falls back to the cache if the sources fail, and merges updates. The files have the paths and formats of
// cloudfoundry/bosh-agent, so that either agent can replace the other.
//
// All files have mode 0600 and are replaced atomically and durably; the previous generation is kept. A damaged file is
// replaced by its previous generation, with a warning, and never prevents a start. If the settings ask for it, files
// with secrets are kept on a tmpfs only.
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

// Fetched is a document fetched from the sources.
type Fetched struct {
	Raw  secret.JSON
	From string // the source, such as "HTTP http://169.254.169.254/latest/user-data"
	// Clear, if not nil, is called once the document is durably cached. It ejects or erases a source that must be read
	// only once.
	Clear func(context.Context) error
}

// Options configures a Current. Fetch may be nil if only the cache is used or SetFetch is called, and MountTmpfs if
// there is no tmpfs.
type Options struct {
	// Fetch fetches the settings from the sources. A failure is expected if its method Spent returns true.
	Fetch func(context.Context) (Fetched, error)
	// MountTmpfs mounts a tmpfs at path unless one is mounted.
	MountTmpfs func(ctx context.Context, path string) error
	// ReadOnly prevents all writes. Loaded settings are then in force only in memory.
	ReadOnly bool
	Log      *logrus.Entry
}

// Loaded describes where the settings in force came from.
type Loaded struct {
	// From is the source, or the file of the cached copy.
	From string
	// Cached is set if the sources failed and the cached copy is used. Why is their error.
	Cached bool
	Why    error
	// Spent is set if that failure was expected: the source was cleared when its settings were cached.
	Spent bool
	// NotCached is the error of caching the document, which is in force nevertheless.
	NotCached error
	// Wrote is the path of the cached copy if it was out of date and was written, or would have been without ReadOnly.
	Wrote string
	// Foreign is the other agent id whose state was set aside, or "".
	Foreign string
	// Report holds the warnings about the document.
	Report report.Report
}

// state is an immutable snapshot. A change replaces it as a whole.
type state struct {
	present   bool // settings were loaded or cached
	place     vcap.Place
	settings  settings.Settings
	update    settings.Update
	effective settings.Effective
	hints     map[string]settings.PersistentDisk
	mounted   string
	// mountedDamaged is the error of reading the record of the mounted disk, or nil.
	mountedDamaged error
	hosts          bool
	last           Loaded
}

// Current holds the settings in force. All methods are safe for concurrent use; readers never wait for a writer or a
// source.
type Current struct {
	dirs    vcap.Dirs
	options Options
	disk    disk
	loading chan struct{} // held during Fetch
	writing sync.Mutex    // held while files change; guards the replacement of state
	state   atomic.Pointer[state]
	fetched bool // a source has answered in this process; guarded by writing
}

// Open reads the existing files. It sets damaged files aside with a warning, and fails only if the directory cannot be
// created.
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

// SetFetch sets Options.Fetch before the first Load, for sources that need the Current themselves: they check documents
// with it, and whether there is a cached copy.
func (c *Current) SetFetch(fetch func(context.Context) (Fetched, error)) { c.options.Fetch = fetch }

// moving lists the files that move together if the settings move to or from the tmpfs.
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
	// prepare_configure_networks removes settings.json, but the other files still count, and those on the tmpfs are
	// never older. If settings.json is on the tmpfs, the others were moved there before it, so files on the disk are
	// left over.
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

// first returns the file from the first directory with a valid one.
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

// salvage reads a file and, if it is damaged, repairs it as far as possible. It returns what could be read in any case.
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

// clean removes the files that an interrupted move left in the directories not in use.
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

// empty removes the settings files from a directory, settings.json first: without it the directory is not in use.
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

// Check returns an error if a source's document is invalid or has no agent id.
func (c *Current) Check(raw []byte) error {
	_, rep := settings.Decode("settings", secret.NewJSON(raw))
	return rep.Err()
}

// Present reports whether any settings were loaded or cached.
func (c *Current) Present() bool { return c.state.Load().present }

// Effective returns the settings in force. All callers share them: slices, maps and pointers must not be modified.
func (c *Current) Effective() settings.Effective { return c.state.Load().effective }

// Last describes where the settings in force came from.
func (c *Current) Last() Loaded { return c.state.Load().last }

// Place returns the directory of the settings files, on the disk or on the tmpfs.
func (c *Current) Place() vcap.Place { return c.state.Load().place }

// replace puts a changed copy of the state in force. The caller holds writing.
func (c *Current) replace(change func(*state)) {
	next := *c.state.Load()
	change(&next)
	c.state.Store(&next)
}
