// Package storage manages disks, from a CPI's hint to a mounted directory: ephemeral disks (ephemeral), persistent disks (persistent)
// and the migration from one to another (migration). What to do is decided by pure functions (decide); the other packages observe and
// act, and keep the records that let every sequence resume after a crash. Here they are put together.
package storage

import (
	"context"

	"github.com/sirupsen/logrus"

	"cambium/internal/vcap"
	"cambium/settings"
	"cambium/storage/decide"
	"cambium/storage/ephemeral"
	"cambium/storage/internal/machine"
	"cambium/storage/migration"
	"cambium/storage/persistent"
)

// Options are the stemcell's; see agent.json.
type Options struct {
	UsePreformattedPersistentDisk    bool
	BindMountPersistentDisk          bool
	CreatePartitionIfNoEphemeralDisk bool
	SkipDiskSetup                    bool
	PartitionerType                  string
	// MissingEphemeralDisk is "fail" (or empty) or "root": what to do about an ephemeral disk
	// that the CPI named and that never appears.
	MissingEphemeralDisk string
	// ForeignPersistentDisk says what to do with a persistent disk that carries something which is not ours: "refuse"
	// (or empty) or "format". BlankDisks says what a blank one reads as: "zeros" (or empty), or also "noise". The
	// deployment's env wins over both.
	ForeignPersistentDisk, BlankDisks string
	// ManagedVolumes is set when raw ephemeral NVMe disks are found by exclusion.
	ManagedVolumes bool
}

// Names that callers use.
type (
	Change            = decide.Change
	Ephemeral         = ephemeral.Disks
	Persistent        = persistent.Disks
	Migration         = migration.Migration
	MigrationProgress = migration.Progress
	KnownDisks        = persistent.KnownDisks
	Resolver          = ephemeral.Resolver // *device.Resolver is one
)

// Settings gives access to the settings in force; *store.Current implements it.
type Settings interface {
	// Refresh reads the settings from their source again; hints of some CPIs come that way.
	Refresh(ctx context.Context) error
	Effective() settings.Effective
}

type noSettings struct{}

func (noSettings) Refresh(context.Context) error { return nil }
func (noSettings) Effective() settings.Effective { return settings.Effective{} }

// Config holds the parameters of New.
type Config struct {
	Dirs     vcap.Dirs
	Options  Options
	Resolver Resolver
	Known    KnownDisks
	// Settings, if set, are those in force.
	Settings Settings
	// Progress, if set, is called with the progress of a migration, and with the zero value at its
	// end.
	Progress func(MigrationProgress)
	// Change, if set, is called with each change of a disk before it is made; what it returns, after that.
	Change func(ctx context.Context, what string) (made func())
	// WorkProgress, if set, is called with the progress of a long check or mount of a file system, and with ""
	// at its end.
	WorkProgress func(text string)
	// Shortfall, if set, is called with the reason why the file system on a directory is smaller than its disk, and with
	// "" when it is not any more.
	Shortfall func(dir, text string)
	// Program is the agent's own, which copies trees when package worker calls it.
	Program string
	// AfterBoot, if set, defers work that no caller waits for.
	AfterBoot func(func())
	Log       *logrus.Entry
}

// Disks are the disks of one agent. Their methods may be called concurrently; a mutex serializes
// them.
type Disks struct {
	Ephemeral  *Ephemeral
	Persistent *Persistent
	Migration  *Migration
}

// New returns the disks of a machine.
func New(c Config) Disks {
	if c.Settings == nil {
		c.Settings = noSettings{}
	}
	if c.AfterBoot == nil {
		c.AfterBoot = func(f func()) { f() }
	}
	m := machine.New(c.Dirs, c.Log)
	m.WorkProgress, m.Shortfall, m.Change = c.WorkProgress, c.Shortfall, c.Change
	label := persistent.LabelOf(c.Options.PartitionerType)
	disks := &Persistent{Machine: m, Resolver: c.Resolver, Known: c.Known, Label: label, Reload: c.Settings.Refresh,
		Associated: func() (cids []string) {
			for _, a := range c.Settings.Effective().Associations {
				cids = append(cids, a.CID)
			}
			return cids
		},
		Foreign:     func() string { return c.Settings.Effective().ForeignPersistentDisk(c.Options.ForeignPersistentDisk) },
		Blank:       func() string { return c.Settings.Effective().BlankDisks(c.Options.BlankDisks) },
		BindMounted: c.Options.BindMountPersistentDisk, Preformatted: c.Options.UsePreformattedPersistentDisk}
	return Disks{
		Ephemeral: &Ephemeral{Machine: m, Resolver: c.Resolver, PersistentDisks: c.Known.Disks, Label: label,
			AfterBoot: c.AfterBoot, AgentID: func() string { return c.Settings.Effective().Settings.AgentID },
			SkipSetup: c.Options.SkipDiskSetup, CreateOnRoot: c.Options.CreatePartitionIfNoEphemeralDisk,
			FallBackToRoot: c.Options.MissingEphemeralDisk == "root", ManagedVolumes: c.Options.ManagedVolumes},
		Persistent: disks,
		Migration:  &Migration{Machine: m, Disks: disks, Progress: c.Progress, Program: c.Program},
	}
}
