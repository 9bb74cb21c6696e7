//go:build machine

package machine

import (
	"testing"
	"time"

	"cambium/lab/fusetest"
	"cambium/lab/labtest"
)

// containers are the machines of these tests. Tests that mostly wait run two at a time (t.Parallel): the kernel's default of
// 128 inotify instances is enough for eleven containers, so a test that has more than four at once runs alone.
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
