// Package vcap defines the paths of all files and directories in which the agent, its commands and its units keep
// state: below the base directory (flag -b) and below /run. No other package builds such a path; a test enforces this.
// docs/architecture.md lists them.
package vcap

import "path/filepath"

// DefaultBase is the base directory on every stemcell.
const DefaultBase = "/var/vcap"

// CreateEnvBlobs is the path of the blobstore in the settings of create-env. The agent stores nothing there: create-env
// sends blobs to the HTTPS bus, which stores them in Blobs.
const CreateEnvBlobs = "/var/vcap/micro_bosh/data/cache"

// Dirs has all paths below a base directory.
type Dirs struct{ base string }

// New returns the paths below base, or below DefaultBase if base is empty.
func New(base string) Dirs {
	if base == "" {
		base = DefaultBase
	}
	return Dirs{base: filepath.Clean(base)}
}

// Base returns the base directory.
func (d Dirs) Base() string { return d.base }

func (d Dirs) join(parts ...string) string {
	return filepath.Join(append([]string{d.base}, parts...)...)
}

// What the stemcell gives the agent.

func (d Dirs) Bosh() string      { return d.join("bosh") }
func (d Dirs) BoshBin() string   { return d.join("bosh", "bin") }
func (d Dirs) BoshEtc() string   { return d.join("bosh", "etc") }
func (d Dirs) AgentJSON() string { return d.join("bosh", "agent.json") }
func (d Dirs) Agent() string     { return d.Program("bosh-agent") }

// Program returns the path of one of the stemcell's programs.
func (d Dirs) Program(name string) string { return filepath.Join(d.BoshBin(), name) }

// TimeServers returns the path of the list of time servers, which the stemcell's sync-time reads.
func (d Dirs) TimeServers() string { return d.StemcellFile("ntpserver") }

// StemcellFile returns the path of a file that describes the stemcell.
func (d Dirs) StemcellFile(name string) string { return filepath.Join(d.BoshEtc(), name) }

// The agent's own records.

func (d Dirs) BoshLog() string             { return d.join("bosh", "log") }
func (d Dirs) Log() string                 { return d.join("bosh", "log", "current") }
func (d Dirs) AgentState() string          { return d.join("bosh", "agent_state.json") }
func (d Dirs) ManagedDiskSettings() string { return d.join("bosh", "managed_disk_settings.json") }
func (d Dirs) DiskRecord() string          { return d.join("bosh", "disks.json") }
func (d Dirs) DiskRecordLock() string      { return d.join("bosh", "disks.json.lock") }
func (d Dirs) DiskLook() string            { return d.join("bosh", "disk_look") }
func (d Dirs) Spec() string                { return d.join("bosh", "spec.json") }
func (d Dirs) Tasks() string               { return d.join("bosh", "tasks.json") }
func (d Dirs) Ready() string               { return d.join("bosh", "cambium_ready") }
func (d Dirs) Boots() string               { return d.join("bosh", "cambium_boots.json") }
func (d Dirs) HTTPSKey() string            { return d.join("bosh", "https_key.pem") }
func (d Dirs) BootOnce() string            { return d.join("bosh", "bootonce") }
func (d Dirs) CanRestart() string          { return d.join("bosh", "canrestart") }
func (d Dirs) CanRestartMark() string      { return d.join("bosh", "canrestart", "bootonce") }

// BlobstoreConfig returns the path of the configuration for the stemcell's program of a provider.
func (d Dirs) BlobstoreConfig(provider string) string {
	return d.StemcellFile("blobstore-" + provider + ".json")
}

// SettingsTmpfs returns the mount point of the settings tmpfs.
func (d Dirs) SettingsTmpfs() string { return d.join("bosh", "settings") }

// Places returns the directories that may contain files with the settings' secrets. The first one has precedence: files
// are written to the tmpfs before they are removed from the disk. In the other direction, settings.json is removed from
// the tmpfs first.
func (d Dirs) Places() []Place { return []Place{Place(d.SettingsTmpfs()), Place(d.Bosh())} }

// Place is the directory of the settings: Bosh, or SettingsTmpfs if the settings ask for it.
type Place string

func (p Place) Settings() string            { return filepath.Join(string(p), "settings.json") }
func (p Place) UpdateSettings() string      { return filepath.Join(string(p), "update_settings.json") }
func (p Place) DiskHints() string           { return filepath.Join(string(p), "persistent_disk_hints.json") }
func (p Place) TaskRecord() string          { return filepath.Join(string(p), "cambium_tasks.json") }
func (p Place) CertificateWarnings() string { return filepath.Join(string(p), "cambium_expiry.json") }

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
func (d Dirs) JobLogs() string              { return d.join("sys", "log") }
func (d Dirs) LogsOf(job string) string     { return d.join("sys", "log", job, "*") } // a pattern
func (d Dirs) CompilationLogs() string      { return d.join("sys", "log", "compilation") }
func (d Dirs) Jobs() string                 { return d.join("jobs") }
func (d Dirs) Packages() string             { return d.join("packages") }
func (d Dirs) Store() string                { return d.join("store") }
func (d Dirs) StoreMigrationTarget() string { return d.join("store_migration_target") }
func (d Dirs) Instance() string             { return d.join("instance") }
func (d Dirs) InstanceID() string           { return d.join("instance", "id") }
func (d Dirs) InstanceAZ() string           { return d.join("instance", "az") }
func (d Dirs) InstanceName() string         { return d.join("instance", "name") }
func (d Dirs) InstanceDeployment() string   { return d.join("instance", "deployment") }
func (d Dirs) AgentVersion() string         { return d.join("instance", "agent_version") }
func (d Dirs) AgentSupervisor() string      { return d.join("instance", "agent_supervisor") }
func (d Dirs) Health() string               { return d.join("instance", "health.json") }
func (d Dirs) DNSRecords() string           { return d.join("instance", "dns", "records.json") }
func (d Dirs) DiskAssociations() string     { return d.join("instance", "disks") }
func (d Dirs) SSHHomes() string             { return d.join("bosh_ssh") }

// JobScript returns the path of a job's script.
func (d Dirs) JobScript(job, script string) string {
	return filepath.Join(d.Jobs(), job, "bin", script)
}

// monit's files, and the agent's beside them.

func (d Dirs) Monit() string              { return d.join("monit") }
func (d Dirs) MonitJobs() string          { return d.join("monit", "job") }
func (d Dirs) MonitFiles() string         { return d.join("monit", "job", "*.monitrc") } // a pattern
func (d Dirs) MonitPatterns() []string    { return []string{d.join("monit", "*.monitrc"), d.MonitFiles()} }
func (d Dirs) MonitJobsWithdrawn() string { return d.join("monit", ".job-withdrawn") }
func (d Dirs) MonitUser() string          { return d.join("monit", "monit.user") }
func (d Dirs) MonitState() string         { return d.join("monit", "monit.state") }
func (d Dirs) SupervisorState() string    { return d.join("monit", "supervisor.json") }
func (d Dirs) MonitStopped() string       { return d.join("monit", "stopped") }
func (d Dirs) StartRequested() string     { return d.join("monit", "start_requested.json") }

// A trial of this agent on a stemcell with another one, by the release cambium-agent.

func (d Dirs) TrialDir() string    { return d.join("data", "cambium-agent") }
func (d Dirs) TrialAgent() string  { return d.join("data", "cambium-agent", "agent") }
func (d Dirs) TrialTried() string  { return d.join("data", "cambium-agent", "tried") }
func (d Dirs) TrialSwap() string   { return d.join("data", "cambium-agent", "swap") }
func (d Dirs) TrialLock() string   { return d.join("data", "cambium-agent", "lock") }
func (d Dirs) TrialLog() string    { return d.join("sys", "log", "cambium-agent", "trial.log") }
func (d Dirs) TrialRecord() string { return d.join("instance", "agent_trial.json") }

// BeforeSwap returns the path of the stemcell's agent after the script swap.
func (d Dirs) BeforeSwap() string { return d.Program("bosh-agent.before-swap") }

// With -P dummy, files in place of disks, accounts and networks. The test suites of a Director read them.

func (d Dirs) DummyMounts() string       { return d.join("bosh", "mounts.json") }
func (d Dirs) DummyFormatted() string    { return d.join("bosh", "formatted_disks.json") }
func (d Dirs) DummyMigrations() string   { return d.join("bosh", "disk_migrations.json") }
func (d Dirs) DummyAssociations() string { return d.join("bosh", "disk_associations.json") }
func (d Dirs) DummyHosts() string        { return d.join("bosh", "etc_hosts") }
func (d Dirs) DummyNetwork() string      { return d.join("bosh", "dummy-default-network-settings.json") }

func (d Dirs) DummyPassword(user string) string {
	return d.join("bosh", filepath.Base(user), "password")
}

// RunDir is the directory for files that do not survive a reboot.
const RunDir Run = "/run/cambium"

// Run is the directory of the status: RunDir or, with -P dummy, Bosh, because a machine may have many dummy agents.
type Run string

func (r Run) Status() string { return filepath.Join(string(r), "status.json") }

// HeldBack returns the path of the mark that jobs were held back in this boot, or did not have to be.
func (r Run) HeldBack() string { return filepath.Join(string(r), "held-back") }

// StoreLock returns the path of the lock of the process that checks whether the store answers.
func (r Run) StoreLock() string { return filepath.Join(string(r), "ask-store.lock") }

// Ended returns the path of the file to which the agent's unit writes how the last process ended.
func (r Run) Ended() string { return filepath.Join(string(r), "ended") }

// HookSucceeded returns the path of the file that marks that a hook has succeeded in this boot.
func (r Run) HookSucceeded(name string) string { return filepath.Join(string(r), "hooks", name) }

// MonitProgram returns the path of a link to the agent, by which the agent's own supervisor is called monit.
func (r Run) MonitProgram() string { return filepath.Join(string(r), "bin", "monit") }

// MonitPid returns the path at which monit's program looks for the pid of a running monit.
func (Run) MonitPid() string { return "/run/monit.pid" }

// MonitDropIn returns the path of the drop-in that replaces the program in monit's unit until the next boot.
func (Run) MonitDropIn() string { return "/run/systemd/system/monit.service.d/cambium.conf" }

// NetworkdReload returns the path of the file that marks that networkd must be reloaded, because its files were
// written.
func (Run) NetworkdReload() string { return "/run/bosh-agent-networkd-reload" }
