package networkd

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/sirupsen/logrus"
)

func TestSystemdVersion(t *testing.T) {
	for name, want := range map[string]int{
		"libsystemd-shared-249.so": 249, "libsystemd-shared-252.39-1~deb12u2.so": 252,
		"libsystemd-shared-255.4-1ubuntu8.so": 255, "libsystemd-shared-x.so": 0, "other": 0,
	} {
		if got := systemdVersion(name); got != want {
			t.Errorf("%s: got %d, want %d", name, got, want)
		}
	}
}

// TestSettleIgnoresTheOldFilesState: a link that completes its first configuration just before networkd reads its files
// again has not settled.
func TestSettleIgnoresTheOldFilesState(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	d := Daemon{Log: logrus.NewEntry(log)}
	for name, test := range map[string]struct {
		same   bool
		states []string
		want   time.Duration // of a signal every 10 ms
	}{
		"lease released": {states: []string{"configured", "initialized"}, want: 20 * time.Millisecond},
		"address set again": {same: true, states: []string{"configured", "configuring", "configured"},
			want: 30 * time.Millisecond},
		"networkd does nothing":     {states: []string{"configured"}, want: releaseLimit},
		"never configured again":    {same: true, states: []string{"initialized"}, want: 10*time.Millisecond + readdLimit},
		"a state of no consequence": {states: []string{"", "initialized"}, want: 20 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const path = dbus.ObjectPath("/org/freedesktop/network1/link/_32")
				signals := make(chan *dbus.Signal)
				go func() {
					for _, state := range test.states {
						time.Sleep(10 * time.Millisecond)
						changed := map[string]dbus.Variant{}
						if state != "" {
							changed["AdministrativeState"] = dbus.MakeVariant(state)
						}
						signals <- &dbus.Signal{Path: path, Body: []any{busName + ".Link", changed}}
					}
				}()
				began := time.Now()
				d.awaitLinks(t.Context(), map[dbus.ObjectPath]AwaitedLink{path: {Link: "eth0", Same: test.same}}, signals)
				if took := time.Since(began); took != test.want {
					t.Errorf("settled after %s, want %s", took, test.want)
				}
			})
		})
	}
}
