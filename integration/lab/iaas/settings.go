package iaas

import (
	"context"
	"encoding/json"

	"cambium/integration/lab/machine"
	"cambium/integration/lab/media"
)

// settings is the document that the agent is handed.
func (o Order) settings(vm VM) (json.RawMessage, error) {
	document := map[string]any{
		"agent_id": vm.AgentID,
		"vm":       map[string]string{"name": vm.CID, "id": vm.CID},
		"networks": vm.Networks,
		"disks":    map[string]any{"system": "/dev/vda", "ephemeral": hint(ephemeralID(vm.CID)), "persistent": map[string]string{}},
		"ntp":      append([]string{}, o.Agent.NTP...),
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

// The config drive as OpenStack makes it, which the stemcell's agent.json names.
const (
	driveLabel = "config-2"
	driveMeta  = "ec2/latest/meta-data.json"
	driveUser  = "ec2/latest/user-data"
	driveID    = "config-drive"
)

// deliver puts the settings where the agent finds them.
func (i *IaaS) deliver(ctx context.Context, vm VM, m machine.Machine) error {
	meta, err := json.Marshal(map[string]string{"instance-id": vm.CID})
	if err != nil {
		return err
	}
	drive := i.store.path(vms, vm.CID, driveID)
	if err := media.ISO(ctx, drive, driveLabel, media.Files{driveMeta: meta, driveUser: vm.Settings}); err != nil {
		return err
	}
	_, err = m.Attach(ctx, machine.Disk{ID: driveID, Image: drive, ReadOnly: true, Names: []string{"disk/by-label/" + driveLabel}})
	return err
}

// publish tells the agent's source of settings that disks have come or gone. Agents of API 2
// and later keep the hints themselves, so that settings are final.
func (i *IaaS) publish(context.Context, VM) error { return nil }
