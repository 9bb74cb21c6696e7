//go:build root && soak

package storage

import "testing"

func TestRootSoakCrashPrepare(t *testing.T) {
	crashes(t, "prepare", 200, func(*world) {}, (*world).checkPrepared)
}
