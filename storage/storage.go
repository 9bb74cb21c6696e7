// Package storage manages disks, from a CPI's hint to a mounted directory: ephemeral disks (package ephemeral),
// persistent disks (persistent) and the migration between them (migration). Pure functions make the decisions (decide).
// The other packages observe, make the changes, and keep records with which each sequence resumes after a crash.
// Package storage connects them.
package storage

import (
	"context"

	"github.com/sirupsen/logrus"

	"cambium/internal/vcap"
	"cambium/settings"
	"cambium/settings/agentjson"
	"cambium/storage/decide"
	"cambium/storage/ephemeral"
	"cambium/storage/internal/machine"
	"cambium/storage/migration"
	"cambium/storage/persistent"
)

// Aliases for callers of this package.
type (
	Change            = decide.Change
	Ephemeral         = ephemeral.Disks
	Persistent        = persistent.Disks
	Migration         = migration.Migration
	MigrationProgress = migration.Progress
	KnownDisks        = persistent.KnownDisks
	Resolver          = ephemeral.Resolver // implemented by *device.Resolver
	Options           = agentjson.Linux
)

// Settings gives access to the settings in force. *store.Current implements it.
type Settings interface {
	// Refresh fetches the settings again, since some CPIs send hints that way.
	Refresh(ctx context.Context) error
	Effective() settings.Effective
}

type noSettings struct{}

func (noSettings) Refresh(context.Context) error { return nil }
func (noSettings) Effective() settings.Effective { return settings.Effective{} }

// Config holds the parameters of New.
type Config struct {
	Dirs     vcap.Dirs
	Options  Options // of the stemcell
	Resolver Resolver
	Known    KnownDisks
	// Settings, if not nil, provides the settings in force.
	Settings Settings
	// Progress, if not nil, is called with the progress of a migration, and with the zero value at its end.
	Progress func(MigrationProgress)
	// Change, if set, is called with each change of a disk before it is made; what it returns, after that.
	Change func(ctx context.Context, what string) (made func())
	// WorkProgress, if not nil, is called with the progress of a long check or mount of a file system, and with "" at
	// its end.
	WorkProgress func(text string)
	// Shortfall, if not nil, is called with the reason why the file system on a directory is smaller than its disk, and
	// with "" once that no longer applies.
	Shortfall func(dir, text string)
	// Program is the path of the agent, which is started as the worker of package copytree/worker.
	Program string
	// AfterBoot, if not nil, defers work for which no caller waits.
	AfterBoot func(func())
	Log       *logrus.Entry
}

// Disks holds the disks of one agent. Their methods may be called concurrently: a lock serializes them.
type Disks struct {
	Ephemeral  *Ephemeral
	Persistent *Persistent
	Migration  *Migration
}

// New returns the disks of the machine.
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
			FallBackToRoot: c.Options.MissingEphemeralDisk == "root",
			ManagedVolumes: c.Options.InstanceStorageManagedVolumePattern != ""},
		Persistent: disks,
		Migration:  &Migration{Machine: m, Disks: disks, Progress: c.Progress, Program: c.Program},
	}
}
