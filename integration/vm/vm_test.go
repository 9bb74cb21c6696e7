//go:build vm

package vm

import (
	"testing"
	"time"

	"cambium/lab/image"
	"cambium/lab/labtest"
	"cambium/lab/machine/qemu"
	"cambium/lab/tree"
)

// readyTimeout is generous: an emulated machine boots in about 20 seconds on an idle host.
const readyTimeout = 6 * time.Minute

// virtual are the machines of these tests.
var virtual = labtest.Kind{Engine: qemu.Engine{Images: image.Cache{Dir: tree.DefaultDir()}}, Letter: "q",
	Timeout: readyTimeout}

func TestMain(m *testing.M) { labtest.Main(m) }

// What every test begins with.
var (
	newLab = virtual.Lab
	create = labtest.Create
	start  = labtest.Start
	ready  = virtual.Ready
	run    = virtual.Run
)
