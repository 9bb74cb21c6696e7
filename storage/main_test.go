//go:build bench && !root

package storage

import (
	"testing"

	"cambium/internal/looptest"
)

func TestMain(m *testing.M) { looptest.Main(m) }
