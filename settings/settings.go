// Package settings is the settings document: its types, how it is decoded from every form that a
// CPI sends, merged with later updates, validated, explained and encoded again. It is pure: it
// reads no file, asks no source and touches no machine, so any package may import it.
package settings

import "cambium/internal/secret"

// Settings is one decoded settings document, before updates are merged in (see Effective).
type Settings struct {
	AgentID   string
	VM        VM
	Mbus      secret.URL
	Blobstore Blobstore
	NTP       []string
	Networks  map[string]Network
	Disks     Disks
	Env       Env

	// document is what was decoded, kept for the members that have no field here.
	document *document
}

// VM is what the IaaS calls this machine.
type VM struct{ Name string }

// Disks is what the CPI attached. A nil Ephemeral means that the CPI named none.
type Disks struct {
	System       string
	Ephemeral    *DiskHint
	Persistent   map[string]DiskHint // by disk CID
	RawEphemeral []DiskHint
}

// DiskHint is how a CPI names a disk: a bare string, which stands for both path and volume id,
// or an object. Numbers are accepted wherever upstream wants strings.
type DiskHint struct {
	Path         string
	VolumeID     string
	DeviceID     string // "id" on the wire
	LUN          string
	HostDeviceID string
	ISCSI        *ISCSI
	// CID is only set in raw_ephemeral, where "id" is the disk's CID and not its device id.
	CID string
	// Bare is true when the CPI sent a string; the cached copy keeps that form.
	Bare bool
}

// Empty reports whether the hint names nothing.
func (h DiskHint) Empty() bool {
	return h.Path == "" && h.VolumeID == "" && h.DeviceID == "" && h.LUN == "" && h.HostDeviceID == "" && h.ISCSI == nil
}

// ISCSI names a target and the CHAP account for it.
type ISCSI struct {
	InitiatorName string
	Username      string
	Target        string
	Password      secret.String
}

// PersistentDisk is a disk with everything needed to mount it: the hint of the settings or of
// add_persistent_disk, and the env values that apply to it.
type PersistentDisk struct {
	CID          string
	Hint         DiskHint
	FileSystem   string // "", "ext4" or "xfs"; "" means ext4
	MountOptions []string
	Partitioner  string
}

// Network is one member of "networks".
type Network struct {
	Type          string // "manual", "dynamic", "vip" or ""
	IP            string
	Netmask       string
	Gateway       string
	Prefix        string
	DNS           []string
	Default       []string // any of "dns", "gateway"
	MAC           string
	UseDHCP       bool
	Resolved      bool
	Preconfigured bool
	Alias         string
	Routes        []Route
}

// VIP reports a network that the IaaS implements and the machine does not see.
func (n Network) VIP() bool { return n.Type == "vip" }

// DHCP reports whether the address comes from a DHCP server rather than from the document.
func (n Network) DHCP() bool {
	return !n.VIP() && (n.Type == "dynamic" || n.UseDHCP || n.Resolved || n.IP == "" || n.Netmask == "")
}

// DefaultFor reports whether the network is the default for "dns" or "gateway".
func (n Network) DefaultFor(category string) bool {
	for _, d := range n.Default {
		if d == category {
			return true
		}
	}
	return false
}

// Route is an extra route of a network.
type Route struct {
	Destination string
	Gateway     string
	Netmask     string
}

// Blobstore is where blobs come from. Options hold credentials and are handed to the blobstore
// client as they came.
type Blobstore struct {
	Provider string
	Options  secret.JSON
}

// Cert is a TLS identity and the authority to trust, all PEM.
type Cert struct {
	CA          string
	Certificate string
	PrivateKey  secret.String
}

// Empty reports whether no member is set.
func (c Cert) Empty() bool { return c.CA == "" && c.Certificate == "" && c.PrivateKey.Empty() }

// Equal compares all members.
func (c Cert) Equal(o Cert) bool {
	return c.CA == o.CA && c.Certificate == o.Certificate && c.PrivateKey.Equal(o.PrivateKey)
}

// Bus is the Director's address and the TLS identity to use for it.
type Bus struct {
	URLs []secret.URL
	Cert Cert
}

// Env is the deployment manifest's part of the document.
type Env struct {
	Bosh                       BoshEnv
	PersistentDiskFS           string
	PersistentDiskMountOptions []string
	PersistentDiskPartitioner  string
	// PersistentDiskForeign is an addition of this agent: "refuse" (the default) or "format"
	// for a persistent disk that carries something that is not ours.
	PersistentDiskForeign string
	// PersistentDiskBlank is an addition of this agent: what a new persistent disk reads as, "zeros" (the default) or "noise".
	PersistentDiskBlank string
}

// BoshEnv is "env.bosh".
type BoshEnv struct {
	Password              secret.String
	KeepRootPassword      bool
	RemoveDevTools        bool
	RemoveStaticLibraries bool
	AuthorizedKeys        []string
	SwapSizeMiB           *uint64 // nil: chosen from RAM and disk; 0: no swap
	Mbus                  Bus
	Blobstores            []Blobstore
	NTP                   []string // nil: absent; empty: explicitly none
	IPv6Enable            bool
	JobDirTmpfs           bool
	JobDirTmpfsSize       string
	RunDirTmpfsSize       string
	SettingsTmpfs         bool // "agent.settings.tmpfs"
	// TaskAnswerHoldSeconds is "agent.task_answer_hold", an addition of this agent; nil: agent.json decides.
	TaskAnswerHoldSeconds *uint64
	// EarlyPings and Firewall are "agent.early_pings" and "agent.firewall", additions of this agent; nil:
	// agent.json decides.
	EarlyPings, Firewall *bool
	// PersistentDiskForeign is "agent.persistent_disk_foreign"; it goes before that of the env.
	PersistentDiskForeign string
	Parallel              int // at least 1; 5 when absent
}

// Update is the argument of update_settings and the content of update_settings.json. The Has
// flags tell an absent key, which keeps what was, from an empty value, which clears it.
type Update struct {
	Mbus            Bus
	HasMbus         bool
	Blobstores      []Blobstore
	HasBlobstores   bool
	TrustedCerts    string
	HasTrustedCerts bool
	Associations    []DiskAssociation
	HasAssociations bool

	document *document
	unknown  []unknownMember // instead of document in an update that Apply made
}

// DiskAssociation gives a persistent disk a name below instance/disks.
type DiskAssociation struct {
	Name string
	CID  string
}

// Effective is what the agent acts on: the settings document with updates merged over it. Merge
// makes one; Explain tells where each value came from.
type Effective struct {
	Settings     Settings
	Bus          Bus
	Blobstore    Blobstore
	NTP          []string
	TrustedCerts string
	Associations []DiskAssociation

	origins origins
}
