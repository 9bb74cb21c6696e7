package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"cambium/internal/atomicfile"
	"cambium/internal/vcap"
	"cambium/settings"
)

// ErrNoSettings means that the sources failed and there is no cached copy either. The caller
// asks again; the cause is wrapped beside it.
var ErrNoSettings = errors.New("no settings")

// Spent marks an expected failure of the sources: they were cleared once their settings had been
// cached, so that only the first start can read them.
func Spent(err error) error { return spent{err} }

type spent struct{ error }

func (s spent) Unwrap() error { return s.error }

// Load asks the sources and puts their answer in force. When they fail, or their document cannot be
// used, the cached one stays in force and Loaded says so. It is an error if there is neither. A
// document that cannot be cached is in force nevertheless, but then its source is not cleared.
func (c *Current) Load(ctx context.Context) (Loaded, error) {
	select {
	case c.loading <- struct{}{}:
		defer func() { <-c.loading }()
	case <-ctx.Done():
		return c.Last(), ctx.Err()
	}
	if c.options.Fetch == nil {
		return c.fallBack(errors.New("no source is configured"))
	}
	fetched, err := c.options.Fetch(ctx)
	if err != nil {
		return c.fallBack(err)
	}
	next, rep := settings.Decode(fetched.From, fetched.Raw)
	if err := rep.Err(); err != nil {
		return c.fallBack(err)
	}
	loaded, err := c.accept(ctx, next, Loaded{From: fetched.From, Report: rep})
	if err != nil {
		return c.fallBack(err)
	}
	if loaded.NotCached == nil && fetched.Clear != nil && !c.disk.readOnly {
		if err := c.clearSource(ctx, fetched); err != nil {
			c.options.Log.WithField("source", fetched.From).WithError(err).Warn("cannot clear the source after its settings were cached")
		}
	}
	return loaded, nil
}

// Refresh is Load for callers that use the settings in force, whatever they came from.
func (c *Current) Refresh(ctx context.Context) error {
	_, err := c.Load(ctx)
	return err
}

func (c *Current) clearSource(ctx context.Context, f Fetched) error {
	if err := c.disk.begin("settle", f.From); err != nil {
		return err
	}
	return f.Clear(ctx)
}

func (c *Current) fallBack(why error) (Loaded, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if !c.state.Load().present {
		return Loaded{Cached: true, Why: why}, fmt.Errorf("%w: %w", ErrNoSettings, why)
	}
	_, expected := errors.AsType[spent](why)
	if expected {
		c.options.Log.WithError(why).Info("the cached settings are used")
	} else {
		c.options.Log.WithError(why).Warn("sources failed; the cached settings are used")
	}
	c.replace(func(s *state) {
		s.last.Cached, s.last.Why, s.last.Spent = true, why, expected
		if s.last.NotCached == nil {
			s.last.From = "cached " + filepath.Join(s.place, vcap.SettingsFile)
		}
	})
	return c.Last(), nil
}

// accept writes the document and puts it in force.
func (c *Current) accept(ctx context.Context, next settings.Settings, loaded Loaded) (Loaded, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	now := c.state.Load()
	if known := now.settings.AgentID; now.present && known != next.AgentID {
		if c.fetched {
			return Loaded{}, fmt.Errorf("%s is for another agent id; an agent keeps its identity while it runs", loaded.From)
		}
		loaded.Foreign = known
		c.options.Log.WithField("path", now.place).Warn("the state found here belongs to another agent id; it is set aside")
		if err := c.setAside(now, known); err != nil {
			loaded.NotCached = fmt.Errorf("set aside the state of another agent id: %w", err)
		}
	}
	change := func(s *state) {
		if loaded.Foreign != "" {
			*s = state{place: s.place, version: s.version + 1}
		}
		s.present, s.settings = true, next
		s.effective = settings.Merge(next, s.update)
	}
	trial := *now
	change(&trial)
	place := c.dirs.Bosh()
	if next.Env.Bosh.SettingsTmpfs {
		place = c.dirs.SettingsTmpfs()
	}
	loaded.Wrote = c.outdated(filepath.Join(place, vcap.SettingsFile), next)
	if loaded.NotCached == nil && !c.disk.readOnly {
		loaded.NotCached = c.cache(ctx, trial, place)
	}
	if loaded.NotCached != nil {
		loaded.Wrote = ""
		c.options.Log.WithError(loaded.NotCached).Error("settings are in force but could not be cached")
	}
	c.fetched = true
	c.replace(func(s *state) {
		change(s)
		if loaded.NotCached == nil {
			s.place = place
		}
		s.last = loaded
	})
	// A refresh before each disk action must not repeat the warnings of the boot.
	if text := loaded.Report.String(); text != now.last.Report.String() {
		for _, e := range loaded.Report.Entries {
			c.options.Log.WithField("warning", e.String()).Warn("settings: warning")
		}
	}
	return loaded, nil
}

// outdated returns the path of the cached copy if it is not this document.
func (c *Current) outdated(path string, s settings.Settings) string {
	if have, err := readLimited(path); err == nil && bytes.Equal(have, s.Encode().Reveal()) {
		return ""
	}
	return path
}

// keepOff returns why records with secrets may not be written to the state's place: the settings
// ask for a tmpfs, and there is none.
func (c *Current) keepOff(s *state) error {
	if !c.disk.readOnly && s.settings.Env.Bosh.SettingsTmpfs && s.place != c.dirs.SettingsTmpfs() {
		return errors.New("settings ask for a tmpfs, which could not be mounted")
	}
	return nil
}

// cache writes settings.json, and the other files too when they move to another place. In the
// new place settings.json comes last, because its presence says that the place counts.
func (c *Current) cache(ctx context.Context, s state, place string) error {
	if place == c.dirs.SettingsTmpfs() {
		if err := c.disk.mkdir(place); err != nil {
			return err
		}
		if c.options.MountTmpfs == nil {
			return errors.New("settings ask for a tmpfs, which is not available here")
		}
		if err := c.options.MountTmpfs(ctx, place); err != nil {
			return fmt.Errorf("mount settings tmpfs: %w", err)
		}
	}
	if place != s.place || !exists(filepath.Join(place, vcap.SettingsFile)) {
		if err := c.writeUpdate(place, s.update); err != nil {
			return err
		}
		if err := c.writeHints(place, s.hints); err != nil {
			return err
		}
	}
	if err := c.disk.write(filepath.Join(place, vcap.SettingsFile), s.settings.Encode().Reveal()); err != nil {
		return err
	}
	for _, other := range c.places() {
		if other == place {
			continue
		}
		if err := c.empty(other); err != nil {
			return err
		}
	}
	return nil
}

// setAside moves everything that another agent id left to a directory of its own. Its settings.json
// is moved last, so that the next start notices an interrupted move and continues it.
func (c *Current) setAside(s *state, owner string) error {
	paths := []string{c.dirs.ManagedDiskSettings(), c.dirs.AgentState(), c.dirs.Spec(), c.dirs.Tasks()}
	for _, place := range c.places() {
		for _, name := range append([]string{vcap.UpdateSettingsFile, vcap.DiskHintsFile}, c.options.Others...) {
			paths = append(paths, filepath.Join(place, name))
		}
		if place != s.place {
			paths = append(paths, filepath.Join(place, vcap.SettingsFile))
		}
	}
	for _, path := range append(paths, filepath.Join(s.place, vcap.SettingsFile)) {
		// Beside the file, because what is on a tmpfs must not get to the disk.
		aside := filepath.Join(filepath.Dir(path), "foreign", fileName(owner))
		for _, p := range []string{path + atomicfile.PreviousSuffix, path} {
			if !exists(p) {
				continue
			}
			if err := c.disk.mkdir(aside); err != nil {
				return err
			}
			if err := c.disk.move(p, filepath.Join(aside, filepath.Base(p))); err != nil {
				return err
			}
		}
	}
	return nil
}

// fileName makes a directory name of an agent id, which is any string.
func fileName(id string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '_'
	}, id)
	return clean[:min(len(clean), 128)]
}
