//go:build vm

package stemcell

import "testing"

// TestVMStemcellDisk looks into two stemcells at every change, a raw one and a converted one; TestNightlyInfrastructures into
// all. TestNightlyBoshCreateEnvVM boots openstack's, imported by the CPI.
func TestVMStemcellDisk(t *testing.T) {
	for _, iaas := range []string{"qemu", "openstack"} {
		t.Run(iaas, func(t *testing.T) { checkDisk(t, iaas) })
	}
}
