//go:build machine

package lab_test

import (
	"testing"

	"cambium/lab/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// TestMachineExample runs Example, which panics if one of its calls fails.
func TestMachineExample(t *testing.T) {
	labtest.Kind{}.Need(t)
	t.Setenv("CAMBIUM_AGENT", labtest.Agent(t))
	Example()
}
