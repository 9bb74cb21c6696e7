//go:build machine && nightly

package network_test

import (
	"fmt"
	"testing"
	"time"
)

// TestNightlyNetworkAgainstRestart compares the time to apply a new configuration with that of the usual way: write the
// file, restart networkd, wait for the addresses.
func TestNightlyNetworkAgainstRestart(t *testing.T) {
	v := newVM(t)
	for _, count := range []int{1, 4, 64} {
		configuration := func(subnet int) nets {
			n := nets{}
			for i := range count {
				n[fmt.Sprintf("n%02d", i)] = vmExtra(fmt.Sprintf("10.%d.%d.5", subnet, i))
			}
			return n
		}
		v.apply(t, configuration(20))
		v.settled(t, "eth0")
		ours := v.apply(t, configuration(21)).Took
		v.settled(t, "eth0")
		last := fmt.Sprintf("10.22.%d.5/24", count-1)
		out := v.sh(t, `set -e
			sed -i 's/10\.21\./10.22./' /etc/systemd/network/10_eth0.network
			begin=$(date +%s%N)
			systemctl restart systemd-networkd
			until ip -o address show dev eth0 | grep -q ' `+last+` '; do sleep 0.002; done
			echo $(( $(date +%s%N) - begin ))`)
		var nanoseconds int64
		if _, err := fmt.Sscan(out, &nanoseconds); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		restart := time.Duration(nanoseconds)
		t.Logf("%2d networks: %v, by restarting networkd %v: %.1f times as fast", count, ours.Round(100*time.Microsecond),
			restart.Round(100*time.Microsecond), float64(restart)/float64(ours))
		v.settled(t, "eth0")
	}
}
