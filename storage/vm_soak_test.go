//go:build vm && soak && !root

package storage

import "testing"

func TestVMSoakPowerCut(t *testing.T) { powerCut(t, 100) }
