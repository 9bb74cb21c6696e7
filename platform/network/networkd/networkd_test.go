package networkd

import "testing"

func TestSystemdVersion(t *testing.T) {
	for name, want := range map[string]int{
		"libsystemd-shared-249.so": 249, "libsystemd-shared-252.39-1~deb12u2.so": 252, "libsystemd-shared-255.4-1ubuntu8.so": 255, "libsystemd-shared-x.so": 0, "other": 0,
	} {
		if got := systemdVersion(name); got != want {
			t.Errorf("%s: got %d, want %d", name, got, want)
		}
	}
}
