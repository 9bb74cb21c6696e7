//go:build machine || vm

package machine

import (
	"testing"
	"time"

	"cambium/integration/lab/labtest"
)

// containers are the machines of these tests, which run one after the other.
var containers = labtest.Kind{Letter: "t", Timeout: time.Minute}

func TestMain(m *testing.M) { labtest.Main(m) }

// What every test begins with.
var (
	newLab = containers.Lab
	create = labtest.Create
	start  = labtest.Start
	ready  = containers.Ready
	run    = containers.Run
)
