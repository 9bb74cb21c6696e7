//go:build vm

package qemu_test

import (
	"testing"

	"cambium/lab/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }
