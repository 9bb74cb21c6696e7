//go:build machine

package machine

import (
	"testing"
	"time"

	"cambium/lab/fusetest"
	"cambium/lab/labtest"
)

// containers are the machines of these tests. Tests that mostly wait run at the same time (t.Parallel). `make
// test-machine` raises the number of inotify instances for that: the kernel's default of 128 is enough for nine
// containers.
var containers = labtest.Kind{Letter: "t", Timeout: time.Minute}

func TestMain(m *testing.M) {
	fusetest.ServeIfCalled()
	labtest.Main(m)
}

// What every test begins with.
var (
	newLab = containers.Lab
	create = labtest.Create
	start  = labtest.Start
	ready  = containers.Ready
	run    = containers.Run
)
