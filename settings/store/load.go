package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"cambium/internal/atomicfile"
	"cambium/internal/vcap"
	"cambium/settings"
)

// ErrNoSettings is returned, together with the cause, if the sources failed and there is no cached copy. The caller
// tries again.
var ErrNoSettings = errors.New("no settings")

// Load fetches settings from the sources and puts them in force. If that fails, or the document is invalid, the cached
// settings stay in force; without them, Load fails. Settings that cannot be cached are in force, but their source is
// not cleared.
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
			c.options.Log.WithField("source", fetched.From).
				WithError(err).
				Warn("cannot clear the source after its settings were cached")
		}
	}
	return loaded, nil
}

// Refresh loads the settings like Load, for callers that do not need to know where they came from.
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
	var sources interface{ Spent() bool }
	expected := errors.As(why, &sources) && sources.Spent()
	if expected {
		c.options.Log.WithError(why).Info("using the cached settings")
	} else {
		c.options.Log.WithError(why).Warn("sources failed; using the cached settings")
	}
	c.replace(func(s *state) {
		s.last.Cached, s.last.Why, s.last.Spent = true, why, expected
		if s.last.NotCached == nil {
			s.last.From = "cached " + s.place.Settings()
		}
	})
	return c.Last(), nil
}

// accept caches the document and puts it in force.
func (c *Current) accept(ctx context.Context, next settings.Settings, loaded Loaded) (Loaded, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	now := c.state.Load()
	if known := now.settings.AgentID; now.present && known != next.AgentID {
		if c.fetched {
			return Loaded{}, fmt.Errorf("%s is for another agent id; an agent keeps its identity while it runs",
				loaded.From)
		}
		loaded.Foreign = known
		c.options.Log.WithField("path", now.place).
			Warn("the state found here belongs to another agent id; setting it aside")
		if err := c.setAside(known); err != nil && !c.disk.readOnly {
			loaded.NotCached = fmt.Errorf("set aside the state of another agent id: %w", err)
		}
	}
	change := func(s *state) {
		if loaded.Foreign != "" {
			*s = state{place: s.place}
		}
		s.present, s.settings = true, next
		s.effective = settings.Merge(next, s.update)
	}
	trial := *now
	change(&trial)
	place := vcap.Place(c.dirs.Bosh())
	if next.Env.Bosh.Agent.Settings.Tmpfs {
		place = vcap.Place(c.dirs.SettingsTmpfs())
	}
	loaded.Wrote = c.outdated(place.Settings(), next)
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
	// A refresh precedes each disk action and must not repeat the warnings of the boot.
	if text := loaded.Report.String(); text != now.last.Report.String() {
		for _, e := range loaded.Report.Entries {
			c.options.Log.WithField("warning", e.String()).Warn("settings: warning")
		}
	}
	return loaded, nil
}

// outdated returns the path if the cached copy there differs from the document, otherwise "".
func (c *Current) outdated(path string, s settings.Settings) string {
	if have, err := readLimited(path); err == nil && bytes.Equal(have, s.Encode().Reveal()) {
		return ""
	}
	return path
}

// keepOff returns an error if files with secrets may not be written: the settings ask for a tmpfs, but it is not
// mounted.
func (c *Current) keepOff(s *state) error {
	if !c.disk.readOnly && s.settings.Env.Bosh.Agent.Settings.Tmpfs && s.place != vcap.Place(c.dirs.SettingsTmpfs()) {
		return errors.New("settings ask for a tmpfs, which could not be mounted")
	}
	return nil
}

// cache writes settings.json. If the directory changes, it writes the other files, too, and settings.json last: the
// directory that contains it is the one in use.
func (c *Current) cache(ctx context.Context, s state, place vcap.Place) error {
	if tmpfs := c.dirs.SettingsTmpfs(); place == vcap.Place(tmpfs) {
		if err := c.disk.mkdir(tmpfs); err != nil {
			return err
		}
		if c.options.MountTmpfs == nil {
			return errors.New("settings ask for a tmpfs, which is not available here")
		}
		if err := c.options.MountTmpfs(ctx, tmpfs); err != nil {
			return fmt.Errorf("mount settings tmpfs: %w", err)
		}
	}
	if place != s.place || !atomicfile.Exists(place.Settings()) {
		if err := c.writeUpdate(place, s.update); err != nil {
			return err
		}
		if err := c.writeHints(place, s.hints); err != nil {
			return err
		}
	}
	if err := c.disk.write(place.Settings(), s.settings.Encode().Reveal()); err != nil {
		return err
	}
	for _, other := range c.dirs.Places() {
		if other == place {
			continue
		}
		if err := c.empty(other); err != nil {
			return err
		}
	}
	return nil
}
