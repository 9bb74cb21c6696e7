package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"cambium/internal/atomicfile"
	"cambium/internal/vcap"
	"cambium/settings"
)

// Pending is an uncommitted update, with the settings that result from it. The caller can try a new bus before it
// commits.
type Pending struct {
	Effective settings.Effective

	current *Current
	update  settings.Update
}

// Preview computes the result of an update and changes nothing. The caller serializes updates: a Commit overwrites any
// other one since its Preview.
func (c *Current) Preview(u settings.Update) *Pending {
	s := c.state.Load()
	next := s.update.Apply(u)
	return &Pending{Effective: settings.Merge(s.settings, next), current: c, update: next}
}

// Commit persists and applies the update. It keeps settings that were loaded since the Preview.
func (p *Pending) Commit(ctx context.Context) error {
	c := p.current
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	s := c.state.Load()
	err := c.keepOff(s)
	if err == nil {
		err = c.writeUpdate(s.place, p.update)
	}
	if err != nil {
		return fmt.Errorf("save update_settings: %w", err)
	}
	c.replace(func(s *state) {
		s.update = p.update
		s.effective = settings.Merge(s.settings, p.update)
	})
	return nil
}

// writeUpdate writes update_settings.json. It creates no file for an empty update.
func (c *Current) writeUpdate(place vcap.Place, u settings.Update) error {
	path := place.UpdateSettings()
	if u.Blank() && !atomicfile.Exists(path) {
		return nil
	}
	return c.disk.write(path, u.Encode().Reveal())
}

// Disks returns all known persistent disks by CID, in a map of the caller's own. Those of add_persistent_disk replace
// those of the settings.
func (c *Current) Disks() map[string]settings.PersistentDisk {
	s := c.state.Load()
	return s.settings.PersistentDisks(s.hints)
}

// PutHint records a disk from add_persistent_disk, with the current env values.
func (c *Current) PutHint(cid string, h settings.DiskHint) error {
	if cid == "" {
		return errors.New("record disk: its CID is empty")
	}
	return c.changeHints(func(s *state, hints map[string]settings.PersistentDisk) {
		hints[cid] = s.settings.Disk(cid, h)
	})
}

// RemoveHint removes the record of a disk, if any.
func (c *Current) RemoveHint(cid string) error {
	return c.changeHints(func(_ *state, hints map[string]settings.PersistentDisk) { delete(hints, cid) })
}

func (c *Current) changeHints(change func(*state, map[string]settings.PersistentDisk)) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	s := c.state.Load()
	hints := map[string]settings.PersistentDisk{}
	maps.Copy(hints, s.hints)
	change(s, hints)
	err := c.keepOff(s)
	if err == nil {
		err = c.writeHints(s.place, hints)
	}
	if err != nil {
		return fmt.Errorf("record disks: %w", err)
	}
	c.replace(func(s *state) { s.hints = hints })
	return nil
}

func (c *Current) writeHints(place vcap.Place, hints map[string]settings.PersistentDisk) error {
	path := place.DiskHints()
	if len(hints) == 0 && !atomicfile.Exists(path) {
		return nil
	}
	return c.disk.write(path, settings.EncodeHints(hints).Reveal())
}

// ManagedCID returns the CID of the disk last mounted on the store directory, or "". A damaged record is an error: its
// previous generation names another disk.
func (c *Current) ManagedCID() (string, error) {
	s := c.state.Load()
	return s.mounted, s.mountedDamaged
}

// readManagedCID reads the bare CID, as cloudfoundry/bosh-agent writes it, too. After a power cut that agent's file may
// be empty or contain zeros.
func (c *Current) readManagedCID() (string, error) {
	path := c.dirs.ManagedDiskSettings()
	data, err := readLimited(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	cid := strings.TrimSpace(string(data))
	if err == nil && (cid == "" || !utf8.ValidString(cid) || strings.ContainsFunc(cid, unicode.IsControl)) {
		err = errors.New("it contains no CID")
	}
	if err != nil {
		return "", fmt.Errorf(
			"%s is damaged (%w): run mount_disk, or agent disk accept CID --yes for the disk that belongs on the store",
			path, err)
	}
	if err := c.disk.tighten(path); err != nil {
		c.options.Log.WithField("path", path).WithError(err).Warn("cannot restrict the mode of a file to 0600")
	}
	return cid, nil
}

// SetManagedCID records the CID of the disk mounted on the store directory.
func (c *Current) SetManagedCID(cid string) error {
	if cid == "" {
		return c.ClearManagedCID()
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.disk.write(c.dirs.ManagedDiskSettings(), []byte(cid)); err != nil {
		return fmt.Errorf("record mounted disk: %w", err)
	}
	c.replace(func(s *state) { s.mounted, s.mountedDamaged = cid, nil })
	return nil
}

// ClearManagedCID records that no persistent disk is in use.
func (c *Current) ClearManagedCID() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.disk.remove(c.dirs.ManagedDiskSettings()); err != nil {
		return fmt.Errorf("clear record of mounted disk: %w", err)
	}
	c.replace(func(s *state) { s.mounted, s.mountedDamaged = "", nil })
	return nil
}

// HostsConfigured reports whether the host name and the hosts file were written for this agent id.
func (c *Current) HostsConfigured() bool { return c.state.Load().hosts }

// SetHostsConfigured records in agent_state.json, which upstream reads, that the host name and the hosts file were
// written.
func (c *Current) SetHostsConfigured() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	members := map[string]json.RawMessage{}
	if data, err := readLimited(c.dirs.AgentState()); err == nil {
		// Other members are kept, unless the file is unreadable.
		_ = json.Unmarshal(data, &members)
	}
	linux := map[string]json.RawMessage{}
	_ = json.Unmarshal(members["Linux"], &linux)
	if members == nil {
		members = map[string]json.RawMessage{}
	}
	if linux == nil {
		linux = map[string]json.RawMessage{}
	}
	linux["hosts_configured"] = json.RawMessage("true")
	var err error
	if members["Linux"], err = json.Marshal(linux); err != nil {
		return fmt.Errorf("encode agent_state.json: %w", err)
	}
	data, err := json.Marshal(members)
	if err != nil {
		return fmt.Errorf("encode agent_state.json: %w", err)
	}
	if err := c.disk.write(c.dirs.AgentState(), data); err != nil {
		return fmt.Errorf("record agent state: %w", err)
	}
	c.replace(func(s *state) { s.hosts = true })
	return nil
}

func (c *Current) hostsConfigured() bool {
	var agentState struct {
		Linux struct {
			HostsConfigured bool `json:"hosts_configured"`
		}
	}
	path := c.dirs.AgentState()
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return false
	}
	data := c.salvage(path, func(d []byte) error {
		if !json.Valid(bytes.TrimSpace(d)) {
			return errors.New("not JSON")
		}
		return nil
	})
	if json.Unmarshal(data, &agentState) != nil {
		return false
	}
	return agentState.Linux.HostsConfigured
}
