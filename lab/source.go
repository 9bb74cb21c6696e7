package lab

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"cambium/lab/machine"
	"cambium/lab/media"
	"cambium/lab/metadata"
	"cambium/lab/registry"
)

// Source is a way to deliver settings to a machine.
type Source string

// The sources, each as used by the CPIs that are named.
const (
	File             Source = "file"              // warden, docker, Azure
	ConfigDrive      Source = "configdrive"       // OpenStack: ISO, ec2/latest
	ConfigDriveNova  Source = "configdrive-nova"  // OpenStack: ISO, openstack/latest
	ConfigDriveFAT   Source = "configdrive-vfat"  // OpenStack: FAT, ec2/latest
	ConfigDriveNovaF Source = "configdrive-vnova" // OpenStack: FAT, openstack/latest
	CDROM            Source = "cdrom"             // vSphere
	GuestInfo        Source = "guestinfo"         // vSphere, newer
	HTTP             Source = "http"              // AWS, with session tokens
	InstanceMetadata Source = "google"            // Google
	Registry         Source = "registry"          // AWS and others with CPI API version 1
)

// Sources lists all of them.
func Sources() []Source {
	return []Source{File, ConfigDrive, ConfigDriveNova, ConfigDriveFAT, ConfigDriveNovaF, CDROM, GuestInfo, HTTP,
		InstanceMetadata, Registry}
}

// Versions has the versions of the CPI API that the parts of a deployment support.
type Versions struct{ Director, CPI, Stemcell int }

// current has the versions of up-to-date Directors, CPIs and stemcells.
var current = Versions{2, 2, 2}

// registry reports whether the CPI must use the registry. It may put complete settings into user data only if all three
// support version 2.
func (v Versions) registry() bool { return v.Director < 2 || v.CPI < 2 || v.Stemcell < 2 }

// hint reports whether attach_disk returns a hint, which the Director passes to the agent.
func (v Versions) hint() bool { return v.Director >= 2 && v.CPI >= 2 }

// Paths in the machine.
const (
	settingsFile = "/var/vcap/bosh/agent-bootstrap-env.json"
	rpcTool      = "/usr/bin/vmware-rpctool"
	guestInfo    = "/var/lib/guestinfo"
)

// delivery describes the way in which a machine gets its settings.
type delivery struct {
	sources []any // for agent.json
	// put delivers a document. It is called again when the CPI changes the settings.
	put func(ctx context.Context, settings []byte) error
	// rewritten means that the CPI changes the settings when disks are attached or detached.
	rewritten bool
	// network means that the agent needs an address before it has settings.
	network bool
}

// agentJSON returns agent.json with the options of the lab's own stemcell. Disks are identified by path, because no
// udev runs in a container.
func (d delivery) agentJSON() []byte {
	data, err := json.MarshalIndent(Document{
		"Platform": map[string]any{"Linux": map[string]any{"PartitionerType": "parted", "ServiceManager": "systemd",
			"VerdictPort": machine.VerdictPort}},
		"Infrastructure": map[string]any{"Settings": map[string]any{
			"Sources": d.sources, "UseServerName": true, "UseRegistry": true}},
	}, "", "  ")
	if err != nil {
		panic(err) // constant input
	}
	return data
}

// deliver returns the delivery for the machine's source.
func (i *Instance) deliver() (delivery, error) {
	layouts := map[Source]drive{
		ConfigDrive:      {media.ISO, "ec2/latest/meta-data.json", "ec2/latest/user-data"},
		ConfigDriveNova:  {media.ISO, "openstack/latest/meta_data.json", "openstack/latest/user_data"},
		ConfigDriveFAT:   {media.FAT, "ec2/latest/meta-data.json", "ec2/latest/user-data"},
		ConfigDriveNovaF: {media.FAT, "openstack/latest/meta_data.json", "openstack/latest/user_data"},
	}
	switch source := i.vm.Source; source {
	case File:
		return delivery{sources: []any{Document{"Type": "File", "SettingsPath": settingsFile}}, rewritten: true,
			put: func(_ context.Context, settings []byte) error {
				return i.WriteFile(machine.File{Path: settingsFile, Data: settings, Mode: 0o600})
			}}, nil
	case ConfigDrive, ConfigDriveNova, ConfigDriveFAT, ConfigDriveNovaF:
		return i.configDrive(layouts[source]), nil
	case CDROM:
		return i.cdrom(), nil
	case GuestInfo:
		return i.guestInfo(), nil
	case InstanceMetadata:
		return i.google(), nil
	case HTTP, Registry:
		return i.http(), nil
	}
	return delivery{}, fmt.Errorf("settings source %q is not one of %v", i.vm.Source, Sources())
}

// drive is a kind of config drive.
type drive struct {
	write              func(ctx context.Context, image, label string, files media.Files) error
	metaData, userData string
}

// label is the label of OpenStack's config drives.
const label = "config-2"

func (i *Instance) configDrive(d drive) delivery {
	source := Document{"Type": "ConfigDrive",
		"DiskPaths":    []string{"/dev/disk/by-label/CONFIG-2", "/dev/disk/by-label/" + label},
		"MetaDataPath": d.metaData, "UserDataPath": d.userData}
	return delivery{sources: []any{source}, put: func(ctx context.Context, settings []byte) error {
		data, err := i.userData(settings)
		if err != nil {
			return err
		}
		meta := Document{"instance-id": i.name(),
			"public-keys": map[string]any{"0": map[string]any{"openssh-key": i.vm.PublicKey}}}
		image := filepath.Join(i.dir(), "configdrive.img")
		if err := d.write(ctx, image, label, media.Files{d.metaData: meta.JSON(), d.userData: data}); err != nil {
			return err
		}
		return i.insert(ctx, machine.Disk{ID: "configdrive", Image: image, Names: []string{"disk/by-label/" + label}})
	}}
}

func (i *Instance) cdrom() delivery {
	return delivery{sources: []any{Document{"Type": "CDROM", "FileName": "env"}},
		put: func(ctx context.Context, settings []byte) error {
			image := filepath.Join(i.dir(), "cdrom.iso")
			if err := media.PlainISO(ctx, image, media.Files{"env": settings}); err != nil {
				return err
			}
			return i.insert(ctx, machine.Disk{ID: "cdrom", Image: image, Bus: machine.CDROM, Names: []string{"sr0"}})
		}}
}

// insert attaches a medium and replaces a previous one.
func (i *Instance) insert(ctx context.Context, d machine.Disk) error {
	for _, a := range i.Disks() {
		if a.Disk.ID == d.ID {
			if err := i.Detach(ctx, d.ID); err != nil {
				return err
			}
		}
	}
	d.ReadOnly = true
	_, err := i.Attach(ctx, d)
	return err
}

// guestInfo replaces VMware's tool, which talks to the hypervisor.
func (i *Instance) guestInfo() delivery {
	const tool = `#!/bin/sh
# info-get KEY prints a value, info-set KEY VALUE stores one.
set -- $1
case $1 in
info-get) cat "` + guestInfo + `/$2" ;;
info-set) key=$2; shift 2; value=$*; printf '%s' "${value#\'\'}" >"` + guestInfo + `/$key" ;;
*) exit 1 ;;
esac
`
	return delivery{sources: []any{Document{"Type": "VsphereGuestInfo"}},
		put: func(_ context.Context, settings []byte) error {
			encoded := base64.StdEncoding.EncodeToString(settings)
			return errors.Join(
				i.WriteFile(machine.File{Path: rpcTool, Data: []byte(tool), Mode: 0o755}),
				i.WriteFile(machine.File{Path: guestInfo + "/guestinfo.userdata", Data: []byte(encoded), Mode: 0o600}))
		}}
}

func (i *Instance) google() delivery {
	source := Document{"Type": "InstanceMetadata", "URI": "http://" + metadata.Address,
		"SettingsPath": "/computeMetadata/v1/instance/attributes/bosh_settings",
		"Headers":      map[string]string{"Metadata-Flavor": "Google"}}
	return delivery{sources: []any{source}, network: true, rewritten: true,
		put: func(_ context.Context, settings []byte) error {
			i.lab.Metadata.Set(i.IP, metadata.Instance{ID: i.name(), MAC: i.MAC(0),
				Attributes: map[string][]byte{"bosh_settings": settings}})
			return nil
		}}
}

func (i *Instance) http() delivery {
	source := Document{"Type": "HTTP", "URI": "http://" + metadata.Address, "UserDataPath": "/latest/user-data",
		"InstanceIDPath": "/latest/meta-data/instance-id", "SSHKeysPath": "/latest/meta-data/public-keys/0/openssh-key",
		"TokenPath": "/latest/api/token"}
	return delivery{sources: []any{source}, network: true, rewritten: i.versions().registry(),
		put: func(_ context.Context, settings []byte) error {
			data, err := i.userData(settings)
			if err != nil {
				return err
			}
			i.lab.Metadata.Set(i.IP, metadata.Instance{ID: i.name(), MAC: i.MAC(0), UserData: data, PublicKey: i.vm.PublicKey,
				RequireToken: true})
			return nil
		}}
}

// versions returns the configured versions, or those that the source implies.
func (i *Instance) versions() Versions {
	if i.vm.Versions != (Versions{}) {
		return i.vm.Versions
	}
	if i.vm.Source == Registry {
		return Versions{1, 1, 1}
	}
	return current
}

// userData returns the document that the CPI stores as user data: the settings, or the address of the registry, which
// it then fills.
func (i *Instance) userData(settings []byte) ([]byte, error) {
	if i.vm.Settings != nil && i.vm.Source != Registry {
		return settings, nil // from outside: as they are
	}
	var document struct {
		Networks map[string]struct {
			DNS []string `json:"dns"`
		} `json:"networks"`
	}
	var full Document
	if err := errors.Join(json.Unmarshal(settings, &document), json.Unmarshal(settings, &full)); err != nil {
		return nil, fmt.Errorf("settings for user data: %w", err)
	}
	servers := []string{}
	for _, n := range document.Networks {
		servers = append(servers, n.DNS...)
	}
	extra := Document{"server": map[string]any{"name": i.name()}, "dns": map[string]any{"nameserver": servers}}
	if !i.versions().registry() {
		return full.merge(extra).JSON(), nil
	}
	i.lab.Registry.Set(i.name(), settings)
	// The lab has no name server: an address in the endpoint needs none.
	endpoint := i.lab.Registry.Endpoint(net.JoinHostPort(Gateway, strconv.Itoa(registry.Port)), i.name())
	pointer := Document{"networks": full["networks"], "dns": map[string]any{},
		"registry": map[string]any{"endpoint": endpoint}}
	return Document{"server": extra["server"]}.merge(pointer).JSON(), nil
}
