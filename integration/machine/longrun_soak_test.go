//go:build machine && soak

package machine

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMachineSoakLongRun asks one agent 100,000 times, with every kind of request, and writes docs/results/long-run.md.
// Results of tasks are kept for ten minutes, so nothing is measured before.
func TestMachineSoakLongRun(t *testing.T) {
	want := load{requests: 100_000, applies: 1000, mounts: 1000, migrations: 200, restarts: 100}
	r := longRun(t, want, 11*time.Minute)
	least := map[string]int{"apply": want.applies, "mount_disk": want.mounts, "migrate_disk": want.migrations}
	for name, least := range least {
		if r.counts[name] < least {
			t.Errorf("%d requests of %s, want %d", r.counts[name], name, least)
		}
	}
	if r.total < want.requests {
		t.Errorf("%d requests, want %d", r.total, want.requests)
	}
	names := slices.Sorted(maps.Keys(r.series))
	r.flat(names...)
	var b strings.Builder
	fmt.Fprintf(&b, `# A long run

Written by %sgo test -tags soak,machine -run SoakLongRun ./integration/machine%[1]s on %[2]s: one machine
(container), %[3]d requests in %[4]s on %[5]d processors (%[6]s), %[7]d applies, %[8]d mounts,
%[9]d migrations, %[10]d restarts of the agent. More than half of it was served by the first process; the rest by
processes that were restarted again and again.

A quantity is flat unless its slope is more than three standard errors above zero and the growth over the run more than
a twentieth of the mean. Measuring begins after eleven minutes: results of tasks are kept for ten. Memory, threads and
descriptors are those of the first process; goroutines are counted at the end of each process, over the requests that it
has served.

| quantity | samples | mean | slope per 10,000 requests | standard error | flat |
|---|---|---|---|---|---|
`, "`", time.Now().UTC().Format(time.DateOnly), r.total, time.Since(r.begin).Round(time.Minute),
		runtime.NumCPU(), runtime.Version(), r.counts["apply"], r.counts["mount_disk"], r.counts["migrate_disk"],
		want.restarts)
	for _, name := range names {
		s := r.series[name].trend()
		flat := "yes"
		if s.grows() {
			flat = "**no**"
		}
		fmt.Fprintf(&b, "| %s | %d | %.2f | %+.3f | %.3f | %s |\n", name, s.n, s.mean, s.slope, s.spread, flat)
	}
	b.WriteString("\n| request | times |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(r.counts)) {
		fmt.Fprintf(&b, "| `%s` | %d |\n", name, r.counts[name])
	}
	if err := os.WriteFile("../../docs/results/long-run.md", []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
