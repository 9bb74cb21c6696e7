package iaas

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"time"

	"cambium/lab/iaas/value"
	"cambium/lab/machine"
	"cambium/lab/media"
	"cambium/lab/metadata"
	"cambium/lab/registry"
)

// The ways to deliver settings to an agent. The stemcell's agent.json must support the one that is used.
const (
	configDrive = "configdrive"
	cdrom       = "cdrom"
	httpSource  = "http"
)

// settings returns the document for the agent.
func (o Order) settings(vm VM) (json.RawMessage, error) {
	document := map[string]any{
		"agent_id": vm.AgentID,
		"vm":       map[string]CID{"name": vm.CID, "id": vm.CID},
		"networks": vm.Networks,
		"disks":    vm.disks(nil),
		"ntp":      append([]value.Name{}, o.Agent.NTP...),
		"mbus":     o.Agent.Mbus,
		"env":      json.RawMessage("{}"),
	}
	if len(o.Env) > 0 && string(o.Env) != "null" {
		document["env"] = o.Env
	}
	if len(o.Agent.Blobstore) > 0 && string(o.Agent.Blobstore) != "null" {
		document["blobstore"] = o.Agent.Blobstore
	}
	return json.Marshal(document)
}

// disks returns the disks of a VM for its settings, including those that are attached.
func (vm VM) disks(attached []CID) map[string]any {
	persistent := map[string]any{}
	for _, cid := range attached {
		persistent[cid.String()] = vm.Shape.hint(cid.String())
	}
	system := "/dev/vda"
	if vm.Shape.DiskBus == machine.SCSI {
		system = "/dev/sda"
	}
	disks := map[string]any{"system": system, "persistent": persistent}
	if vm.Shape.EphemeralDisk > 0 {
		disks["ephemeral"] = vm.Shape.hint(ephemeralID(vm.CID))
	}
	if vm.Shape.RawStorage {
		disks["raw_ephemeral"] = []map[string]string{{"path": vm.Shape.path(rawID(vm.CID))}}
	}
	return disks
}

// serve starts the services that VMs use: metadata and registry.
func (i *IaaS) serve() error {
	if err := i.Net.AddAddress("lo", metadata.Address+"/32"); err != nil {
		return err
	}
	for port, handler := range map[int]http.Handler{80: i.metadata, registry.Port: i.registry} {
		listener, err := i.Net.Listen("tcp", fmt.Sprintf("%s:%d", metadata.Address, port))
		if err != nil {
			return err
		}
		server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
		i.services = append(i.services, server)
		go func() { _ = server.Serve(listener) }()
	}
	return nil
}

// userData returns the document that the agent reads first: the settings or, for version 1 of the CPI contract, the
// address of the registry.
func (i *IaaS) userData(vm VM) ([]byte, error) {
	if !vm.Registry {
		return vm.Settings, nil
	}
	servers := []value.Addr{}
	for _, n := range vm.Networks {
		servers = append(servers, n.DNS...)
	}
	endpoint := i.registry.Endpoint(fmt.Sprintf("%s:%d", metadata.Address, registry.Port), vm.CID.String())
	return json.Marshal(map[string]any{
		"server": map[string]CID{"name": vm.CID}, "networks": vm.Networks, "dns": map[string]any{"nameserver": servers},
		"registry": map[string]string{"endpoint": endpoint}})
}

// The config drive as created by OpenStack. The stemcell's agent.json has these names.
const (
	driveLabel = "config-2"
	driveMeta  = "ec2/latest/meta-data.json"
	driveUser  = "ec2/latest/user-data"
	driveID    = "config-drive"
)

// deliver delivers the settings of a VM.
func (i *IaaS) deliver(ctx context.Context, vm VM, m machine.Machine) error {
	if err := i.publish(vm); err != nil {
		return err
	}
	data, err := i.userData(vm)
	if err != nil {
		return err
	}
	medium := machine.Disk{ID: driveID, Image: i.store.path(vm.CID, driveID), ReadOnly: true}
	switch vm.Shape.Source {
	case httpSource:
		for _, n := range vm.Networks {
			// Where stemcells of AWS and OpenStack look, and where Google's do.
			i.metadata.Set(n.IP.String(), metadata.Instance{ID: vm.CID.String(), UserData: data,
				Attributes: map[string][]byte{"bosh_settings": vm.Settings}})
		}
		return nil
	case cdrom:
		medium.Bus, medium.Names = machine.CDROM, []string{"sr0"}
		err = media.PlainISO(ctx, medium.Image, media.Files{"env": data})
	default:
		meta, marshalErr := json.Marshal(map[string]CID{"instance-id": vm.CID})
		if marshalErr != nil {
			return marshalErr
		}
		medium.Names = []string{"disk/by-label/" + driveLabel}
		err = media.ISO(ctx, medium.Image, driveLabel, media.Files{driveMeta: meta, driveUser: data})
	}
	if err != nil {
		return err
	}
	_, err = m.Attach(ctx, medium)
	return err
}

// publish writes the settings with the currently attached disks to the registry. Agents of version 2 and later store
// the hints themselves, so their settings do not change.
func (i *IaaS) publish(vm VM) error {
	if !vm.Registry {
		return nil
	}
	var document map[string]json.RawMessage
	if err := json.Unmarshal(vm.Settings, &document); err != nil {
		return err
	}
	disks, err := json.Marshal(vm.disks(i.attached(vm.CID)))
	if err != nil {
		return err
	}
	document["disks"] = disks
	data, err := json.Marshal(document)
	if err != nil {
		return err
	}
	i.registry.Set(vm.CID.String(), data)
	return nil
}

// withdraw removes a VM from the services and from the network.
func (i *IaaS) withdraw(vm VM) error {
	i.registry.Delete(vm.CID.String())
	for _, n := range vm.Networks {
		i.metadata.Delete(n.IP.String())
	}
	if i.net == nil {
		return nil // before there is a network
	}
	return i.net.Unplug(vm.CID.String())
}
