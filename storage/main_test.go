//go:build (bench || nightly) && !root && !vm

package storage

import (
	"context"
	"testing"

	"cambium/internal/looptest"
	"cambium/lab/fusetest"
	"cambium/platform/copytree/worker"
)

func TestMain(m *testing.M) {
	worker.ServeIfCalled(context.Background())
	fusetest.ServeIfCalled()
	looptest.Main(m)
}
