//go:build machine

package machine

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/internal/status"
	"cambium/lab"
	"cambium/lab/director"
	"cambium/lab/machine"
	"cambium/lab/release"
)

// slowCheck lets e2fsck do its work, and then hold its output back, all but the first lines, until /root/slow is gone.
const slowCheck = `#!/bin/bash
out=$(/usr/sbin/e2fsck.real "$@"); code=$?
head -n 2 <<<"$out"
while [ -e /root/slow ]; do sleep 0.1; done
tail -n +3 <<<"$out"
exit $code
`

// TestMachineEmptyStore boots machines whose store cannot be mounted: refused, its place taken by something else,
// blank, under a long check, and missing. They serve, no job is started, and they say why, until the disk is mounted.
func TestMachineEmptyStore(t *testing.T) {
	t.Parallel() // it mostly waits
	emptyStores(t, "systemd")
}

func emptyStores(t *testing.T, supervisor string) {
	l := supervisedLab(t, supervisor)
	// A missing disk is looked for during half a minute, hence first and last.
	without := &emptyStore{t: t, l: l, i: start(t, l, lab.VM{Ephemeral: lab.GiB})}
	m := manifest([]release.Job{forker()}, tool("one"))
	m.Groups[0].PersistentDisk = 256
	s := &emptyStore{t: t, l: l, i: mustDeploy(t, l, m)}
	s.cid = s.list()
	run(t, s.i, "sh", "-c", "echo persistent >/var/vcap/store/kept; sync; mv /usr/sbin/e2fsck /usr/sbin/e2fsck.real")
	if err := s.i.WriteFile(machine.File{Path: "/usr/sbin/e2fsck", Data: []byte(slowCheck), Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	without.lose()
	t.Run("refused", s.refused)
	t.Run("taken", s.taken)
	t.Run("a long check in mount_disk", s.checkedByMount)
	t.Run("blank", s.blank)
	t.Run("under a long check", s.checked)
	t.Run("missing", without.missing)
	t.Run("after the check", s.afterCheck)
}

// emptyStore is a machine with a persistent disk that goes through phases without jobs.
type emptyStore struct {
	t     *testing.T
	l     *lab.Lab
	i     *lab.Instance
	cid   string
	since time.Time // begin of the phase
}

// list returns the one disk that the agent lists; empty if there is none.
func (s *emptyStore) list() string {
	s.t.Helper()
	var cids []string
	if err := s.i.Agent.Into(s.t.Context(), &cids, "list_disk"); err != nil || len(cids) > 1 {
		s.t.Fatalf("list_disk = %q, %v", cids, err)
	}
	return strings.Join(cids, "")
}

// reboot has the machine come up with a store that a script, which knows its disk and its partition, has broken.
func (s *emptyStore) reboot(script string) {
	s.t.Helper()
	run(s.t, s.i, "sh", "-ec", `systemctl stop bosh-agent monit
pkill -9 -f '[b]in/sleeper' || true
part=$(findmnt -no SOURCE /var/vcap/store); disk=${part%1}; disk=${disk%p}; echo $disk >/root/disk; echo $part >/root/part
umount /var/vcap/store
`+script)
	s.since = time.Now()
	if err := s.i.Reboot(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	ready(s.t, s.i)
}

// heartbeat waits for one with this state since the phase began.
func (s *emptyStore) heartbeat(state string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	var beat director.Heartbeat
	if _, err := s.l.Monitor.Wait(ctx, s.since, func(e director.Event) bool {
		return e.Kind == "heartbeat" && e.Agent == s.i.AgentID && json.Unmarshal(e.Body, &beat) == nil &&
			beat.JobState == state
	}); err != nil {
		s.t.Errorf("no heartbeat with the state %s, the last with %q: %v", state, beat.JobState, err)
	}
}

// alerts are those of the phase.
func (s *emptyStore) alerts() (found []string) {
	for _, e := range s.l.Monitor.Events() {
		if e.Kind == "alert" && e.Agent == s.i.AgentID && e.Time.After(s.since) &&
			strings.Contains(string(e.Body), status.JobsWithheld) {
			found = append(found, string(e.Body))
		}
	}
	return found
}

// wantPhase looks for the phase and its reason wherever a Director or an operator may.
func (s *emptyStore) wantPhase(reason string) {
	t := s.t
	t.Helper()
	if got, err := s.i.Agent.Do(t.Context(), "ping"); err != nil || string(got) != `"pong"` {
		t.Errorf("ping = %s, %v", got, err)
	}
	if state := stateOf(t, s.i).JobState; state != "failing" {
		t.Errorf("get_state says %s, want failing", state)
	}
	s.heartbeat("failing")
	eventually.True(t, "an alert with the reason", func() bool {
		return slices.ContainsFunc(s.alerts(), func(a string) bool { return strings.Contains(a, reason) })
	})
	for _, method := range []string{"start", "run_errand"} {
		got, err := s.i.Agent.Do(t.Context(), method)
		var exception *director.Exception
		if !errors.As(err, &exception) || !strings.Contains(exception.Message, status.JobsWithheld) ||
			!strings.Contains(exception.Message, s.cid) || !strings.Contains(exception.Message, reason) {
			t.Errorf("%s = %s, %v; want an exception with %q", method, got, err, reason)
		}
	}
	if d := agentStatus(t, s.i); d.State != status.Degraded || !strings.Contains(d.JobsWithheld(), reason) {
		t.Errorf("status: %s, warnings %q; want degraded and %q", d.State, d.Warnings, reason)
	}
	findings := examine(t, s.i).Findings
	if first := findings[0]; first.Check != "persistent disk" || !strings.Contains(first.Found, reason) || first.Do == "" {
		t.Errorf("the doctor's first finding is %+v, want the reason %q", first, reason)
	}
	for _, f := range findings {
		if strings.Contains(f.Do, "start monit") {
			t.Errorf("the doctor advises to start the jobs on an empty store: %+v", f)
		}
	}
	// The disk is mounted neither on the store nor on the migration target.
	if got := run(t, s.i, "sh", "-c", "systemctl is-active monit; pgrep -f [b]in/sleeper || echo no job; "+
		"grep vcap/store /proc/mounts | grep -v ^tmpfs || true"); got != "inactive\nno job\n" {
		t.Errorf("monit, the job and the store: %s", got)
	}
}

// wantDisksListed: the wrong disk may be attached.
func (s *emptyStore) wantDisksListed() {
	s.t.Helper()
	if d := agentStatus(s.t, s.i); !strings.Contains(d.JobsWithheld(), "the machine has ") {
		s.t.Errorf("the reason does not name the disks of the machine: %s", d.JobsWithheld())
	}
}

// mount ends the phase.
func (s *emptyStore) mount() {
	s.t.Helper()
	s.do("mount_disk", s.cid)
	s.do("start") // sooner than monit by itself
	s.wantOver()
}

// wantOver waits for the end of the phase, in which there was one alert.
func (s *emptyStore) wantOver() {
	t := s.t
	t.Helper()
	eventually.True(t, "running jobs", func() bool { return stateOf(t, s.i).JobState == "running" })
	if d := agentStatus(t, s.i); d.State != status.Ready || len(d.Warnings) > 0 || len(d.Progress) > 0 {
		t.Errorf("after the phase: %s, warnings %q, progress %v", d.State, d.Warnings, d.Progress)
	}
	if got := run(t, s.i, "systemctl", "is-active", "monit"); got != "active\n" {
		t.Errorf("after the phase monit is %s", got)
	}
	if got := s.list(); got != s.cid {
		t.Errorf("after the phase list_disk names %q, want %s", got, s.cid)
	}
	if got := s.alerts(); len(got) != 1 {
		t.Errorf("%d alerts about one phase, want 1: %s", len(got), got)
	}
}

func (s *emptyStore) do(method string, arguments ...any) {
	s.t.Helper()
	if _, err := s.i.Agent.Do(s.t.Context(), method, arguments...); err != nil {
		s.t.Fatalf("%s: %v", method, err)
	}
}

func (s *emptyStore) wantKept() {
	s.t.Helper()
	if got := run(s.t, s.i, "cat", "/var/vcap/store/kept"); got != "persistent\n" {
		s.t.Errorf("the store holds %q", got)
	}
}

// refused: the disk has lost its head, and gets it back.
func (s *emptyStore) refused(t *testing.T) {
	s.t = t
	s.reboot("dd if=$disk of=/root/head bs=1M count=2; dd if=/dev/zero of=$disk bs=1M count=2 conv=fsync")
	s.wantPhase("is refused")
	s.wantDisksListed()
	if got, err := s.i.Agent.Do(t.Context(), "mount_disk", s.cid); err == nil ||
		!strings.Contains(err.Error(), "is refused") {
		t.Errorf("mount_disk of the damaged disk = %s, %v", got, err)
	}
	run(t, s.i, "sh", "-ec", "dd if=/root/head of=$(cat /root/disk) conv=fsync")
	s.mount()
	s.wantKept()
}

// taken: something else is mounted on the store.
func (s *emptyStore) taken(t *testing.T) {
	s.t = t
	s.reboot("echo tmpfs /var/vcap/store tmpfs size=50% >>/etc/fstab")
	s.wantPhase("tmpfs (tmpfs) is mounted on /var/vcap/store and is not a known persistent disk")
	if got := s.list(); got != "" {
		t.Errorf("list_disk names %q, which is not mounted", got)
	}
	run(t, s.i, "sh", "-ec", "umount /var/vcap/store; sed -i '\\,vcap/store,d' /etc/fstab")
	s.mount()
	s.wantKept()
}

// checked: the boot does not wait for a long check, whose end ends the phase.
func (s *emptyStore) checked(t *testing.T) {
	s.t = t
	s.reboot("debugfs -w -R 'ssv state 2' $part; touch /root/slow")
	if got := s.list(); got != s.cid {
		t.Errorf("list_disk during the check names %q, want %s", got, s.cid)
	}
	s.wantPhase("persistent disk " + s.cid + " is being checked")
	s.wantProgress()
	run(t, s.i, "rm", "/root/slow")
}

// afterCheck: monit starts the jobs by itself, in its own time, and heartbeats go on.
func (s *emptyStore) afterCheck(t *testing.T) {
	s.t = t
	s.wantOver()
	s.wantKept()
	s.heartbeat("running")
}

// wantProgress looks for the time and the percentage of a check in the status.
func (s *emptyStore) wantProgress() {
	s.t.Helper()
	var screen string
	eventually.True(s.t, "the progress of the check in the status", func() bool {
		screen = oneLine(screenOf(s.t, s.i, "root", "status"))
		return strings.Contains(screen, "progress: disk: persistent disk "+s.cid+" is being checked (/dev/") &&
			strings.Contains(screen, "s, ") && strings.Contains(screen, " %")
	})
}

// checkedByMount: in mount_disk a check is a long task, during which everything else is answered.
func (s *emptyStore) checkedByMount(t *testing.T) {
	s.t = t
	s.do("stop")
	s.do("unmount_disk", s.cid)
	if got := run(t, s.i, "sh", "-ec", "touch /root/slow; part=$(cat /root/part); debugfs -w -R 'ssv state 2' $part 2>&1; dumpe2fs -h $part 2>&1"); !strings.Contains(got, "with errors") {
		t.Fatalf("no error is on record: %s", got)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := s.i.Agent.Do(t.Context(), "mount_disk", s.cid)
		ended <- err
	}()
	s.wantProgress()
	if got, err := s.i.Agent.Do(t.Context(), "ping"); err != nil || string(got) != `"pong"` {
		t.Errorf("ping during the check = %s, %v", got, err)
	}
	select {
	case err := <-ended:
		t.Errorf("mount_disk ended during the check: %v", err)
	default:
	}
	run(t, s.i, "rm", "/root/slow")
	if err := <-ended; err != nil {
		t.Fatalf("mount_disk: %v", err)
	}
	s.wantKept()
	s.do("start")
}

// blank: a disk on record that holds nothing is not formatted before an operator has given its content up.
func (s *emptyStore) blank(t *testing.T) {
	s.t = t
	s.reboot("blkdiscard -z $disk")
	s.wantPhase("is refused: blank, ")
	s.wantDisksListed()
	if got, err := s.i.Agent.Do(t.Context(), "mount_disk", s.cid); err == nil ||
		!strings.Contains(err.Error(), "agent disk format "+s.cid+" --yes") {
		t.Errorf("mount_disk of the blank disk = %s, %v; want an error that names the command", got, err)
	}
	if out, err := s.i.Output(t.Context(), "/var/vcap/bosh/bin/bosh-agent", "disk", "format", s.cid); err == nil ||
		!strings.Contains(out, "on record as the store") {
		t.Errorf("without --yes: %v\n%s", err, out)
	}
	run(t, s.i, "/var/vcap/bosh/bin/bosh-agent", "disk", "format", s.cid, "--yes")
	s.mount()
	if got := run(t, s.i, "ls", "/var/vcap/store"); got != "lost+found\n" {
		t.Errorf("the new store holds %q", got)
	}
	run(t, s.i, "sh", "-c", "echo persistent >/var/vcap/store/kept; sync")
}

// lose gives the machine a store and has it boot without.
func (s *emptyStore) lose() {
	t := s.t
	t.Helper()
	ready(t, s.i)
	s.cid = "disk-lost"
	if err := s.i.NewDisk(s.cid, 64<<20); err != nil {
		t.Fatal(err)
	}
	s.attach()
	s.do("mount_disk", s.cid)
	if err := errors.Join(s.i.Stop(t.Context()), s.i.DetachDisk(t.Context(), s.cid)); err != nil {
		t.Fatal(err)
	}
	s.since = time.Now()
	if err := s.i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (s *emptyStore) attach() {
	s.t.Helper()
	hint, err := s.i.AttachDisk(s.t.Context(), s.cid)
	if err != nil {
		s.t.Fatal(err)
	}
	s.do("add_persistent_disk", s.cid, hint)
}

// missing: the disk is attached again.
func (s *emptyStore) missing(t *testing.T) {
	s.t = t
	ready(t, s.i)
	s.wantPhase("timed out")
	s.wantDisksListed()
	if got := s.list(); got != "" {
		t.Errorf("list_disk names %q, and nothing is mounted", got)
	}
	s.attach()
	s.mount()
}
