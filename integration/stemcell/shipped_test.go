//go:build nightly

package stemcell

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/image"
)

// TestNightlyStemcell boots the stemcell that is shipped, by EFI and its own boot loader, with nothing of the lab in
// it; everything known of the machine comes from its agent.
func TestNightlyStemcell(t *testing.T) {
	disk := unpack(t, tarball(t, "qemu"))
	nothingOfTheLab(t, disk)
	l, i := boot(t, disk, true, lab.VM{Source: lab.ConfigDrive})
	if state, err := i.Agent.State(t.Context()); err != nil || state.AgentID != i.AgentID || state.VM.Name != i.Name() {
		t.Errorf("get_state: agent %q of %q (%v), want %q of %q", state.AgentID, state.VM.Name, err, i.AgentID, i.Name())
	}
	agentLog(t, l, i)
	inspect(t, l, i)
}

// nothingOfTheLab looks for the lab in the bytes of a disk, names of files included.
func nothingOfTheLab(t *testing.T, disk string) {
	t.Helper()
	f, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	// The program and the unit of the lab, its cache, and a line of its settings for the journal.
	marks := []string{filepath.Base(image.GuestProgram), "cambium-lab", "RateLimitIntervalSec=0", "/var/vcap/data/x"}
	const piece, overlap = 4 << 20, 64
	buffer := make([]byte, piece+overlap)
	for kept := 0; ; {
		n, err := io.ReadFull(f, buffer[kept:])
		for _, mark := range marks {
			if at := bytes.Index(buffer[:kept+n], []byte(mark)); at >= 0 {
				t.Errorf("the stemcell has %q in it, in %q", mark, buffer[max(0, at-40):min(at+40, kept+n)])
			}
		}
		if err != nil {
			return
		}
		kept = copy(buffer, buffer[kept+n-overlap:kept+n])
	}
}

// inspection is the script of a package whose compilation looks at the machine, as root: nothing else gets into it. The journal holds what was
// logged before the data disk was mounted, is on that disk and not below it, and keeps its bound whatever is logged.
const inspection = `set -e
out=$BOSH_INSTALL_TARGET
ls /sys/firmware >$out/firmware
echo 'int main(void) { return 0; }' >empty.c
cc -o $out/compiled empty.c
until systemctl is-active --quiet bosh-var-log; do sleep 1; done
journalctl --directory=/var/log/journal --boot --dmesg --lines=1 --quiet --output=cat >$out/early
findmnt --noheadings --output=FSROOT --target=/var/log/journal >$out/where
mkdir below && mount --bind / below
find below/var/log -name '*.journal' -o -name 'syslog*' -o -name bosh-agent.log >$out/below
umount below
ls /run/log/journal >$out/volatile 2>/dev/null || true
head --bytes=115M /dev/urandom | base64 --wrap=40000 | systemd-cat --identifier=filler
journalctl --sync
du --summarize --block-size=1M /var/log/journal | cut -f 1 >$out/used
journalctl --identifier=filler --quiet --output=cat | wc --bytes >$out/kept
for unit in rsyslog cron ssh auditd; do
  for second in $(seq 120); do
    ! systemctl is-active --quiet $unit || break
    sleep 1
  done
done
systemctl is-active rsyslog cron ssh auditd >$out/services || true
ps ax -o ucmd >$out/processes
auditctl -l | wc --lines >$out/rules
auditctl -s | sed -n 's/^lost //p' >$out/lost
/var/vcap/bosh/bin/restart_networking && /var/vcap/bosh/bin/sync-time && echo ran >$out/hooks
`

// inspect has the machine fill its journal, run the stemcell's hooks, and say what came of it.
func inspect(t *testing.T, l *lab.Lab, i *lab.Instance) {
	t.Helper()
	said := compileReport(t, l, i, inspection)
	if said("compiled") == "" {
		t.Error("nothing was compiled")
	}
	if got := said("services"); got != "active\nactive\nactive\nactive" {
		t.Errorf("rsyslog, cron, sshd and auditd are %q", got)
	}
	for _, name := range []string{"cron", "kauditd", "auditd", "rsyslogd"} {
		if got := said("processes"); !slices.Contains(strings.Fields(got), name) {
			t.Errorf("no process is called %s among\n%s", name, got)
		}
	}
	if rules, err := strconv.Atoi(said("rules")); err != nil || rules < 20 {
		t.Errorf("auditd has %d rules (%v)", rules, err)
	}
	if got := said("lost"); got != "0" {
		t.Errorf("%q audit records are lost", got)
	}
	if got := said("hooks"); got != "ran" {
		t.Error("restart_networking or sync-time failed")
	}
	if got := said("firmware"); !strings.Contains(got, "efi") {
		t.Errorf("the machine was not booted by EFI: %q", got)
	}
	if said("early") == "" {
		t.Error("the journal of the data disk has no message of the kernel's start")
	}
	if got := said("where"); got != "/root_log" {
		t.Errorf("the journal is in %q of its file system, want /root_log", got)
	}
	if got := said("below"); got != "" {
		t.Errorf("logs are hidden below the mount: %q", got)
	}
	if got := said("volatile"); got != "" {
		t.Errorf("after the flush there is still a journal in memory: %q", got)
	}
	used, err1 := strconv.Atoi(said("used"))
	kept, err2 := strconv.Atoi(said("kept"))
	if err := errors.Join(err1, err2); err != nil || used > 101 || kept < 10<<20 {
		t.Errorf("the filled journal takes %d MiB (%v) with %d bytes of what was logged, want at most 100 MiB and some 100 MB", used, err, kept)
	}
	t.Logf("the journal takes %d MiB after 115 MiB of noise", used)
}

// agentLog waits until the log that `bosh logs --agent` packs has the boot in it: rsyslog starts once the agent has
// mounted /var/log, and takes what the journal has kept for it.
func agentLog(t *testing.T, l *lab.Lab, i *lab.Instance) {
	t.Helper()
	eventually.Nil(t, "the boot in the agent's log", func() error {
		var answer any
		err := i.Agent.Into(t.Context(), &answer, "fetch_logs_with_signed_url",
			map[string]any{"signed_url": l.Blobs.SignedURL("PUT", "agent-logs"), "log_type": "agent", "filters": []string{}})
		if err != nil {
			t.Fatal(err)
		}
		content, found := l.Blobs.Get("agent-logs")
		if !found {
			t.Fatal("the logs did not arrive")
		}
		if log := member(t, content, "current"); !strings.Contains(log, "bosh-agent") {
			return fmt.Errorf("current holds nothing of the agent: %q", log)
		}
		return nil
	})
}
