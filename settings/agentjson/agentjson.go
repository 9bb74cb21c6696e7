// Package agentjson reads the start configuration that a stemcell ships as agent.json: how the
// platform behaves, and which sources deliver the settings document. It is pure apart from
// Load, and the same code serves boot and `agent validate`, so a file that is refused at boot
// is refused on a workstation with the same words.
package agentjson

import (
	"time"

	"cambium/internal/secret"
)

// Config is one agent.json.
type Config struct {
	Platform       Platform
	Infrastructure Infrastructure
}

// Platform holds the options of the machine's side.
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
	DevicePathResolutionType            string // "", "virtio", "scsi" or "iscsi"; "" means that paths are taken as they are
	PartitionerType                     string // "", "parted" or "sfdisk"
	ServiceManager                      string // "systemd", or anything else for runit
	DiskIDTransformPattern              string // a regular expression that compiles
	DiskIDTransformReplacement          string
	LunDeviceSymlinkPath                string
	InstanceStorageManagedVolumePattern string
	InstanceStorageDevicePattern        string
	// ForeignPersistentDisk is an addition of this agent: what to do with a persistent disk that
	// carries something that is not ours, foreignRefuse or foreignFormat.
	ForeignPersistentDisk string
	// BlankDisks is an addition of this agent: what a new persistent disk reads as, blankZeros or blankNoise.
	BlankDisks string
	// MissingEphemeralDisk is an addition of this agent: what to do when the settings name an
	// ephemeral disk that does not appear, missingFail or missingRoot.
	MissingEphemeralDisk string
	// TaskAnswerHold is an addition of this agent, in seconds in the file: how long the answer about a
	// running task is held back; 0 answers at once.
	TaskAnswerHold time.Duration
	// EarlyPings is an addition of this agent, true by default: pings are answered before the agent is ready.
	EarlyPings bool
	// Firewall is an addition of this agent, true by default: nftables keep jobs away from monit and the bus.
	Firewall bool
	// VerdictPort is an addition of this agent: a virtio or serial port below /dev that gets the verdict of each boot,
	// none by default.
	VerdictPort string
	// ScriptsOnBoot is an addition of this agent: after a boot of the machine, jobs are started as by a deploy, with
	// pre-start and post-start scripts.
	ScriptsOnBoot bool
	// MetadataAccess is an addition of this agent: who reaches metadata services, metadataAll or MetadataRoot.
	MetadataAccess string
	// MetadataUsers, names or numbers, reach them besides root. An addition of this agent.
	MetadataUsers []string
	// Shipped stemcells still carry these although nothing has read them for years.
	VirtioDevicePrefix, ScrubEphemeralDisk, StripVolumeRegex, DNSResolverType any
}

// DefaultTaskAnswerHold is also the longest hold there is.
const DefaultTaskAnswerHold = 2 * time.Second

// MetadataRoot is the value of MetadataAccess that closes metadata services to jobs.
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

// Windows is "Platform.Windows"; it is accepted and has no effect here.
type Windows struct {
	EnableEphemeralDiskMounting bool
}

// Infrastructure says where settings come from.
type Infrastructure struct {
	Settings Settings
	// Two options of early 2015 that some old files still carry; they have had no effect since.
	NetworkingType, StaticEphemeralDiskPath string
}

// Settings is "Infrastructure.Settings".
type Settings struct {
	// Sources are asked in this order; there is at least one.
	Sources []Source
	// UseRegistry and UseServerName come from the time of the CPI v1 registry. A pointer to a
	// registry is followed whether or not UseRegistry is set; UseServerName chooses the key.
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

// Source is one member of Sources: its type, and the options of all types. Those that do not
// belong to the type are empty.
type Source struct {
	Type string `spelling:"exact"` // as upstream does, which matches all other keys without regard to case
	// URI and Headers can carry credentials.
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

// Types lists the source types in the order of the documentation.
func Types() []string {
	return []string{HTTP, InstanceMetadata, ConfigDrive, File, CDROM, VsphereGuestInfo}
}

// option is one option of a source: whether it is set, and which types read it.
type option struct {
	key      string
	set      bool
	types    []string // that use it
	required []string // that cannot work without it
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
