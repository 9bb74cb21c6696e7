//go:build vm

package monit

import (
	"testing"

	"cambium/lab/testvm"
)

// TestVMForgedAlerts runs guestChecks on Debian's kernel.
func TestVMForgedAlerts(t *testing.T) {
	testvm.Machine{Modules: []string{"inet_diag", "tcp_diag"}}.Run(t, guestChecks)
}
