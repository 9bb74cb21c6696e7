// Package vcap names every path below the agent's base directory, so that no other package
// joins one by hand and -b moves all of them.
package vcap

import "path/filepath"

// DefaultBase is the base directory of every stemcell.
const DefaultBase = "/var/vcap"

// Dirs derives all paths from one base directory.
type Dirs struct{ base string }

// New returns the paths below base; an empty base means DefaultBase.
func New(base string) Dirs {
	if base == "" {
		base = DefaultBase
	}
	return Dirs{base: filepath.Clean(base)}
}

// Base is the directory itself.
func (d Dirs) Base() string { return d.base }

func (d Dirs) join(parts ...string) string {
	return filepath.Join(append([]string{d.base}, parts...)...)
}

// The agent's own home and its state files.

func (d Dirs) Bosh() string                { return d.join("bosh") }
func (d Dirs) BoshBin() string             { return d.join("bosh", "bin") }
func (d Dirs) BoshEtc() string             { return d.join("bosh", "etc") }
func (d Dirs) BoshLog() string             { return d.join("bosh", "log") }
func (d Dirs) AgentJSON() string           { return d.join("bosh", "agent.json") }
func (d Dirs) AgentState() string          { return d.join("bosh", "agent_state.json") }
func (d Dirs) ManagedDiskSettings() string { return d.join("bosh", "managed_disk_settings.json") }
func (d Dirs) DiskRecord() string          { return d.join("bosh", "disks.json") }
func (d Dirs) Spec() string                { return d.join("bosh", "spec.json") }
func (d Dirs) Tasks() string               { return d.join("bosh", "tasks.json") }
func (d Dirs) BootOnce() string            { return d.join("bosh", "bootonce") }
func (d Dirs) CanRestart() string          { return d.join("bosh", "canrestart") }

// What earlier versions kept in place of DiskRecord.

func (d Dirs) FormerDiskRecords() string  { return d.join("bosh", "disk_records.json") }
func (d Dirs) FormerDiskIntents() string  { return d.join("bosh", "disk_intents.json") }
func (d Dirs) FormerDiskRequests() string { return d.join("bosh", "disk_requests") }

// SettingsTmpfs is the mount point of the settings tmpfs; the settings files live in it or,
// without tmpfs, in Bosh.
func (d Dirs) SettingsTmpfs() string { return d.join("bosh", "settings") }

// Names of the files that move between Bosh and SettingsTmpfs.
const (
	SettingsFile       = "settings.json"
	UpdateSettingsFile = "update_settings.json"
	DiskHintsFile      = "persistent_disk_hints.json"
)

// The ephemeral disk and what lives on it.

func (d Dirs) Data() string           { return d.join("data") }
func (d Dirs) DataJobs() string       { return d.join("data", "jobs") }
func (d Dirs) DataPackages() string   { return d.join("data", "packages") }
func (d Dirs) Compile() string        { return d.join("data", "compile") }
func (d Dirs) Tmp() string            { return d.join("data", "tmp") }
func (d Dirs) Blobs() string          { return d.join("data", "blobs") }
func (d Dirs) SensitiveBlobs() string { return d.join("data", "sensitive_blobs") }
func (d Dirs) DynamicDisks() string   { return d.join("data", "dynamic_disks") }
func (d Dirs) DataSys() string        { return d.join("data", "sys") }
func (d Dirs) SysLog() string         { return d.join("data", "sys", "log") }
func (d Dirs) SysRun() string         { return d.join("data", "sys", "run") }
func (d Dirs) RootTmp() string        { return d.join("data", "root_tmp") }
func (d Dirs) RootLog() string        { return d.join("data", "root_log") }
func (d Dirs) RootOpt() string        { return d.join("data", "root_opt") }
func (d Dirs) RootVarOpt() string     { return d.join("data", "root_var_opt") }

// Links, mounts and records that jobs and other programs read.

func (d Dirs) Sys() string                  { return d.join("sys") }
func (d Dirs) Jobs() string                 { return d.join("jobs") }
func (d Dirs) Packages() string             { return d.join("packages") }
func (d Dirs) Store() string                { return d.join("store") }
func (d Dirs) StoreMigrationTarget() string { return d.join("store_migration_target") }
func (d Dirs) Monit() string                { return d.join("monit") }
func (d Dirs) MonitJobs() string            { return d.join("monit", "job") }
func (d Dirs) MonitUser() string            { return d.join("monit", "monit.user") }
func (d Dirs) MonitStopped() string         { return d.join("monit", "stopped") }
func (d Dirs) Instance() string             { return d.join("instance") }
func (d Dirs) Health() string               { return d.join("instance", "health.json") }
func (d Dirs) DNSRecords() string           { return d.join("instance", "dns", "records.json") }
func (d Dirs) DiskAssociations() string     { return d.join("instance", "disks") }
func (d Dirs) SSHHomes() string             { return d.join("bosh_ssh") }
