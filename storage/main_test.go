//go:build bench && !root && !vm

package storage

import (
	"testing"

	"cambium/internal/looptest"
)

func TestMain(m *testing.M) { looptest.Main(m) }
