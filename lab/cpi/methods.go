package cpi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"cambium/lab/iaas"
	"cambium/lab/iaas/value"
)

// backend answers requests.
type backend struct {
	IaaS *iaas.IaaS
	// refused lists engines that the caller may not use.
	refused []string
}

// call is a request with its context.
type call struct {
	Request
	iaas  *iaas.IaaS
	agent iaas.AgentDefaults
	image io.Reader // bytes that follow a create_stemcell
	// refused lists engines that the caller may not use.
	refused []string
}

// method is a method of the CPI contract.
type method struct {
	least, most int // number of arguments
	run         run
	// undo removes what a method has created, if the caller did not get the reply.
	undo func(ctx context.Context, c *call, cid iaas.CID) error
}

// methods lists the methods that need the holder. info and ping do not.
var methods = map[string]method{
	"create_stemcell": {2, 3, createStemcell, func(_ context.Context, c *call, cid iaas.CID) error {
		return c.iaas.DeleteStemcell(cid)
	}},
	"delete_stemcell": {1, 1, of(iaas.Stemcells, func(_ context.Context, c *call, cid iaas.CID) (any, error) {
		return nil, c.iaas.DeleteStemcell(cid)
	}), nil},

	"create_vm": {4, 6, createVM, func(ctx context.Context, c *call, cid iaas.CID) error {
		return c.iaas.DeleteVM(ctx, cid)
	}},
	"delete_vm": {1, 1, of(iaas.VMs, func(ctx context.Context, c *call, cid iaas.CID) (any, error) {
		return nil, c.iaas.DeleteVM(ctx, cid)
	}), nil},
	"has_vm": {1, 1, of(iaas.VMs, func(_ context.Context, c *call, cid iaas.CID) (any, error) {
		return c.iaas.HasVM(cid), nil
	}), nil},
	"reboot_vm": {1, 1, of(iaas.VMs, func(ctx context.Context, c *call, cid iaas.CID) (any, error) {
		return nil, c.iaas.RebootVM(ctx, cid)
	}), nil},
	"set_vm_metadata": {2, 2, ofMetadata(iaas.VMs, func(c *call, cid iaas.CID, metadata value.Metadata) error {
		return c.iaas.SetVMMetadata(cid, metadata)
	}), nil},
	"get_disks": {1, 1, of(iaas.VMs, func(_ context.Context, c *call, cid iaas.CID) (any, error) {
		return c.iaas.DisksOf(cid)
	}), nil},

	"create_disk": {1, 3, createDisk, func(ctx context.Context, c *call, cid iaas.CID) error {
		return c.iaas.DeleteDisk(ctx, cid)
	}},
	"delete_disk": {1, 1, of(iaas.Disks, func(ctx context.Context, c *call, cid iaas.CID) (any, error) {
		return nil, c.iaas.DeleteDisk(ctx, cid)
	}), nil},
	"has_disk": {1, 1, of(iaas.Disks, func(_ context.Context, c *call, cid iaas.CID) (any, error) {
		return c.iaas.HasDisk(cid), nil
	}), nil},
	"attach_disk": {2, 2, of(iaas.VMs, attachDisk), nil},
	"detach_disk": {2, 2, of(iaas.VMs, detachDisk), nil},
	"resize_disk": {2, 2, of(iaas.Disks, resizeDisk), nil},
	"update_disk": {3, 3, of(iaas.Disks, updateDisk), nil},
	"set_disk_metadata": {2, 2, ofMetadata(iaas.Disks, func(c *call, cid iaas.CID, metadata value.Metadata) error {
		return c.iaas.SetDiskMetadata(cid, metadata)
	}), nil},

	"snapshot_disk": {1, 2, of(iaas.Disks, snapshotDisk), func(_ context.Context, c *call, cid iaas.CID) error {
		return c.iaas.DeleteSnapshot(cid)
	}},
	"delete_snapshot": {1, 1, of(iaas.Snapshots, func(_ context.Context, c *call, cid iaas.CID) (any, error) {
		return nil, c.iaas.DeleteSnapshot(cid)
	}), nil},

	"create_network": {1, 1, createNetwork, func(_ context.Context, c *call, cid iaas.CID) error {
		return c.iaas.DeleteNetwork(cid)
	}},
	"delete_network": {1, 1, of(iaas.Networks, func(_ context.Context, c *call, cid iaas.CID) (any, error) {
		return nil, c.iaas.DeleteNetwork(cid)
	}), nil},
}

type (
	run      func(ctx context.Context, c *call) (any, error)
	runOn    func(ctx context.Context, c *call, cid iaas.CID) (any, error)
	describe func(c *call, cid iaas.CID, metadata value.Metadata) error
)

// of returns a method whose first argument is the CID of an object.
func of(class iaas.Class, run runOn) run {
	return func(ctx context.Context, c *call) (any, error) {
		cid, err := c.cid(0, class)
		if err != nil {
			return nil, err
		}
		return run(ctx, c, cid)
	}
}

// ofMetadata returns a method that sets the metadata of an object.
func ofMetadata(class iaas.Class, set describe) run {
	return of(class, func(_ context.Context, c *call, cid iaas.CID) (any, error) {
		var metadata value.Metadata
		if err := c.argument(1, "metadata", &metadata); err != nil {
			return nil, err
		}
		return nil, set(c, cid, metadata)
	})
}

// first returns the CID in a result, which is a CID or a list that begins with one.
func first(result any) iaas.CID {
	if list, ok := result.([]any); ok {
		result = list[0]
	}
	return result.(iaas.CID)
}

// Local answers requests that need no holder: info, ping, sums, and unknown methods. It returns false for others.
func Local(r Request) (Reply, bool) {
	switch r.Method {
	case "info":
		return info(), true
	case "ping":
		return Reply{Result: "pong"}, true
	case "calculate_vm_cloud_properties":
		return reply(calculate(r)), true
	case "configure_networks":
		return Failure(iaas.Failf(iaas.NotSupported,
			"configure_networks: the networks of a VM cannot be changed; recreate it")), true
	}
	if _, known := methods[r.Method]; !known {
		return Failure(iaas.Failf(iaas.NotImplemented, "there is no method %q", r.Method)), true
	}
	return Reply{}, false
}

// absent answers a request for an IaaS without objects: nothing exists, and nothing has to be deleted.
func absent(r Request) (Reply, bool) {
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

// do answers a request. If undo is not nil, it removes what was created, in case the caller does not get the reply and
// so does not know the CID.
func (b backend) do(ctx context.Context, r Request, agent iaas.AgentDefaults, image io.Reader) (
	_ Reply, undo func() error) {
	m, known := methods[r.Method]
	if !known {
		local, _ := Local(r)
		return local, nil
	}
	if n := len(r.Arguments); n < m.least || n > m.most {
		return Failure(fmt.Errorf("%s: got %d arguments, want %d to %d", r.Method, n, m.least, m.most)), nil
	}
	c := &call{Request: r, iaas: b.IaaS, agent: agent, image: image, refused: b.refused}
	result, err := m.run(ctx, c)
	if errors.Is(err, errNoSuchObject) {
		if reply, ok := absent(r); ok {
			return reply, nil
		}
	}
	if err == nil && m.undo != nil {
		undo = func() error { return m.undo(ctx, c, first(result)) }
	}
	return reply(result, err), undo
}

// argument decodes the n-th argument. null does not change value.
func (c *Request) argument(n int, name string, value any) error {
	if n >= len(c.Arguments) {
		return nil
	}
	if err := json.Unmarshal(c.Arguments[n], value); err != nil {
		return fmt.Errorf("%s: argument %d (%s): %w", c.Method, n+1, name, err)
	}
	return nil
}

// errNoSuchObject means that an argument cannot be the CID of any object.
var errNoSuchObject = errors.New("not a CID of this IaaS")

// cid decodes an argument that is a CID.
func (c *Request) cid(n int, class iaas.Class) (iaas.CID, error) {
	var text *string
	if err := c.argument(n, string(class), &text); err != nil {
		return iaas.CID{}, err
	}
	if text == nil {
		return iaas.CID{}, fmt.Errorf("%s: argument %d (%s) is missing", c.Method, n+1, class)
	}
	cid, err := iaas.ParseCID(class, *text)
	if err != nil {
		err = fmt.Errorf("%w: %w", err, errNoSuchObject)
	}
	return cid, err
}

// object returns an argument that must be a JSON object or null.
func (c *Request) object(n int, name string) (json.RawMessage, error) {
	var object map[string]json.RawMessage
	if err := c.argument(n, name, &object); err != nil {
		return nil, err
	}
	if object == nil {
		return nil, nil
	}
	return c.Arguments[n], nil
}

func createStemcell(ctx context.Context, c *call) (any, error) {
	var properties struct {
		Light iaas.Digest `json:"sha256"` // of the image, if the upload is empty
	}
	var env struct {
		Tags value.Metadata `json:"tags"`
	}
	err := errors.Join(c.argument(1, "cloud_properties", &properties), c.argument(2, "env", &env))
	if err != nil {
		return nil, err
	}
	upload := iaas.Upload{Image: c.image, Light: properties.Light, Tags: env.Tags, Director: c.Context.DirectorUUID}
	return c.iaas.CreateStemcell(ctx, upload)
}

func createVM(ctx context.Context, c *call) (any, error) {
	o := iaas.Order{StemcellAPI: c.Context.VM.Stemcell.APIVersion, APIVersion: c.APIVersion,
		Director: c.Context.DirectorUUID, Agent: c.agent}
	if err := c.argument(0, "agent_id", &o.AgentID); err != nil {
		return nil, err
	}
	if o.AgentID == (value.Name{}) {
		return nil, fmt.Errorf("%s: argument 1 (agent_id) must be given", c.Method)
	}
	var err error
	if o.Stemcell, err = c.cid(1, iaas.Stemcells); err != nil {
		return nil, err
	}
	if err := c.argument(2, "cloud_properties", &o.Shape); err != nil {
		return nil, err
	}
	if slices.Contains(c.refused, o.Shape.Engine) {
		return nil, iaas.Failf(iaas.CloudError,
			"callers in VMs may not use engine %q, since it does not confine root; "+
				"allow it on the host with: lab cpi-tls --containers", o.Shape.Engine)
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
	var size iaas.Size
	if err := c.argument(0, "size", &size); err != nil {
		return nil, err
	}
	// Disks have no properties. The third argument names the VM that the disk is for, which may not be there any more.
	if _, err := c.object(1, "cloud_properties"); err != nil {
		return nil, err
	}
	return c.iaas.CreateDisk(ctx, size, c.Context.DirectorUUID)
}

func attachDisk(ctx context.Context, c *call, vm iaas.CID) (any, error) {
	disk, err := c.cid(1, iaas.Disks)
	if err != nil {
		return nil, err
	}
	hint, err := c.iaas.AttachDisk(ctx, vm, disk)
	if err != nil || c.APIVersion < 2 {
		return nil, err
	}
	return hint, nil
}

func detachDisk(ctx context.Context, c *call, vm iaas.CID) (any, error) {
	disk, err := c.cid(1, iaas.Disks)
	if err != nil {
		return nil, err
	}
	return nil, c.iaas.DetachDisk(ctx, vm, disk)
}

func resizeDisk(_ context.Context, c *call, cid iaas.CID) (any, error) {
	var size iaas.Size
	if err := c.argument(1, "size", &size); err != nil {
		return nil, err
	}
	return nil, c.iaas.ResizeDisk(cid, size)
}

func updateDisk(ctx context.Context, c *call, cid iaas.CID) (any, error) {
	if _, err := c.object(2, "cloud_properties"); err != nil {
		return nil, err
	}
	return resizeDisk(ctx, c, cid)
}

func snapshotDisk(ctx context.Context, c *call, cid iaas.CID) (any, error) {
	var metadata value.Metadata
	if err := c.argument(1, "metadata", &metadata); err != nil {
		return nil, err
	}
	return c.iaas.SnapshotDisk(ctx, cid, metadata, c.Context.DirectorUUID)
}

func createNetwork(_ context.Context, c *call) (any, error) {
	var order iaas.NetworkOrder
	if err := c.argument(0, "definition", &order); err != nil {
		return nil, err
	}
	n, err := c.iaas.CreateNetwork(order, c.Context.DirectorUUID)
	if err != nil {
		return nil, err
	}
	addresses := map[string]any{"range": n.Range, "gateway": n.Gateway, "reserved": []string{}}
	return []any{n.CID, addresses, map[string]iaas.CID{"name": n.CID}}, nil
}

// calculate converts the resources that an instance group needs into a VM type.
func calculate(r Request) (any, error) {
	var wanted struct {
		CPU       int `json:"cpu"`
		RAM       int `json:"ram"`
		Ephemeral int `json:"ephemeral_disk_size"`
	}
	if len(r.Arguments) != 1 {
		return nil, fmt.Errorf("%s: got %d arguments, want 1", r.Method, len(r.Arguments))
	}
	if err := r.argument(0, "resources", &wanted); err != nil {
		return nil, err
	}
	if wanted.CPU < 1 || wanted.RAM < 1 || wanted.Ephemeral < 1 {
		return nil, fmt.Errorf("%s: cpu, ram and ephemeral_disk_size must be given", r.Method)
	}
	return map[string]int{"cpu": wanted.CPU, "ram": wanted.RAM, "ephemeral_disk": wanted.Ephemeral}, nil
}
