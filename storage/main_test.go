//go:build (bench || nightly) && !root && !vm

package storage

import (
	"context"
	"testing"

	"cambium/internal/looptest"
	"cambium/platform/copytree/apart"
)

func TestMain(m *testing.M) {
	apart.ServeIfCalled(context.Background())
	looptest.Main(m)
}
