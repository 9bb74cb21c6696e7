//go:build root && soak

package storage

import "testing"

func TestRootSoakCrashPrepare(t *testing.T) {
	crashes(t, "prepare", 200, func(*world) {}, (*world).checkPrepared)
}

func TestRootSoakCrashMigrate(t *testing.T) {
	crashes(t, "migrate", 200, func(*world) {}, (*world).checkMigrated)
}
