//go:build vm

// Package vm holds the tests of the real binary in virtual machines of the lab: real kernel,
// udev, disks that come and go, power cuts.
package vm

import (
	"testing"
	"time"

	"cambium/integration/lab"
	"cambium/integration/lab/image"
	"cambium/integration/lab/labtest"
	"cambium/integration/lab/machine/qemu"
	"cambium/integration/lab/tree"
)

// readyTimeout is generous: an interpreted machine boots in about 20 seconds when it has the
// host for itself.
const readyTimeout = 6 * time.Minute

// virtual are the machines of these tests.
var virtual = labtest.Kind{Engine: qemu.Engine{Images: image.Cache{Dir: tree.DefaultDir()}}, Letter: "q", Patience: readyTimeout}

func TestMain(m *testing.M) { labtest.Main(m) }

func newLab(t testing.TB, edit ...func(*lab.Options)) *lab.Lab {
	t.Helper()
	return virtual.Lab(t, edit...)
}

func create(t testing.TB, l *lab.Lab, vm lab.VM) *lab.Instance {
	t.Helper()
	return labtest.Create(t, l, vm)
}

func start(t testing.TB, l *lab.Lab, vm lab.VM) *lab.Instance {
	t.Helper()
	return labtest.Start(t, l, vm)
}

func ready(t testing.TB, i *lab.Instance) {
	t.Helper()
	virtual.Ready(t, i)
}

func run(t testing.TB, i *lab.Instance, args ...string) string {
	t.Helper()
	return virtual.Run(t, i, args...)
}
