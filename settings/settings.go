// Package settings is the settings document: its types, how it is decoded from every form that a
// CPI sends, merged with later updates, validated, explained and encoded again. It is pure: it
// reads no file, asks no source and touches no machine, so any package may import it.
package settings

import (
	"slices"

	"cambium/internal/secret"
)

// Settings is one decoded settings document, before updates are merged in (see Effective). The tags are the keys of
// cloudfoundry/bosh-agent; the order is that of its cached copy.
type Settings struct {
	AgentID   string             `json:"agent_id"`
	Blobstore Blobstore          `json:"blobstore"`
	Disks     Disks              `json:"disks"`
	Env       Env                `json:"env"`
	Networks  map[string]Network `json:"networks"`
	NTP       []string           `json:"ntp"`
	Mbus      secret.URL         `json:"mbus"`
	VM        VM                 `json:"vm"`

	// name and document are the name and the content of the decoded document, after the rules.
	name     string
	document secret.JSON
}

// VM identifies this machine by its name in the IaaS.
type VM struct {
	Name string `json:"name"`
}

// Disks lists the disks that the CPI attached. A nil Ephemeral means that the CPI named none.
type Disks struct {
	System       string              `json:"system"`
	Ephemeral    *DiskHint           `json:"ephemeral"`
	Persistent   map[string]DiskHint `json:"persistent"` // by disk CID
	RawEphemeral []RawDisk           `json:"raw_ephemeral"`
}

// DiskHint identifies a disk in the CPI's terms: by a bare string, which stands for both path and volume id, or by an
// object.
type DiskHint struct {
	Path         string `json:"path,omitempty"`
	VolumeID     string `json:"volume_id,omitempty"`
	DeviceID     string `json:"id,omitempty"`
	LUN          string `json:"lun,omitempty"`
	HostDeviceID string `json:"host_device_id,omitempty"`
	ISCSI        *ISCSI `json:"iscsi_settings,omitempty"`
	// Bare is true when the CPI sent a string.
	Bare bool `json:"-"`
}

// Empty reports whether the hint names nothing.
func (h DiskHint) Empty() bool {
	return h.Path == "" && h.VolumeID == "" && h.DeviceID == "" && h.LUN == "" && h.HostDeviceID == "" && h.ISCSI == nil
}

// ISCSI names a target and the CHAP account for it.
type ISCSI struct {
	InitiatorName string        `json:"initiator_name"`
	Username      string        `json:"username"`
	Target        string        `json:"target"`
	Password      secret.String `json:"password"`
}

// PersistentDisk is a disk with everything needed to mount it: the hint of the settings or of
// add_persistent_disk, and the env values that apply to it.
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

// VIP reports a network that the IaaS implements and the machine does not see.
func (n Network) VIP() bool { return n.Type == "vip" }

// DHCP reports whether the address comes from a DHCP server rather than from the document.
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

// Blobstore configures the store that blobs come from. Options hold credentials and are passed to the blobstore
// client unchanged.
type Blobstore struct {
	Provider string      `json:"provider"`
	Options  secret.JSON `json:"options"`
}

// Cert is a TLS identity and the CA to trust, all PEM.
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

// Env is the deployment manifest's part of the document.
type Env struct {
	Bosh                       BoshEnv  `json:"bosh"`
	PersistentDiskFS           string   `json:"persistent_disk_fs"`
	PersistentDiskMountOptions []string `json:"persistent_disk_mount_options"`
	PersistentDiskPartitioner  string   `json:"persistent_disk_partitioner"`
	// PersistentDiskForeign is an addition of this agent: "refuse" (the default) or "format"
	// for a persistent disk that carries something that is not ours.
	PersistentDiskForeign string `json:"persistent_disk_foreign,omitempty"`
	// PersistentDiskBlank is an addition of this agent: what a new persistent disk reads as, "zeros" (the default) or "noise".
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
	SwapSizeMiB           *uint64       `json:"swap_size"` // nil: chosen from RAM and disk; 0: no swap
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

// AgentEnv is "env.bosh.agent". All but Settings are additions of this agent, for which agent.json decides if they are
// nil or empty.
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
	// PersistentDiskForeign goes before that of the env.
	PersistentDiskForeign string `json:"persistent_disk_foreign,omitempty"`
}

// Update is the argument of update_settings and the content of update_settings.json.
type Update struct {
	Mbus         Bus               `json:"mbus"`
	Blobstores   []Blobstore       `json:"blobstores"`
	TrustedCerts string            `json:"trusted_certs"`
	Associations []DiskAssociation `json:"disk_associations"`

	// members are those of the document, unknown ones, too: an absent one keeps what was, an empty one clears it.
	members map[string]secret.JSON
}

// DiskAssociation gives a persistent disk a name below instance/disks.
type DiskAssociation struct {
	Name string `json:"name"`
	CID  string `json:"cid"`
}

// Effective combines the settings document with the updates merged over it; the agent acts on the result. Merge makes
// one; Explain names the origin of each value.
type Effective struct {
	Settings     Settings
	Bus          Bus
	Blobstore    Blobstore
	NTP          []string
	TrustedCerts string
	Associations []DiskAssociation

	origins origins
}
