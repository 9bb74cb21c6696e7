//go:build vm

package machine

import (
	"testing"

	"cambium/lab/iaas"
)

// The same CLI, CPI and stemcell with a virtual machine.
func TestVMBoshCreateEnv(t *testing.T) {
	e := newEnv(t, "q", iaas.QEMU)
	e.run("create-env")
	e.answers()
	e.shares(e.vm("").CID)
	e.run("delete-env")
	e.gone()
}
