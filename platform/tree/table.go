package tree

import (
	"io/fs"
	"path/filepath"

	"cambium/internal/vcap"
)

// Groups of entries. Bootstrap applies them in different steps, some of which are optional.
const (
	Devices      = "devices"      // what the stemcell's start hook does, if there is none
	SharedMemory = "shm"          // flags of /dev/shm
	Log          = "log"          // /var/log
	Opt          = "opt"          // /opt and /var/opt
	Data         = "data"         // directories in the data directory, and links to them
	Temp         = "tmp"          // /tmp and /var/tmp
	CanRestart   = "canrestart"   // marker that does not survive a reboot
	Home         = "home"         // flags of /home
	Blobs        = "blobs"        // downloaded blobs
	Settings     = "settings"     // settings in memory
	Store        = "store"        // mount point of the persistent disk
	SSH          = "ssh"          // homes of ephemeral ssh users
	Associations = "associations" // named disks
)

// Options holds the options of the stemcell and the settings that affect the table.
type Options struct {
	UseDefaultTmpDir bool   // leave /tmp and /var/tmp on the root disk
	JobDirTmpfs      bool   // jobs and sensitive blobs in memory
	JobDirSize       string // 100m if empty
	RunDirSize       string // 16m if empty
	SettingsTmpfs    bool   // settings in memory
}

var (
	rootOnly = Owner{"root", "root"}
	rootVcap = Owner{"root", "vcap"}
)

// Table returns all entries that the agent maintains around its base directory.
//
// Each tmpfs gets the mode that its directory would have, instead of the kernel's default of 1777. In the run
// directory, members of the group vcap can create files, but not remove those of others, as with 1777; other users have
// no access, since its parent is closed to them.
func Table(d vcap.Dirs, o Options) Desired {
	jobSize, runSize := o.JobDirSize, o.RunDirSize
	if jobSize == "" {
		jobSize = "100m"
	}
	if runSize == "" {
		runSize = "16m"
	}
	const all = NoDev | NoSuid | NoExec
	entries := Desired{
		{Group: Devices, Path: "/dev/shm", Kind: Existing, Mode: 0o770, Owner: rootVcap},

		{Group: SharedMemory, Path: "/dev/shm", Kind: Mounted, Flags: all},
		{Group: SharedMemory, Path: "/run/shm", Kind: Mounted, Flags: all},

		{Group: Data, Path: d.Data(), Mode: 0o750, CreateOnly: true},
		{Group: Data, Path: d.DataSys(), Mode: 0o750, Owner: rootVcap},
		{Group: Data, Path: d.SysLog(), Mode: 0o750, Owner: rootVcap},
		{Group: Data, Path: d.SysRun(), Mode: 0o750, Owner: rootVcap, CreateOnly: true},
		{Group: Data, Path: d.SysRun(), Kind: Tmpfs, Size: runSize, Mode: 0o770 | fs.ModeSticky, Owner: rootVcap},
		{Group: Data, Path: d.Sys(), Kind: Symlink, Source: d.DataSys()},
		{Group: Data, Path: d.DataJobs(), Mode: 0o750, Owner: rootVcap},
		{Group: Data, Path: d.SensitiveBlobs(), Mode: 0o700, Owner: rootVcap},
		{Group: Data, Path: d.DataPackages(), Mode: 0o755, Owner: rootVcap},
		{Group: Data, Path: d.DynamicDisks(), Mode: 0o700, Owner: rootVcap},
		{Group: Blobs, Path: d.Blobs(), Mode: 0o700, Owner: rootVcap},
		{Group: Temp, Path: d.Tmp(), Mode: 0o755, Owner: rootOnly},

		// The group of the logs can write in this directory, so its entries have NoFollow.
		{Group: Log, Path: d.RootLog(), Mode: 0o771, Owner: Owner{"root", "syslog"}, OrRoot: true},
		// auditd gives it to the group that its own configuration names, adm on Debian and Ubuntu.
		{Group: Log, Path: filepath.Join(d.RootLog(), "audit"), Mode: 0o750, Owner: Owner{User: "root"}, NoFollow: true},
		{Group: Log, Path: filepath.Join(d.RootLog(), "sysstat"), Mode: 0o755, Owner: rootOnly, NoFollow: true},
		{Group: Log, Path: filepath.Join(d.RootLog(), "btmp"), Kind: File, Mode: 0o600, Owner: Owner{"root", "utmp"}, OrRoot: true, NoFollow: true},
		{Group: Log, Path: filepath.Join(d.RootLog(), "wtmp"), Kind: File, Mode: 0o664, Owner: Owner{"root", "utmp"}, OrRoot: true, NoFollow: true},
		{Group: Log, Path: filepath.Join(d.RootLog(), "lastlog"), Kind: File, Mode: 0o664, Owner: Owner{"root", "utmp"}, OrRoot: true, NoFollow: true},
		{Group: Log, Path: filepath.Join(d.RootLog(), "chrony"), Mode: 0o700, Owner: Owner{"_chrony", "_chrony"}, IfUser: "_chrony", NoFollow: true},
		{Group: Log, Path: "/var/log", Kind: Bind, Source: d.RootLog(), Flags: all},

		// Programs are installed in these two, some of them setuid.
		{Group: Opt, Path: d.RootOpt(), Mode: 0o755, Owner: rootOnly},
		{Group: Opt, Path: d.RootVarOpt(), Mode: 0o755, Owner: rootOnly},
		{Group: Opt, Path: "/opt", Kind: Bind, Source: d.RootOpt(), Flags: NoDev},
		{Group: Opt, Path: "/var/opt", Kind: Bind, Source: d.RootVarOpt(), Flags: NoDev},

		// The directories under the mounts get the right mode, too, since they may be unmounted.
		{Group: Temp, Path: "/tmp", Mode: 0o777 | fs.ModeSticky, Owner: rootVcap},
		{Group: Temp, Path: "/var/tmp", Mode: 0o777 | fs.ModeSticky, Owner: rootVcap},

		{Group: Home, Path: "/home", Kind: Bind, Source: "/home", Flags: NoDev | NoSuid},

		{Group: Store, Path: d.Store(), Mode: 0o700, Owner: rootOnly, CreateOnly: true},
		{Group: SSH, Path: d.SSHHomes(), Mode: 0o755, Owner: rootOnly},
		{Group: Associations, Path: d.Instance(), Mode: 0o755, Owner: rootOnly},
		{Group: Associations, Path: d.DiskAssociations(), Mode: 0o755, Owner: rootOnly},
	}
	if !o.UseDefaultTmpDir {
		entries = append(entries,
			Entry{Group: Temp, Path: d.RootTmp(), Mode: 0o777 | fs.ModeSticky, Owner: rootVcap},
			Entry{Group: Temp, Path: "/tmp", Kind: Bind, Source: d.RootTmp(), Flags: all},
			Entry{Group: Temp, Path: "/var/tmp", Kind: Bind, Source: d.RootTmp(), Flags: all})
	}
	if o.JobDirTmpfs {
		entries = append(entries,
			Entry{Group: Data, Path: d.DataJobs(), Kind: Tmpfs, Size: jobSize, Mode: 0o750, Owner: rootVcap},
			Entry{Group: Data, Path: d.SensitiveBlobs(), Kind: Tmpfs, Size: jobSize, Mode: 0o700, Owner: rootVcap})
	}
	if o.SettingsTmpfs {
		entries = append(entries,
			Entry{Group: Settings, Path: d.SettingsTmpfs(), Kind: Tmpfs, Size: "16m", Mode: 0o700, Owner: rootOnly, Flags: all})
	}
	if o.SettingsTmpfs || o.JobDirTmpfs {
		entries = append(entries,
			Entry{Group: CanRestart, Path: d.CanRestart(), Kind: Tmpfs, Size: "16m", Mode: 0o740, Owner: rootVcap, Flags: all})
	}
	return entries
}

// JobDirs returns the directories created for each job: for its logs, run files and data. Existing paths stay as the
// job left them, even a link in place of the directory. Diff refuses a job name that leads elsewhere.
func JobDirs(d vcap.Dirs, jobs []string) (entries Desired) {
	for _, job := range jobs {
		for _, parent := range []string{d.SysLog(), d.SysRun(), d.Data()} {
			entries = append(entries, Entry{Group: Data, Path: parent + "/" + job, Mode: 0o770, Owner: rootVcap,
				CreateOnly: true, NoFollow: true, JobOwned: true})
		}
	}
	return entries
}
