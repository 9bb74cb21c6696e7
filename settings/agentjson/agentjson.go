// Package agentjson parses agent.json, the configuration in a stemcell: options of the platform, and the sources of the
// settings. Boot and `agent validate` share this code, so both report the same errors. Only Load touches the machine.
package agentjson

import (
	"time"

	"cambium/internal/secret"
)

// Config is a parsed agent.json.
type Config struct {
	Platform       Platform
	Infrastructure Infrastructure
}

// Platform holds the options for the operating system.
type Platform struct {
	Linux   Linux
	Windows Windows
}

// Linux is "Platform.Linux". Values and effects are listed in docs/configuration.md.
type Linux struct {
	UseDefaultTmpDir                    bool
	UsePreformattedPersistentDisk       bool
	BindMountPersistentDisk             bool
	CreatePartitionIfNoEphemeralDisk    bool
	SkipDiskSetup                       bool
	UseMonitIptablesFirewall            bool
	DevicePathResolutionType            string // "" (use paths as they are), "virtio", "scsi" or "iscsi"
	PartitionerType                     string // "", "parted" or "sfdisk"
	ServiceManager                      string // "systemd", or anything else for runit
	DiskIDTransformPattern              string // a regular expression that compiles
	DiskIDTransformReplacement          string
	LunDeviceSymlinkPath                string
	InstanceStorageManagedVolumePattern string
	InstanceStorageDevicePattern        string
	// ForeignPersistentDisk is an addition of this agent: whether to refuse or to format a persistent disk with content
	// that BOSH did not write. Its value is foreignRefuse or foreignFormat.
	ForeignPersistentDisk string
	// BlankDisks is an addition of this agent: the content of a new persistent disk when read, blankZeros or
	// blankNoise.
	BlankDisks string
	// MissingEphemeralDisk is an addition of this agent: whether to fail or to use the root disk if the ephemeral disk
	// in the settings does not appear, missingFail or missingRoot.
	MissingEphemeralDisk string
	// TaskAnswerHold is an addition of this agent: the time for which a reply about a running task is delayed, in whole
	// seconds in the file. 0 replies at once.
	TaskAnswerHold time.Duration
	// EarlyPings is an addition of this agent, true by default: it answers pings before it is ready.
	EarlyPings bool
	// Firewall is an addition of this agent, true by default: nftables rules keep jobs away from monit and the bus.
	Firewall bool
	// VerdictPort is an addition of this agent, empty by default: the path below /dev of a virtio or serial port to
	// which the verdict of each boot is written.
	VerdictPort string
	// ScriptsOnBoot is an addition of this agent: after a reboot, it runs pre-start and post-start scripts when it
	// starts the jobs, as a deploy does.
	ScriptsOnBoot bool
	// MetadataAccess is an addition of this agent: who may connect to metadata services, metadataAll or MetadataRoot.
	MetadataAccess string
	// MetadataUsers is an addition of this agent: users, by name or uid, who may connect besides root.
	MetadataUsers []string
	// Some stemcells still set these options, which have no effect.
	VirtioDevicePrefix, ScrubEphemeralDisk, StripVolumeRegex, DNSResolverType any
}

// DefaultTaskAnswerHold is both the default and the maximum of TaskAnswerHold.
const DefaultTaskAnswerHold = 2 * time.Second

// MetadataRoot is the value of MetadataAccess that denies jobs access to metadata services.
const MetadataRoot = "root"

// Values of ForeignPersistentDisk, BlankDisks, MissingEphemeralDisk and MetadataAccess.
const (
	foreignRefuse = "refuse"
	foreignFormat = "format"
	blankZeros    = "zeros"
	blankNoise    = "noise"
	missingFail   = "fail"
	missingRoot   = "root"
	metadataAll   = "all"
)

// Windows is "Platform.Windows". It is accepted and has no effect.
type Windows struct {
	EnableEphemeralDiskMounting bool
}

// Infrastructure configures where the settings come from.
type Infrastructure struct {
	Settings Settings
	// Some files still set these two options of early 2015, which have no effect.
	NetworkingType, StaticEphemeralDiskPath string
}

// Settings is "Infrastructure.Settings".
type Settings struct {
	// Sources lists the sources in the order in which they are tried; a valid file has at least one.
	Sources []Source
	// UseRegistry and UseServerName were made for the registry of CPI API v1. A pointer to a registry is followed
	// whether or not UseRegistry is set. UseServerName selects the key in the registry.
	UseRegistry   bool
	UseServerName bool
}

// Source types.
const (
	HTTP             = "HTTP"
	InstanceMetadata = "InstanceMetadata"
	ConfigDrive      = "ConfigDrive"
	File             = "File"
	CDROM            = "CDROM"
	VsphereGuestInfo = "VsphereGuestInfo"
)

// Source is one member of Sources: its type, and the options of all types. Options of other types are empty.
type Source struct {
	Type string `spelling:"exact"` // upstream ignores the case of all other keys
	// URI and Headers may contain credentials.
	URI            secret.URL
	Headers        map[string]secret.String
	UserDataPath   string
	InstanceIDPath string
	SSHKeysPath    string
	TokenPath      string
	SettingsPath   string
	DiskPaths      []string
	MetaDataPath   string
	FileName       string
	RpcToolPath    string
	VmToolsdPath   string
}

// Types returns the source types in the order of the documentation.
func Types() []string {
	return []string{HTTP, InstanceMetadata, ConfigDrive, File, CDROM, VsphereGuestInfo}
}

// option describes one option of a source.
type option struct {
	key      string
	set      bool
	types    []string // that read it
	required []string // that need it
}

func (s *Source) options() []option {
	web := []string{HTTP, InstanceMetadata}
	return []option{
		{"URI", !s.URI.Empty(), web, web},
		{"Headers", len(s.Headers) > 0, web, nil},
		{"UserDataPath", s.UserDataPath != "", []string{HTTP, ConfigDrive, File}, nil},
		{"InstanceIDPath", s.InstanceIDPath != "", []string{HTTP}, nil},
		{"SSHKeysPath", s.SSHKeysPath != "", []string{HTTP}, nil},
		{"TokenPath", s.TokenPath != "", []string{HTTP}, nil},
		{"SettingsPath", s.SettingsPath != "", []string{InstanceMetadata, ConfigDrive, File},
			[]string{InstanceMetadata, File}},
		{"DiskPaths", len(s.DiskPaths) > 0, []string{ConfigDrive}, []string{ConfigDrive}},
		{"MetaDataPath", s.MetaDataPath != "", []string{ConfigDrive, File}, nil},
		{"FileName", s.FileName != "", []string{CDROM}, []string{CDROM}},
		{"RpcToolPath", s.RpcToolPath != "", []string{VsphereGuestInfo}, nil},
		{"VmToolsdPath", s.VmToolsdPath != "", []string{VsphereGuestInfo}, nil},
	}
}
