package cpi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"cambium/lab/iaas"
)

// Backend answers requests with an IaaS.
type Backend struct{ IaaS *iaas.IaaS }

// call is a request that is being answered.
type call struct {
	Request
	iaas  *iaas.IaaS
	agent iaas.AgentDefaults
	image io.Reader // the bytes that follow a create_stemcell
}

// method is one row of the contract.
type method struct {
	least, most int // number of arguments
	run         func(ctx context.Context, c *call) (any, error)
	// undo removes what a creation has made for a caller that has disconnected.
	undo func(ctx context.Context, c *call, result any) error
}

// methods that need the holder. info and ping are answered before.
var methods = map[string]method{
	"create_stemcell": {2, 3, createStemcell, func(_ context.Context, c *call, result any) error { return c.iaas.DeleteStemcell(result.(string)) }},
	"delete_stemcell": {1, 1, of("stemcell", func(_ context.Context, c *call, cid string) (any, error) { return nil, c.iaas.DeleteStemcell(cid) }), nil},

	"create_vm": {4, 6, createVM, func(ctx context.Context, c *call, result any) error { return c.iaas.DeleteVM(ctx, first(result)) }},
	"delete_vm": {1, 1, of("vm", func(ctx context.Context, c *call, cid string) (any, error) { return nil, c.iaas.DeleteVM(ctx, cid) }), nil},
	"has_vm":    {1, 1, of("vm", func(_ context.Context, c *call, cid string) (any, error) { return c.iaas.HasVM(cid), nil }), nil},
	"reboot_vm": {1, 1, of("vm", func(ctx context.Context, c *call, cid string) (any, error) { return nil, c.iaas.RebootVM(ctx, cid) }), nil},
	"set_vm_metadata": {2, 2, ofMetadata("vm", func(c *call, cid string, metadata map[string]string) error {
		return c.iaas.SetVMMetadata(cid, metadata)
	}), nil},
	"get_disks": {1, 1, of("vm", func(_ context.Context, c *call, cid string) (any, error) { return c.iaas.DisksOf(cid) }), nil},

	"create_disk": {1, 3, createDisk, func(ctx context.Context, c *call, result any) error { return c.iaas.DeleteDisk(ctx, result.(string)) }},
	"delete_disk": {1, 1, of("disk", func(ctx context.Context, c *call, cid string) (any, error) { return nil, c.iaas.DeleteDisk(ctx, cid) }), nil},
	"has_disk":    {1, 1, of("disk", func(_ context.Context, c *call, cid string) (any, error) { return c.iaas.HasDisk(cid), nil }), nil},
	"attach_disk": {2, 2, of("vm", attachDisk), nil},
	"detach_disk": {2, 2, of("vm", detachDisk), nil},
	"resize_disk": {2, 2, of("disk", resizeDisk), nil},
	"update_disk": {3, 3, of("disk", updateDisk), nil},
	"set_disk_metadata": {2, 2, ofMetadata("disk", func(c *call, cid string, metadata map[string]string) error {
		return c.iaas.SetDiskMetadata(cid, metadata)
	}), nil},

	"snapshot_disk":   {1, 2, of("disk", snapshotDisk), func(_ context.Context, c *call, result any) error { return c.iaas.DeleteSnapshot(result.(string)) }},
	"delete_snapshot": {1, 1, of("snapshot", func(_ context.Context, c *call, cid string) (any, error) { return nil, c.iaas.DeleteSnapshot(cid) }), nil},

	"create_network": {1, 1, createNetwork, func(_ context.Context, c *call, result any) error { return c.iaas.DeleteNetwork(first(result)) }},
	"delete_network": {1, 1, of("network", func(_ context.Context, c *call, cid string) (any, error) { return nil, c.iaas.DeleteNetwork(cid) }), nil},
}

// of is a method whose first argument names an object.
func of(name string, run func(ctx context.Context, c *call, cid string) (any, error)) func(context.Context, *call) (any, error) {
	return func(ctx context.Context, c *call) (any, error) {
		cid, err := c.cid(0, name)
		if err != nil {
			return nil, err
		}
		return run(ctx, c, cid)
	}
}

// ofMetadata is a method that sets the metadata of an object.
func ofMetadata(name string, set func(c *call, cid string, metadata map[string]string) error) func(context.Context, *call) (any, error) {
	return of(name, func(_ context.Context, c *call, cid string) (any, error) {
		metadata, err := c.metadata(1)
		if err != nil {
			return nil, err
		}
		return nil, set(c, cid, metadata)
	})
}

// first is the CID in a result that is one, or a list that begins with one.
func first(result any) string {
	if list, ok := result.([]any); ok {
		result = list[0]
	}
	return result.(string)
}

// Local answers what needs no holder: info, ping, sums, and methods that are not there.
func Local(r Request) (Reply, bool) {
	switch r.Method {
	case "info":
		return Info(), true
	case "ping":
		return Reply{Result: "pong"}, true
	case "calculate_vm_cloud_properties":
		return reply(calculate(r)), true
	case "configure_networks":
		return Failure(iaas.Failf(iaas.NotSupported, "configure_networks: the networks of a VM cannot be changed; recreate it")), true
	}
	if _, known := methods[r.Method]; !known {
		return Failure(iaas.Failf(iaas.NotImplemented, "there is no method %q", r.Method)), true
	}
	return Reply{}, false
}

// Absent answers for an IaaS that has nothing in it: nothing is there, and nothing need be deleted.
func Absent(r Request) (Reply, bool) {
	switch r.Method {
	case "has_vm", "has_disk":
		return Reply{Result: false}, true
	case "delete_vm", "delete_disk", "delete_stemcell", "delete_snapshot":
		return Reply{}, true
	}
	return Reply{}, false
}

func reply(result any, err error) Reply {
	if err != nil {
		return Failure(err)
	}
	return Reply{Result: result}
}

// Do answers a request. gone reports whether the caller has disconnected, in which case what was
// made for it is removed: its CID was never answered.
func (b Backend) Do(ctx context.Context, r Request, agent iaas.AgentDefaults, image io.Reader, gone func() bool) Reply {
	m, known := methods[r.Method]
	if !known {
		local, _ := Local(r)
		return local
	}
	if n := len(r.Arguments); n < m.least || n > m.most {
		return Failure(fmt.Errorf("%s wants %d to %d arguments, got %d", r.Method, m.least, m.most, n))
	}
	c := &call{Request: r, iaas: b.IaaS, agent: agent, image: image}
	result, err := m.run(ctx, c)
	if err == nil && m.undo != nil && gone() {
		err = fmt.Errorf("the caller has gone; what was made for it is removed again")
		if failed := m.undo(ctx, c, result); failed != nil {
			err = fmt.Errorf("the caller has gone, and what was made for it could not be removed: %w", failed)
		}
	}
	return reply(result, err)
}

// argument decodes the n-th one. null leaves the value as it is.
func (c *Request) argument(n int, name string, value any) error {
	if n >= len(c.Arguments) {
		return nil
	}
	if err := json.Unmarshal(c.Arguments[n], value); err != nil {
		return fmt.Errorf("%s: argument %d (%s): %w", c.Method, n+1, name, err)
	}
	return nil
}

// maxCID bounds what is accepted as a CID.
const maxCID = 255

// cid decodes an argument that names an object.
func (c *Request) cid(n int, name string) (string, error) {
	var cid string
	if err := c.argument(n, name, &cid); err != nil {
		return "", err
	}
	if cid == "" || len(cid) > maxCID {
		return "", fmt.Errorf("%s: argument %d (%s) is no CID", c.Method, n+1, name)
	}
	return cid, nil
}

func (c *Request) raw(n int) json.RawMessage {
	if n >= len(c.Arguments) || string(c.Arguments[n]) == "null" {
		return nil
	}
	return c.Arguments[n]
}

// object is an argument that must be a JSON object, or null.
func (c *Request) object(n int, name string) (json.RawMessage, error) {
	var object map[string]json.RawMessage
	if err := c.argument(n, name, &object); err != nil {
		return nil, err
	}
	return c.raw(n), nil
}

// metadata decodes a map whose values are mostly strings; others are kept as their JSON text.
func (c *Request) metadata(n int) (map[string]string, error) {
	var given map[string]json.RawMessage
	if err := c.argument(n, "metadata", &given); err != nil {
		return nil, err
	}
	metadata := map[string]string{}
	for key, value := range given {
		var text string
		if json.Unmarshal(value, &text) != nil {
			text = string(value)
		}
		metadata[key] = text
	}
	return metadata, nil
}

func createStemcell(ctx context.Context, c *call) (any, error) {
	properties, err := c.object(1, "cloud_properties")
	if err != nil {
		return nil, err
	}
	var env struct {
		Tags map[string]string `json:"tags"`
	}
	if err := c.argument(2, "env", &env); err != nil {
		return nil, err
	}
	return c.iaas.CreateStemcell(ctx, c.image, properties, env.Tags, c.Context.DirectorUUID)
}

func createVM(ctx context.Context, c *call) (any, error) {
	o := iaas.Order{StemcellAPI: c.Context.VM.Stemcell.APIVersion, APIVersion: c.APIVersion, Director: c.Context.DirectorUUID, Agent: c.agent}
	var err error
	if o.AgentID, err = c.cid(0, "agent_id"); err != nil {
		return nil, err
	}
	if o.Stemcell, err = c.cid(1, "stemcell"); err != nil {
		return nil, err
	}
	if err := c.argument(2, "cloud_properties", &o.Shape); err != nil {
		return nil, err
	}
	if err := c.argument(3, "networks", &o.Networks); err != nil {
		return nil, err
	}
	// The fifth argument names disks that will be attached later, for placement; this IaaS has one
	// host.
	if o.Env, err = c.object(5, "env"); err != nil {
		return nil, err
	}
	cid, networks, err := c.iaas.CreateVM(ctx, o)
	if err != nil || c.APIVersion < 2 {
		return cid, err
	}
	return []any{cid, networks}, nil
}

func createDisk(ctx context.Context, c *call) (any, error) {
	size := 0
	if err := c.argument(0, "size", &size); err != nil {
		return nil, err
	}
	properties, err := c.object(1, "cloud_properties")
	if err != nil {
		return nil, err
	}
	// The third names the VM that the disk is for, which may not be there any more.
	return c.iaas.CreateDisk(ctx, size, properties, c.Context.DirectorUUID)
}

func attachDisk(ctx context.Context, c *call, vm string) (any, error) {
	disk, err := c.cid(1, "disk")
	if err != nil {
		return nil, err
	}
	hint, err := c.iaas.AttachDisk(ctx, vm, disk)
	if err != nil || c.APIVersion < 2 {
		return nil, err
	}
	return hint, nil
}

func detachDisk(ctx context.Context, c *call, vm string) (any, error) {
	disk, err := c.cid(1, "disk")
	if err != nil {
		return nil, err
	}
	return nil, c.iaas.DetachDisk(ctx, vm, disk)
}

func resizeDisk(_ context.Context, c *call, cid string) (any, error) {
	size := 0
	if err := c.argument(1, "size", &size); err != nil {
		return nil, err
	}
	return nil, c.iaas.ResizeDisk(cid, size)
}

func updateDisk(_ context.Context, c *call, cid string) (any, error) {
	size := 0
	if err := c.argument(1, "size", &size); err != nil {
		return nil, err
	}
	properties, err := c.object(2, "cloud_properties")
	if err != nil {
		return nil, err
	}
	return nil, c.iaas.UpdateDisk(cid, size, properties)
}

func snapshotDisk(ctx context.Context, c *call, cid string) (any, error) {
	metadata, err := c.metadata(1)
	if err != nil {
		return nil, err
	}
	return c.iaas.SnapshotDisk(ctx, cid, metadata, c.Context.DirectorUUID)
}

func createNetwork(_ context.Context, c *call) (any, error) {
	var definition struct {
		Type    string `json:"type"`
		Range   string `json:"range"`
		Gateway string `json:"gateway"`
	}
	if err := c.argument(0, "definition", &definition); err != nil {
		return nil, err
	}
	n, err := c.iaas.CreateNetwork(definition.Type, definition.Range, definition.Gateway, c.Context.DirectorUUID)
	if err != nil {
		return nil, err
	}
	return []any{n.CID, map[string]any{"range": n.Range, "gateway": n.Gateway, "reserved": []string{}}, map[string]string{"name": n.CID}}, nil
}

// calculate turns what an instance group needs into a VM type.
func calculate(r Request) (any, error) {
	var wanted struct {
		CPU       int `json:"cpu"`
		RAM       int `json:"ram"`
		Ephemeral int `json:"ephemeral_disk_size"`
	}
	if len(r.Arguments) != 1 {
		return nil, fmt.Errorf("%s wants 1 argument, got %d", r.Method, len(r.Arguments))
	}
	if err := r.argument(0, "resources", &wanted); err != nil {
		return nil, err
	}
	if wanted.CPU < 1 || wanted.RAM < 1 || wanted.Ephemeral < 1 {
		return nil, fmt.Errorf("%s: cpu, ram and ephemeral_disk_size must be given", r.Method)
	}
	return map[string]int{"cpu": wanted.CPU, "ram": wanted.RAM, "ephemeral_disk": wanted.Ephemeral}, nil
}
