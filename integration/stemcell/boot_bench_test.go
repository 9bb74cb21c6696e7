//go:build bench

package stemcell

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"cambium/internal/skiptest"
	"cambium/lab"
	"cambium/lab/labtest"
)

// rounds is the number of boots of each stemcell; medians are compared.
const rounds = 5

// BenchmarkStemcell compares this stemcell with another from power-on to pong: PREVIOUS_STEMCELL is a tarball for the IaaS qemu. They
// take turns, and each tells once what systemd-analyze says of its first boot.
func BenchmarkStemcell(b *testing.B) {
	previous := os.Getenv("PREVIOUS_STEMCELL")
	if previous == "" {
		skiptest.Skip(b, "PREVIOUS_STEMCELL names no stemcell to compare with")
	}
	names := []string{"before", "after"}
	disks := map[string]string{"before": unpack(b, previous), "after": unpack(b, tarball(b, "qemu"))}
	times := map[string][]time.Duration{}
	for round := range rounds {
		for _, name := range names {
			b.Run(name, func(b *testing.B) {
				virtual := kind(disks[name], false)
				l := virtual.Lab(b, func(o *lab.Options) { o.Poll = 10 * time.Millisecond })
				i := labtest.Create(b, l, lab.VM{Source: lab.ConfigDrive, Ephemeral: 2 * lab.GiB})
				begin := time.Now()
				if err := i.Start(b.Context()); err != nil {
					b.Fatal(err)
				}
				took := virtual.Pong(b, i, 50*time.Millisecond).Sub(begin)
				times[name] = append(times[name], took)
				fmt.Printf("  %s: power-on to pong %.1f s\n", name, took.Seconds())
				if round == 0 {
					fmt.Println(compileReport(b, l, i, analyze)("boot"))
				}
			})
		}
	}
	median := func(name string) float64 {
		slices.Sort(times[name])
		return times[name][len(times[name])/2].Seconds()
	}
	fmt.Printf("\n  power-on to pong, medians of %d: before %.1f s, after %.1f s, ratio %.2f\n", rounds, median("before"),
		median("after"), median("after")/median("before"))
}

// analyze is the script of a package that prints systemd's analysis of the boot, after its last services have started.
const analyze = `set -e
systemctl is-system-running --wait || true
{ systemd-analyze; systemd-analyze blame | head -n 30; systemd-analyze critical-chain bosh-agent.service; } >$BOSH_INSTALL_TARGET/boot 2>&1 || true
`
