//go:build (bench || nightly) && !root && !vm

package storage

import (
	"context"
	"testing"

	"cambium/internal/looptest"
	"cambium/platform/copytree/worker"
)

func TestMain(m *testing.M) {
	worker.ServeIfCalled(context.Background())
	looptest.Main(m)
}
