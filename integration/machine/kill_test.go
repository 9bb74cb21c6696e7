//go:build machine

package machine

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"cambium/internal/status"
	"cambium/lab"
	"cambium/lab/machine"
)

const (
	killsFile   = "/var/vcap/bosh/kills"
	killProgram = "/usr/local/bin/killed-agent"
	// killScript becomes the agent. Each line of killsFile is a delay in seconds after which one process is killed:
	// the timer starts with that process, inside the machine, so that no latency of the test can make a kill come
	// after the boot. The process is stopped before it is killed, and the status is copied in between: it tells
	// whether the kill hit a boot.
	killScript = `#!/bin/sh
cd /var/vcap/bosh
if read delay <kills; then
	sed -i 1d kills
	(sleep "$delay"; kill -STOP $$; { echo $$; cat /run/cambium/status.json; } >"killed.$(wc -l <kills)"; kill -KILL $$) &
fi
exec bin/bosh-agent -P ubuntu -C agent.json
`
)

// killAfter are the files of a machine whose agent is killed once for each delay.
func killAfter(delays []time.Duration) []machine.File {
	var lines strings.Builder
	for _, d := range delays {
		fmt.Fprintf(&lines, "%.4f\n", d.Seconds())
	}
	return []machine.File{
		{Path: killsFile, Data: []byte(lines.String()), Mode: 0o600},
		{Path: killProgram, Data: []byte(killScript), Mode: 0o755},
		{Path: "/etc/systemd/system/bosh-agent.service.d/kill.conf", Data: []byte("[Service]\nExecStart=\nExecStart=" + killProgram + "\n"), Mode: 0o644},
	}
}

// killedInBoot waits for the kill that leaves that many others to come, and reports whether the process had not
// become ready before it, and after which time it had otherwise.
func killedInBoot(t *testing.T, i *lab.Instance, left int) (hit bool, readyAfter time.Duration) {
	t.Helper()
	text := run(t, i, "sh", "-c", fmt.Sprintf("cd /var/vcap/bosh; until [ -s killed.%d ]; do sleep 0.05; done; sleep 0.05; cat killed.%[1]d", left))
	pid, document, _ := strings.Cut(text, "\n")
	var d status.Document
	if document != "" { // killed before it wrote its first status
		if err := json.Unmarshal([]byte(document), &d); err != nil {
			t.Fatalf("status at the kill: %v: %s", err, document)
		}
	}
	if fmt.Sprint(d.PID) == pid && (d.State == status.Ready || d.State == status.Degraded) {
		return false, time.Duration(d.ReadyNS)
	}
	return true, 0
}

// TestMachineKilledAtRandom kills the agent at random moments of its boots.
func TestMachineKilledAtRandom(t *testing.T) { killAtRandom(t, 10) }

// killsPerMachine is the number of kills of one machine's agent: the first in its first boot, the others in the boots
// that follow.
const killsPerMachine = 5

func killAtRandom(t *testing.T, times int) {
	l := newLab(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	firstBoot, restart := bootTimes(t, l)
	machines, hits, firstHits := times/killsPerMachine, 0, 0
	for n := range machines {
		delays := make([]time.Duration, killsPerMachine)
		// The kills of one machine are one in each part of a restart; the first boots are divided among the machines.
		delays[0] = part(random, firstBoot, n, machines)
		for k := 1; k < killsPerMachine; k++ {
			delays[k] = part(random, restart, k-1, killsPerMachine-1)
		}
		i := start(t, l, lab.VM{Ephemeral: lab.GiB, Files: killAfter(delays)})
		for k, delay := range delays {
			hit, readyAfter := killedInBoot(t, i, killsPerMachine-1-k)
			switch {
			case hit:
				hits++
				if k == 0 {
					firstHits++
				}
			case k == 0: // boots have become faster than the one that was measured
				firstBoot = min(firstBoot, readyAfter)
			default:
				restart = min(restart, readyAfter)
			}
			t.Logf("machine %d, process %d: killed after %s, in its boot %v", n, k, delay, hit)
		}
		ready(t, i)
		if d := agentStatus(t, i); d.State != status.Ready {
			t.Errorf("machine %d: %s %q %q", n, d.State, d.Verdict, d.Warnings)
		}
		remove(t, i)
	}
	t.Logf("of %d kills %d hit a boot, %d of them a first one", machines*killsPerMachine, hits, firstHits)
	if hits < machines*killsPerMachine/2 || firstHits == 0 {
		t.Errorf("%d of %d kills hit a boot, %d a first one; want half of them, and a first one", hits,
			machines*killsPerMachine, firstHits)
	}
}

// part is a random moment in the n-th of several equal parts of a boot.
func part(random *rand.Rand, boot time.Duration, n, parts int) time.Duration {
	each := boot / time.Duration(parts)
	return time.Duration(n)*each + time.Duration(random.Int64N(int64(max(each, 1))))
}

// bootTimes measures a first boot and the boot of a restarted agent on this host, without a kill.
func bootTimes(t *testing.T, l *lab.Lab) (first, restart time.Duration) {
	t.Helper()
	i := start(t, l, lab.VM{Ephemeral: lab.GiB, Files: killAfter(nil)})
	defer remove(t, i)
	ready(t, i)
	first = time.Duration(agentStatus(t, i).ReadyNS)
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i)
	restart = time.Duration(agentStatus(t, i).ReadyNS)
	if first <= 0 || restart <= 0 {
		t.Fatalf("a boot took %s, a restart %s", first, restart)
	}
	t.Logf("ready %s after a first start, %s after a restart", first, restart)
	return first, restart
}
