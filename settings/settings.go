// Package settings decodes the settings document in all the forms that CPIs send, merges it with later updates,
// validates and explains it, and encodes it for the cache. It is pure: it reads no files, fetches nothing and does not
// touch the machine.
package settings

import (
	"slices"

	"cambium/internal/secret"
)

// Settings is a decoded settings document, before updates are merged in (see Effective). Its JSON keys, and their
// order, are those of cloudfoundry/bosh-agent's cached copy.
type Settings struct {
	AgentID   string             `json:"agent_id"`
	Blobstore Blobstore          `json:"blobstore"`
	Disks     Disks              `json:"disks"`
	Env       Env                `json:"env"`
	Networks  map[string]Network `json:"networks"`
	NTP       []string           `json:"ntp"`
	Mbus      secret.URL         `json:"mbus"`
	VM        VM                 `json:"vm"`

	// name and document are the name and the content of the document, after the rules were applied.
	name     string
	document secret.JSON
}

// VM holds this machine's name in the IaaS.
type VM struct {
	Name string `json:"name"`
}

// Disks lists the attached disks. Ephemeral is nil if the CPI named none.
type Disks struct {
	System       string              `json:"system"`
	Ephemeral    *DiskHint           `json:"ephemeral"`
	Persistent   map[string]DiskHint `json:"persistent"` // by disk CID
	RawEphemeral []RawDisk           `json:"raw_ephemeral"`
}

// DiskHint locates a disk. The CPI sends a string, which is both path and volume id, or an object.
type DiskHint struct {
	Path         string `json:"path,omitempty"`
	VolumeID     string `json:"volume_id,omitempty"`
	DeviceID     string `json:"id,omitempty"`
	LUN          string `json:"lun,omitempty"`
	HostDeviceID string `json:"host_device_id,omitempty"`
	ISCSI        *ISCSI `json:"iscsi_settings,omitempty"`
	// Bare is set if the CPI sent a string.
	Bare bool `json:"-"`
}

// Empty reports whether no member is set.
func (h DiskHint) Empty() bool {
	return h.Path == "" && h.VolumeID == "" && h.DeviceID == "" && h.LUN == "" && h.HostDeviceID == "" && h.ISCSI == nil
}

// ISCSI names a target and holds the CHAP account for it.
type ISCSI struct {
	InitiatorName string        `json:"initiator_name"`
	Username      string        `json:"username"`
	Target        string        `json:"target"`
	Password      secret.String `json:"password"`
}

// PersistentDisk holds everything needed to mount a disk: its hint, from the settings or from add_persistent_disk, and
// the env values that apply to it.
type PersistentDisk struct {
	CID          string
	Hint         DiskHint
	FileSystem   string // a name in package managedfs; "" means ext4
	MountOptions []string
	Partitioner  string
}

// Network is one member of "networks".
type Network struct {
	Type          string   `json:"type"` // "manual", "dynamic", "vip" or ""
	IP            string   `json:"ip"`
	Netmask       string   `json:"netmask"`
	Gateway       string   `json:"gateway"`
	Prefix        string   `json:"prefix"`
	Resolved      bool     `json:"resolved"`
	UseDHCP       bool     `json:"use_dhcp"`
	Default       []string `json:"default"` // any of "dns", "gateway"
	DNS           []string `json:"dns"`
	MAC           string   `json:"mac"`
	Preconfigured bool     `json:"preconfigured"`
	Alias         string   `json:"alias,omitempty"`
	Routes        []Route  `json:"routes,omitempty"`
}

// VIP reports whether the IaaS implements the network outside the machine.
func (n Network) VIP() bool { return n.Type == "vip" }

// DHCP reports whether the address comes from a DHCP server rather than from the settings.
func (n Network) DHCP() bool {
	return !n.VIP() && (n.Type == "dynamic" || n.UseDHCP || n.Resolved || n.IP == "" || n.Netmask == "")
}

// DefaultFor reports whether the network is the default for "dns" or "gateway".
func (n Network) DefaultFor(category string) bool { return slices.Contains(n.Default, category) }

// Route is an extra route of a network.
type Route struct {
	Destination string `json:"destination"`
	Gateway     string `json:"gateway"`
	Netmask     string `json:"netmask"`
}

// Blobstore selects a store. Its options contain credentials and are passed to the blobstore client unchanged.
type Blobstore struct {
	Provider string      `json:"provider"`
	Options  secret.JSON `json:"options"`
}

// Cert is a TLS identity and the CA to trust, all in PEM.
type Cert struct {
	CA          string        `json:"ca"`
	PrivateKey  secret.String `json:"private_key"`
	Certificate string        `json:"certificate"`
}

// Empty reports whether no member is set.
func (c Cert) Empty() bool { return c.CA == "" && c.Certificate == "" && c.PrivateKey.Empty() }

// Equal compares all members.
func (c Cert) Equal(o Cert) bool {
	return c.CA == o.CA && c.Certificate == o.Certificate && c.PrivateKey.Equal(o.PrivateKey)
}

// Bus is the Director's address and the TLS identity to use for it.
type Bus struct {
	Cert Cert         `json:"cert"`
	URLs []secret.URL `json:"urls"`
}

// Env is the part of the settings that comes from the deployment manifest.
type Env struct {
	Bosh                       BoshEnv  `json:"bosh"`
	PersistentDiskFS           string   `json:"persistent_disk_fs"`
	PersistentDiskMountOptions []string `json:"persistent_disk_mount_options"`
	PersistentDiskPartitioner  string   `json:"persistent_disk_partitioner"`
	// PersistentDiskForeign is an addition of this agent: "refuse" (the default) or "format" a persistent disk with
	// content that BOSH did not write.
	PersistentDiskForeign string `json:"persistent_disk_foreign,omitempty"`
	// PersistentDiskBlank is an addition of this agent: the content of a new persistent disk when read, "zeros" (the
	// default) or "noise".
	PersistentDiskBlank string `json:"persistent_disk_blank,omitempty"`
}

// BoshEnv is "env.bosh".
type BoshEnv struct {
	Agent                 AgentEnv      `json:"agent"`
	Password              secret.String `json:"password"`
	KeepRootPassword      bool          `json:"keep_root_password"`
	RemoveDevTools        bool          `json:"remove_dev_tools"`
	RemoveStaticLibraries bool          `json:"remove_static_libraries"`
	AuthorizedKeys        []string      `json:"authorized_keys"`
	SwapSizeMiB           *uint64       `json:"swap_size"` // nil: depends on RAM and disk; 0: no swap
	Mbus                  Bus           `json:"mbus"`
	IPv6                  struct {
		Enable bool `json:"enable"`
	} `json:"ipv6"`
	JobDir struct {
		Tmpfs     bool   `json:"tmpfs"`
		TmpfsSize string `json:"tmpfs_size"`
	} `json:"job_dir"`
	RunDir struct {
		TmpfsSize string `json:"tmpfs_size"`
	} `json:"run_dir"`
	Blobstores []Blobstore `json:"blobstores"`
	NTP        []string    `json:"ntp,omitzero"` // nil: absent; empty: explicitly none
	Parallel   int         `json:"parallel"`     // at least 1; 5 when absent
}

// AgentEnv is "env.bosh.agent". All members but Settings are additions of this agent. If one is nil or empty, the
// option in agent.json applies.
type AgentEnv struct {
	Settings struct {
		Tmpfs bool `json:"tmpfs"`
	} `json:"settings"`
	TaskAnswerHoldSeconds *uint64 `json:"task_answer_hold,omitempty"`
	EarlyPings            *bool   `json:"early_pings,omitempty"`
	Firewall              *bool   `json:"firewall,omitempty"`
	ScriptsOnBoot         *bool   `json:"scripts_on_boot,omitempty"`
	// MetadataAccess is "all" or "root".
	MetadataAccess string `json:"metadata_access,omitempty"`
	// MetadataUsers is nil if absent.
	MetadataUsers []string `json:"metadata_users,omitzero"`
	// PersistentDiskForeign takes precedence over Env.PersistentDiskForeign.
	PersistentDiskForeign string `json:"persistent_disk_foreign,omitempty"`
}

// Update is the argument of update_settings and the content of update_settings.json.
type Update struct {
	Mbus         Bus               `json:"mbus"`
	Blobstores   []Blobstore       `json:"blobstores"`
	TrustedCerts string            `json:"trusted_certs"`
	Associations []DiskAssociation `json:"disk_associations"`

	// members holds all members, also unknown ones. An absent member keeps the earlier value; an empty one clears it.
	members map[string]secret.JSON
}

// DiskAssociation names a persistent disk: the agent links it as instance/disks/NAME.
type DiskAssociation struct {
	Name string `json:"name"`
	CID  string `json:"cid"`
}

// Effective holds the settings that the agent acts on: the document with the updates merged in. Merge creates one;
// Explain names the origin of each value.
type Effective struct {
	Settings     Settings
	Bus          Bus
	Blobstore    Blobstore
	NTP          []string
	TrustedCerts string
	Associations []DiskAssociation

	origins origins
}
