//go:build nightly

package stemcell

import (
	"testing"

	"cambium/lab"
	"cambium/lab/labtest"
	"cambium/lab/machine"
)

// boot boots a stemcell's disk with an ephemeral disk and waits for the agent.
func boot(t *testing.T, disk string, uefi bool, vm lab.VM) (*lab.Lab, *lab.Instance) {
	t.Helper()
	virtual := kind(disk, uefi)
	l := virtual.Lab(t)
	vm.Ephemeral = 2 * lab.GiB
	i := labtest.Start(t, l, vm)
	virtual.Ready(t, i)
	return l, i
}

// TestNightlyBoot boots the stemcells of the IaaS whose settings the lab can deliver: each by the firmware that the IaaS
// starts it with, from the disk as it comes out of the format. The others differ from these by agent.json and format alone.
// The settings have the machines remove development tools and static libraries.
func TestNightlyBoot(t *testing.T) {
	for _, c := range []struct {
		iaas   string
		source lab.Source
		uefi   bool
		bus    machine.Bus
		hint   any // of the ephemeral disk; its path if nil
	}{
		{"openstack", lab.ConfigDrive, false, machine.Virtio, nil},
		{"aws", lab.HTTP, true, machine.Virtio, nil},
		{"google", lab.InstanceMetadata, true, machine.Virtio, nil},
		// The agent finds disks behind a SCSI controller by their UUID, which is their serial number here.
		{"vsphere", lab.CDROM, true, machine.SCSI, map[string]any{"id": "ephemeral"}},
	} {
		t.Run(c.iaas, func(t *testing.T) {
			l, i := boot(t, unpack(t, tarball(t, c.iaas)), c.uefi,
				lab.VM{Source: c.source, Bus: c.bus, Edit: func(d lab.Document) {
					if c.hint != nil {
						d.Set("disks.ephemeral", c.hint)
					}
					d.Set("env.bosh.remove_dev_tools", true).Set("env.bosh.remove_static_libraries", true)
				}})
			state, err := i.Agent.State(t.Context())
			if err != nil || state.AgentID != i.AgentID {
				t.Errorf("get_state: agent %q (%v), want %q", state.AgentID, err, i.AgentID)
			}
			said := compileReport(t, l, i, toolsLeft)
			if listed, left := said("listed"), said("left"); listed == "0" || left != "" {
				t.Errorf("of %s listed files there are still %.500s", listed, left)
			}
		})
	}
}

// toolsLeft is the script of a package that tells which files of the two lists are there.
const toolsLeft = `set -e
cd /var/vcap/bosh/etc
cat dev_tools_file_list static_libraries_list | sort -u >$BOSH_COMPILE_TARGET/all
wc --lines <$BOSH_COMPILE_TARGET/all >$BOSH_INSTALL_TARGET/listed
while read -r f; do
  if [ -e "$f" ] || [ -L "$f" ]; then echo "$f"; fi
done <$BOSH_COMPILE_TARGET/all >$BOSH_INSTALL_TARGET/left
`
