//go:build bench && !root && !vm

package storage

import (
	"testing"

	"cambium/internal/looptest"
	"cambium/platform/copytree/apart"
)

func TestMain(m *testing.M) {
	apart.ServeIfCalled()
	looptest.Main(m)
}
