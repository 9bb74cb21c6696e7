//go:build machine

// Package machine holds the tests of the real binary under a real systemd, in machines of the
// lab. Each test makes a lab of its own and removes it, also when it fails.
package machine

import (
	"testing"
	"time"

	"cambium/integration/lab"
	"cambium/integration/lab/labtest"
)

// containers are the machines of these tests, which run one after the other.
var containers = labtest.Kind{Letter: "t", Patience: time.Minute}

func TestMain(m *testing.M) { labtest.Main(m) }

func newLab(t testing.TB, edit ...func(*lab.Options)) *lab.Lab {
	t.Helper()
	return containers.Lab(t, edit...)
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
	containers.Ready(t, i)
}

func run(t testing.TB, i *lab.Instance, args ...string) string {
	t.Helper()
	return containers.Run(t, i, args...)
}
