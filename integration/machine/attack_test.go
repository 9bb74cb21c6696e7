//go:build machine

package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/labtest"
	"cambium/lab/machine"
	"cambium/lab/release"
)

// victim is a job whose scripts root runs, and whose directories vcap can write to. Many releases make vcap the owner of
// the run directory, as its pre-start does.
func victim() release.Job {
	return release.Job{Name: "victim", Files: release.Files{
		"bin/pre-start": "#!/bin/bash\nchown vcap:vcap /var/vcap/sys/run/victim\necho said\n",
		"bin/probe":     "#!/bin/bash\necho said\n",
	}}
}

// asVcap runs a shell script as the user of the jobs.
func asVcap(t *testing.T, i *lab.Instance, script string) string {
	t.Helper()
	return run(t, i, "runuser", "-u", "vcap", "--", "bash", "-c", script)
}

// background runs a shell script as vcap in a unit of its own, until the test stops it.
func background(t *testing.T, i *lab.Instance, name, script string) (stop func()) {
	t.Helper()
	run(t, i, "systemd-run", "--quiet", "--unit="+name, "--uid=vcap", "--gid=vcap", "--service-type=exec", "bash", "-c",
		script)
	return func() { run(t, i, "systemctl", "stop", name) }
}

// foreign is a digest of everything that a job must not be able to change through root.
func foreign(t *testing.T, i *lab.Instance) string {
	t.Helper()
	return run(t, i, "sh", "-c", "find /etc /usr/bin /root -xdev -printf '%p %m %U %G %s %y %l\\n' | sort | sha256sum; find /etc -xdev -type f -exec sha256sum {} + | sort | sha256sum")
}

// debugFromStart has every start of the agent log at debug level from its first step on: SIGUSR1 is pending, and blocked
// until the agent handles it.
var debugFromStart = machine.File{Path: "/etc/systemd/system/bosh-agent.service.d/debug.conf", Mode: 0o644, Data: []byte(`[Service]
ExecStart=
ExecStart=/usr/bin/perl -MPOSIX -e 'sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGUSR1)) and kill(USR1 => $$$$) and exec @ARGV' /var/vcap/bosh/bin/bosh-agent -P ubuntu -C /var/vcap/bosh/agent.json
`)}

// TestMachineAttacks runs attacks on the machine as the user of the jobs. The agent logs at debug
// level.
func TestMachineAttacks(t *testing.T) {
	t.Parallel()
	l := newLab(t, func(o *lab.Options) { o.VM = func(vm *lab.VM) { vm.Files = append(vm.Files, debugFromStart) } })
	m := release.Manifest{Name: "dep", Groups: []release.Group{{Name: "app", Instances: 1, EphemeralDisk: 4096,
		Jobs: []release.Job{victim()}}}}
	i := mustDeploy(t, l, m)
	before := foreign(t, i)

	t.Run("writable directories", func(t *testing.T) { writableDirectories(t, i) })
	t.Run("script logs", func(t *testing.T) { scriptLogs(t, i) })
	t.Run("sparse log", func(t *testing.T) { sparseLog(t, i) })
	t.Run("leases", func(t *testing.T) { leases(t, i) })
	t.Run("run directory", func(t *testing.T) { runDirectory(t, i) })
	t.Run("alert port", func(t *testing.T) { alertPort(t, i) })
	t.Run("monit's port", func(t *testing.T) { monitPort(t, l, i) })
	t.Run("monit's pid file", func(t *testing.T) { monitPidFile(t, i) })
	t.Run("log rotation", func(t *testing.T) { logRotation(t, i) })
	t.Run("secrets", func(t *testing.T) { secrets(t, i) })

	if after := foreign(t, i); after != before {
		t.Errorf("files of the system have changed:\n%s%s", before, after)
	}
	labtest.Explain(t, i)
}

// writable are the directories and files that vcap can write to. docs/security.md has what root does in each of them;
// one that is new belongs there first.
var writable = []string{
	"/dev/mqueue", "/dev/shm", "/home/vcap", "/run/lock", "/tmp", "/var/tmp", "/var/vcap/data/root_tmp",
	"/var/vcap/data/sys/log/victim", "/var/vcap/data/sys/run", "/var/vcap/data/victim",
}

// writableDirectories compares the machine with that list. What is in such a directory is as hostile as it.
func writableDirectories(t *testing.T, i *lab.Instance) {
	const find = `find / \( -path /proc -o -path /sys \) -prune -o -type d -writable -print -prune -o \
-type f -writable -print 2>/dev/null; true`
	got := strings.Fields(asVcap(t, i, find))
	slices.Sort(got)
	if !slices.Equal(got, writable) {
		t.Errorf("vcap can write to %q, want %q", got, writable)
	}
}

// scriptLogs exchanges the log of a script, as fast as it can, for pipes, links and directories while root runs the
// script again and again.
func scriptLogs(t *testing.T, i *lab.Instance) {
	stop := background(t, i, "racer", `cd /var/vcap/sys/log/victim; while :; do
  rm -rf probe.stdout.log; mkfifo probe.stdout.log
  rm -rf probe.stdout.log; ln -s /etc/cron.d/evil probe.stdout.log
  rm -rf probe.stdout.log; ln -s /etc/passwd probe.stdout.log
  rm -rf probe.stdout.log; mkdir probe.stdout.log
done`)
	for n := range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		_, err := i.Agent.Do(ctx, "run_script", "probe", map[string]any{})
		cancel()
		if err != nil {
			t.Fatalf("run %d: %v", n, err)
		}
	}
	stop()
	// A FIFO that stays: it never has a reader.
	asVcap(t, i, "cd /var/vcap/sys/log/victim; rm -rf probe.std*.log; mkfifo probe.stdout.log probe.stderr.log")
	do(t, i, "{}", "run_script", "probe", map[string]any{})
	if got := run(t, i, "journalctl", "-u", "bosh-agent", "-o", "cat", "--grep",
		"script runs without its log"); !strings.Contains(got, "not a regular file") {
		t.Errorf("the agent's log does not say why a log is missing: %s", got)
	}
	asVcap(t, i, "rm -f /var/vcap/sys/log/victim/probe.std*.log")
}

// sparseLog makes a log of 4 TiB that takes no room.
func sparseLog(t *testing.T, i *lab.Instance) {
	asVcap(t, i, "cd /var/vcap/sys/log/victim; echo begin >big.log; truncate -s 4T big.log; echo end >>big.log")
	var bundle struct {
		Path string `json:"logs_tar_path"`
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := i.Agent.Into(ctx, &bundle, "bundle_logs",
		map[string]any{"owning_user": "vcap", "log_type": "job", "filters": []string{}}); err != nil {
		t.Fatal(err)
	}
	out := run(t, i, "sh", "-c", fmt.Sprintf("mkdir /var/vcap/data/unpacked && tar -C /var/vcap/data/unpacked -xzf %s && cd /var/vcap/data/unpacked/victim && stat -c %%s big.log && head -c 6 big.log && tail -c 4 big.log; rm -rf /var/vcap/data/unpacked", bundle.Path))
	if want := fmt.Sprintf("%d\nbegin\nend\n", 4<<40+4); out != want {
		t.Errorf("unpacked: %q, want %q", out, want)
	}
	asVcap(t, i, "rm /var/vcap/sys/log/victim/big.log")
}

// leases takes leases on logs, also under names that are hard to print: who opens such a file without O_NONBLOCK waits
// 45 seconds, for each of them. Root leaves them out.
func leases(t *testing.T, i *lab.Instance) {
	asVcap(t, i, `cd /var/vcap/sys/log/victim; echo leased | tee probe.stdout.log probe.stderr.log >$'\e[31m\nname.log'
echo free >free.log`)
	const lease = `cd /var/vcap/sys/log/victim; exec perl -MFcntl -e '$SIG{IO} = "IGNORE"; my @held;
for my $name (glob("probe.std*.log *name.log")) {
  open(my $f, "<", $name) or die $!; fcntl($f, 1024, F_WRLCK) or die $!; push @held, $f }
open(my $f, ">", "/var/vcap/data/victim/leases"); print $f scalar(@held); close $f; sleep 1000'`
	stop := background(t, i, "leases", lease)
	eventually.True(t, "the leases", func() bool {
		return run(t, i, "sh", "-c", "cat /var/vcap/data/victim/leases 2>/dev/null || true") == "3"
	})
	do(t, i, "{}", "run_script", "probe", map[string]any{})
	var bundle struct {
		Path string `json:"logs_tar_path"`
	}
	request := map[string]any{"owning_user": "vcap", "log_type": "job", "filters": []string{}}
	if err := i.Agent.Into(t.Context(), &bundle, "bundle_logs", request); err != nil {
		t.Fatal(err)
	}
	// An open that waits gets the file in the end.
	got := run(t, i, "tar", "-xzOf", bundle.Path, "--wildcards", "./victim/*e.log")
	if got != "free\n" {
		t.Errorf("the bundle has %q, want the log without a lease alone", got)
	}
	const why = "script runs without its log.*temporarily unavailable"
	if run(t, i, "sh", "-c", "journalctl --sync; journalctl -u bosh-agent -o cat | grep -c '"+why+"' || true") == "0\n" {
		t.Error("the agent's log does not say why a log is missing")
	}
	stop()
	asVcap(t, i, "rm /var/vcap/sys/log/victim/*.log /var/vcap/data/victim/leases")
}

// runDirectory puts a link in place of the job's run directory, and restarts the agent.
func runDirectory(t *testing.T, i *lab.Instance) {
	asVcap(t, i, "rm -rf /var/vcap/sys/run/victim && ln -s /etc /var/vcap/sys/run/victim")
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i)
	if got := run(t, i, "readlink", "/var/vcap/sys/run/victim"); got != "/etc\n" {
		t.Errorf("the link is %q", got)
	}
	asVcap(t, i, "rm /var/vcap/sys/run/victim")
}

const listen = `perl -MIO::Socket::INET -e 'my $s; until ($s = IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1", LocalPort => %d, ReuseAddr => 1)) { select(undef, undef, undef, 0.001) }
open my $f, ">", "/var/vcap/data/victim/%s"; print $f "listening\n"; $f->flush; while (my $c = $s->accept) { alarm 1; local $SIG{ALRM} = sub {}; sysread $c, my $d, 4096; print $f "got $d\n"; $f->flush }'`

// alertPort tries to take the alert port while the agent is killed and started again: systemd keeps it.
func alertPort(t *testing.T, i *lab.Instance) {
	stop := background(t, i, "squatter", fmt.Sprintf(listen, 2825, "alerts"))
	for range 3 {
		run(t, i, "sh", "-c", `kill -9 $(systemctl show -P MainPID bosh-agent)`)
		ready(t, i)
	}
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i)
	if got := run(t, i, "sh", "-c", "cat /var/vcap/data/victim/alerts 2>/dev/null || true"); got != "" {
		t.Errorf("vcap got the alert port: %q", got)
	}
	if got := run(t, i, "sh", "-c", "ss -Hltnp sport = 2825"); !strings.Contains(got, "bosh-agent") ||
		!strings.Contains(got, "systemd") {
		t.Errorf("the alert port is %q", got)
	}
	stop()
	// It is closed when the agent is stopped.
	run(t, i, "systemctl", "stop", "bosh-agent")
	if got := run(t, i, "sh", "-c", "ss -Hltnp sport = 2825"); got != "" {
		t.Errorf("while the agent is stopped the alert port is %q", got)
	}
	run(t, i, "systemctl", "start", "bosh-agent")
	ready(t, i)
}

// monitPort listens where monit should, while monit is down. The agent names the process, in its status and to a
// Director who wants jobs stopped, and gives monit its port back as soon as the process has ended.
func monitPort(t *testing.T, l *lab.Lab, i *lab.Instance) {
	run(t, i, "systemctl", "stop", "monit")
	stop := background(t, i, "listener", fmt.Sprintf(listen, 2822, "monit"))
	eventually.True(t, "vcap to listen", func() bool {
		return run(t, i, "sh", "-c", "cat /var/vcap/data/victim/monit 2>/dev/null || true") == "listening\n"
	})
	if s := stateOf(t, i); s.JobState != "unknown" {
		t.Errorf("job_state is %q while monit is down", s.JobState)
	}
	if got := run(t, i, "cat", "/var/vcap/data/victim/monit"); got != "listening\n" {
		t.Errorf("vcap got %q of the agent", got)
	}
	run(t, i, "systemctl", "start", "monit")
	pid := strings.TrimSpace(run(t, i, "systemctl", "show", "-P", "MainPID", "monit"))
	stopped := make(chan error, 1)
	go func() {
		_, err := i.Agent.Do(t.Context(), "stop")
		stopped <- err
	}()
	const holder = `("perl") of user `
	eventually.Nil(t, "the status to name the process", func() error {
		got := run(t, i, "sh", "-c", "/var/vcap/bosh/bin/bosh-agent status || true")
		if stateOf(t, i); !strings.Contains(got, holder) {
			return errors.New(got)
		}
		return nil
	})
	// A Director ignores this timeout, and would go on as if the jobs were stopped.
	const ignored = "Timed out waiting for service"
	err := <-stopped
	if err == nil || !strings.Contains(err.Error(), holder) || strings.Contains(err.Error(), ignored) {
		t.Errorf("stop: got %v, want an error that names the process", err)
	}
	if got := run(t, i, "systemctl", "is-active", "listener"); got != "active\n" {
		t.Errorf("the listener is %q", got)
	}
	stop()
	eventually.True(t, "monit to answer", func() bool { return stateOf(t, i).JobState == "running" })
	if got := run(t, i, "systemctl", "show", "-P", "MainPID", "monit"); got == pid+"\n" {
		t.Error("monit was not restarted")
	}
	do(t, i, `"stopped"`, "stop")
	if s := stateOf(t, i); s.JobState != "stopped" {
		t.Errorf("job_state is %q after a stop", s.JobState)
	}
	do(t, i, `"started"`, "start")
	eventually.True(t, "monit to answer", func() bool { return stateOf(t, i).JobState == "running" })
	var alerts []string
	eventually.True(t, "an alert", func() bool {
		alerts = nil
		for _, e := range l.Monitor.Events() {
			if e.Kind == "alert" && e.Agent == i.AgentID && strings.Contains(string(e.Body), "monit's port is taken") {
				alerts = append(alerts, string(e.Body))
			}
		}
		return len(alerts) > 0
	})
	if len(alerts) != 1 || !strings.Contains(alerts[0], "of user ") {
		t.Errorf("alerts are %q, want one that names the process", alerts)
	}
}

// monitPidFile puts the number of a process of root, and then a link, where the jobs have their pid files, each time
// before monit starts: monit signals the process that its pid file names, and writes to the file.
func monitPidFile(t *testing.T, i *lab.Instance) {
	const pidFile = "/var/vcap/sys/run/monit.pid"
	start := func() {
		t.Helper()
		run(t, i, "systemctl", "start", "monit")
		eventually.True(t, "monit to answer", func() bool { return stateOf(t, i).JobState == "running" })
	}
	run(t, i, "systemd-run", "--quiet", "--unit=bystander", "--service-type=exec", "sleep", "10000")
	defer run(t, i, "systemctl", "stop", "bystander")
	run(t, i, "systemctl", "stop", "monit")
	bystander := strings.TrimSpace(run(t, i, "systemctl", "show", "-P", "MainPID", "bystander"))
	asVcap(t, i, "echo "+bystander+" >"+pidFile)
	start()
	if got := run(t, i, "systemctl", "show", "-P", "MainPID", "bystander"); got != bystander+"\n" {
		t.Errorf("monit has ended a process whose number vcap wrote to %s", pidFile)
	}
	run(t, i, "systemctl", "stop", "monit")
	asVcap(t, i, "rm -f "+pidFile+"; ln -s /etc/written "+pidFile)
	start()
	if got := run(t, i, "sh", "-c", "readlink "+pidFile+"; ls /etc | grep -x written || true"); got != "/etc/written\n" {
		t.Errorf("vcap's link and the file that it names: %q, want the link alone", got)
	}
	asVcap(t, i, "rm -f "+pidFile)
	// Its own pid file serves monit's commands, and is out of vcap's reach.
	run(t, i, "/var/vcap/bosh/bin/monit", "-c", "/var/vcap/bosh/etc/monitrc", "reload")
	if got := run(t, i, "sh", "-c", "stat -c %U /run/monit.pid; systemctl show -P MainPID monit | cmp - /run/monit.pid"); got != "root\n" {
		t.Errorf("/run/monit.pid: %q, want one of root with the number of monit's process", got)
	}
	eventually.True(t, "monit to answer", func() bool { return stateOf(t, i).JobState == "running" })
}

// logRotation has logrotate rotate the logs twice, as at night, with links, pipes and directories of vcap among them.
func logRotation(t *testing.T, i *lab.Instance) {
	// hostile makes a log whose rotated names lead elsewhere, and what is not a log.
	const hostile = `seq 1000 >own.log; ln -s /etc/written own.log.1; ln -s /etc/written own.log.1.gz
ln -s /etc/outside/x.log link.log; mkfifo pipe.log; mkdir dir.log; ln -s /etc/outside swapped
`
	run(t, i, "sh", "-c", "mkdir -m 755 /etc/outside; seq 1000 >/etc/outside/x.log; chmod 644 /etc/outside/x.log")
	defer run(t, i, "rm", "-r", "/etc/outside")
	asVcap(t, i, "cd /var/vcap/sys/log/victim; "+hostile+"mkdir deep; cd deep; "+hostile)
	before := foreign(t, i)
	const logs = "top.log victim/root.log victim/own.log victim/deep/own.log"
	for range 2 {
		run(t, i, "bash", "-c", `cd /var/vcap/sys/log; seq 1000 >top.log; (umask 077; seq 1000 >victim/root.log)
runuser -u vcap -- bash -c 'seq 1000 | tee victim/own.log >victim/deep/own.log'`)
		// The size is the only thing that differs from the agent's file. Errors are those of the hostile files.
		run(t, i, "sh", "-c", `sed s/size=50M/size=1k/ /etc/logrotate.d/vcap >/run/rotate.conf
timeout 60 logrotate -s /run/rotate.state /run/rotate.conf >/run/rotate.log 2>&1; test $? -ne 124`)
	}
	got := run(t, i, "sh", "-c",
		"cd /var/vcap/sys/log; for l in "+logs+"; do stat -c '%n %s' $l; zcat $l.2.gz | wc -l; done")
	const want = "top.log 0\n1000\nvictim/root.log 0\n1000\nvictim/own.log 0\n1000\nvictim/deep/own.log 0\n1000\n"
	if got != want {
		t.Errorf("got %q, want %q: %s", got, want, run(t, i, "cat", "/run/rotate.log"))
	}
	if after := foreign(t, i); after != before {
		t.Errorf("files of the system have changed:\n%s", run(t, i, "ls", "-l", "/etc", "/etc/outside"))
	}
	run(t, i, "sh", "-c", "cd /var/vcap/sys/log && rm -rf top.log* victim/* && rm /run/rotate.*")
}

// secrets looks for those of the settings wherever the agent, or the machine because of it, could have put them: the
// journal with all its fields, logs, the instance directory, command lines and environments, what the commands print,
// core dumps, and everything that vcap can read.
func secrets(t *testing.T, i *lab.Instance) {
	// Those of the settings, and those that come with requests, most of which fail: their errors would show a leak.
	const canary = "canary-4711"
	headers := map[string]string{"x-key": canary}
	for _, call := range [][]any{
		{"fetch_logs_with_signed_url", map[string]any{"signed_url": "http://u:" + canary + "@127.0.0.1:1/x?sig=" + canary, "log_type": "job", "filters": []string{}, "blobstore_headers": headers}},
		{"sync_dns_with_signed_url", map[string]any{"signed_url": "http://127.0.0.1:1/x?sig=" + canary, "multi_digest": "sha1:0", "version": 1, "blobstore_headers": headers}},
		{"add_persistent_disk", "d", map[string]any{"path": "/dev/none", "iscsi_settings": map[string]any{"password": canary}}},
		{"upload_blob", map[string]any{"blob_id": "b", "checksum": "sha1:0", "payload": canary}},
		{"update_settings", map[string]any{"blobstores": []any{map[string]any{"provider": "dav", "options": map[string]any{"endpoint": "http://127.0.0.1:1", "user": "u", "password": canary}}}}},
		{"fetch_logs", "job", []string{}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		_, err := i.Agent.Do(ctx, call[0].(string), call[1:]...)
		cancel()
		if err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("%s: the error reveals a secret: %v", call[0], err)
		}
	}
	// Every boot has logged at debug level, whose lines are among what is searched.
	if got := run(t, i, "/var/vcap/bosh/bin/bosh-agent", "log-level"); got != "debug\n" {
		t.Errorf("the agent logs at level %q, want debug", got)
	}
	if run(t, i, "sh", "-c", "journalctl -u bosh-agent -o cat | grep -c ' DEBUG - ' || true") == "0\n" {
		t.Error("the journal has no line of debug level")
	}
	defer containers.Secrets(t, i, canary)()
	for name, command := range secretPlaces {
		if found := containers.Search(t, i, command); found != "" {
			t.Errorf("%s holds a secret: %s", name, found)
		}
	}
	// The search finds secrets: one is planted in each kind of place.
	run(t, i, "sh", "-c", "echo "+canary+" | tee /var/log/planted >/var/vcap/instance/planted; logger "+canary)
	run(t, i, "systemd-run", "--quiet", "--unit=planted", "--service-type=exec", "--setenv=PLANTED="+canary, "bash", "-c",
		"sleep 1000; : "+canary)
	run(t, i, "journalctl", "--sync")
	for _, name := range []string{"the journal", "logs", "the instance directory", "a command line", "an environment",
		"systemd's properties", "a file that vcap can read"} {
		if containers.Search(t, i, secretPlaces[name]) == "" {
			t.Errorf("a secret that was planted in %s was not found", name)
		}
	}
	run(t, i, "sh", "-c", "systemctl stop planted; rm /var/log/planted /var/vcap/instance/planted")
}

const agentProgram = "/var/vcap/bosh/bin/bosh-agent "

// secretPlaces are commands that look for the patterns in /root/patterns, by where they look.
var secretPlaces = map[string]string{
	"the journal":               "journalctl --all -o export | grep -acFf /root/patterns",
	"logs":                      "grep -rlaFf /root/patterns /var/log /var/vcap/data/sys/log /var/vcap/bosh/log --exclude-dir=journal",
	"the instance directory":    "grep -rlaFf /root/patterns /var/vcap/instance",
	"a command line":            "grep -laFf /root/patterns /proc/[0-9]*/cmdline",
	"an environment":            "grep -laFf /root/patterns /proc/[0-9]*/environ",
	"the status":                "(" + agentProgram + "status --json; cat /run/cambium/status.json) | grep -acFf /root/patterns",
	"the plan":                  agentProgram + "plan 2>&1 | grep -acFf /root/patterns",
	"the timeline":              agentProgram + "timeline 2>&1 | grep -acFf /root/patterns",
	"the explained settings":    agentProgram + "settings --explain 2>&1 | grep -acFf /root/patterns",
	"the diagnosis":             agentProgram + "doctor -v --timeout 500ms 2>&1 | grep -acFf /root/patterns",
	"an archive for support":    agentProgram + "support - --timeout 500ms 2>/dev/null | zcat | grep -acFf /root/patterns",
	"the metrics":               agentProgram + "metrics 2>&1 | grep -acFf /root/patterns",
	"systemd's properties":      "systemctl show bosh-agent monit 'plante*' | grep -acFf /root/patterns",
	"a core dump":               "find / -xdev -type f '(' -name core -o -name 'core.*' -o -path '*/coredump/*' ')' -not -path '/usr/*'",
	"a file that vcap can read": labtest.FilesOfJobs,
	"a device that vcap can":    labtest.DevicesOfJobs,
}
