//go:build vm

package vm

import (
	"testing"

	"cambium/integration/lab"
)

// TestVMBoot boots from HTTP metadata.
func TestVMBoot(t *testing.T) {
	l := newLab(t)
	i := start(t, l, lab.VM{Source: lab.HTTP, Ephemeral: 10 * lab.GiB})
	ready(t, i)
	t.Log(run(t, i, "sh", "-c", "systemd-analyze; systemd-analyze blame | head -12; uptime"))
}
