//go:build vm && nightly

package vm

import (
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/baseline"
	"cambium/lab/labtest"
	"cambium/lab/machine"
)

// TestNightlyTrialPowerCut: until a trial is kept, a power cut brings the stemcell's agent back. The machine tier shows
// the same with a reboot.
func TestNightlyTrialPowerCut(t *testing.T) { cutTrials(t, 10) }

const trialDir = "/var/vcap/data/cambium-agent/"

// cutTrials cuts the power at random moments of a trial, and once after each of its ends.
func cutTrials(t *testing.T, times int) {
	old, ours := labtest.Baseline(t), labtest.Agent(t)
	l := newLab(t, func(o *lab.Options) { o.Agent = old })
	i := start(t, l, lab.VM{Ephemeral: 2 * lab.GiB, Files: baseline.Files(),
		Edit: func(d lab.Document) { d.Set("disks.ephemeral", "/dev/vdb") }})
	ready(t, i)
	for path, from := range map[string]string{trialDir + "agent": ours, trialDir + "swap": "../../stemcell-assets/swap"} {
		data, err := os.ReadFile(from)
		if err == nil {
			run(t, i, "mkdir", "-p", trialDir, "/var/vcap/instance")
			err = i.WriteFile(machine.File{Path: path, Data: data, Mode: 0o755})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	run(t, i, "sh", "-c", "cp /var/vcap/bosh/bin/bosh-agent /root/old; sync")
	try := func() { run(t, i, trialDir+"agent", "trial", "try", "--delay", "0s", "--time", "3m") }
	status := func() string {
		return run(t, i, "sh", "-c", trialDir+"agent trial status || true")
	}
	confirmed := func() {
		t.Helper()
		eventually.Within(t, readyTimeout, "confirmation", func() error {
			if got := status(); !strings.HasPrefix(got, "confirmed") {
				return errors.New(got)
			}
			return nil
		})
	}
	cut := func(when, want string) {
		t.Helper()
		if err := errors.Join(i.Kill(t.Context()), i.Start(t.Context())); err != nil {
			t.Fatal(err)
		}
		ready(t, i)
		if got := run(t, i, "sh", "-c", "cmp /proc/$(systemctl show -P MainPID bosh-agent)/exe "+want+" && cmp /var/vcap/bosh/bin/bosh-agent "+want+" && echo same"); got != "same\n" {
			t.Errorf("after a cut %s: %s", when, got)
		}
	}
	begin := time.Now()
	try()
	confirmed()
	duration := time.Since(begin)
	cut("after the confirmation", "/root/old")
	if got := status(); !strings.Contains(got, "a reboot has brought the stemcell's agent back") {
		t.Errorf("status says %q", got)
	}
	for range times {
		after := time.Duration(rand.Int64N(int64(duration)))
		try()
		time.Sleep(after)
		cut("after "+after.String()+" of a trial", "/root/old")
	}
	try()
	confirmed()
	run(t, i, trialDir+"agent", "trial", "keep")
	cut("after keep", trialDir+"agent")
}
