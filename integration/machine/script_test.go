//go:build machine

package machine

import (
	"slices"
	"strings"
	"testing"

	"cambium/lab/labtest"
	"cambium/lab/machine"
	"cambium/lab/release"
)

// inherited writes down what a process has of its parent: a service of systemd without settings of
// its own has systemd's defaults.
const inherited = `inherited() {
  echo "nice $(nice)"
  echo "oom $(cat /proc/self/oom_score_adj)"
  grep -E '^(Cap|NoNewPrivs|Seccomp|Umask|Cpus_allowed_list)' /proc/self/status
  cat /proc/self/limits
  for namespace in /proc/self/ns/*; do echo "namespace $(basename $namespace) $(readlink $namespace)"; done
  echo "policy $(chrt -p $$ | cut -d: -f2 | tr -d '\n')"
}
`

// hardening begins the lines of inherited that say what a process may do.
var hardening = []string{"Cap", "NoNewPrivs", "Seccomp", "namespace"}

// TestMachineScriptsRunWithDefaults has a pre-start do what releases do, and lets it, a drain, an errand, a
// compilation and a process of monit's look at what they inherited: of the agent's unit nothing, and no less than a
// plain service has.
func TestMachineScriptsRunWithDefaults(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	job := release.Job{Name: "probe", Files: release.Files{"bin/pre-start": "#!/bin/bash\nset -eu\n" + inherited + `
inherited >/var/vcap/data/pre-start.inherited
out=/var/vcap/data/probe.out
yes 2>/dev/null | head -1 >/dev/null; echo "sigpipe ${PIPESTATUS[0]}" >$out
mkdir -p /var/vcap/data/probe.mnt
mount -t tmpfs probe /var/vcap/data/probe.mnt
sysctl -q net.ipv4.ip_forward=1
echo "forward $(cat /proc/sys/net/ipv4/ip_forward)" >>$out
echo "sudo $(sudo -n -u vcap id -un)" >>$out
echo "tmpdir $TMPDIR" >>$out
printf '#!/bin/sh\necho executed' >$TMPDIR/program
chmod +x $TMPDIR/program
echo "program $($TMPDIR/program)" >>$out
rm $TMPDIR/program
`, "bin/run": "#!/bin/bash\nset -eu\n" + inherited + "inherited >/var/vcap/data/errand.inherited\necho tmpdir $TMPDIR\n",
		"bin/drain": "#!/bin/bash\nset -eu\n" + inherited + "inherited >/var/vcap/data/drain.inherited\necho 0\n",
		"monit":     monitFile("probe"),
		"bin/ctl": "#!/bin/bash\n" + inherited + `case $1 in
start) inherited >/var/vcap/data/job.inherited; setsid sleep 10000 </dev/null >/dev/null 2>&1 & echo $! >/var/vcap/sys/run/probe/probe.pid ;;
stop) kill "$(cat /var/vcap/sys/run/probe/probe.pid)"; rm -f /var/vcap/sys/run/probe/probe.pid ;;
esac
`}}
	m := release.Manifest{Name: "probe", Groups: []release.Group{{Name: "probe", Instances: 1, EphemeralDisk: 2048,
		Jobs: []release.Job{job}}}}
	err := l.Deploy(t.Context(), m, nil)
	i := l.Machines()["probe-0"]
	if err != nil {
		t.Fatalf("%v\n%s", err, run(t, i, "sh", "-c",
			"cat /var/vcap/sys/log/probe/pre-start.stderr.log /var/vcap/data/probe.out"))
	}
	labtest.Explain(t, i)
	got := map[string][]string{}
	for line := range strings.Lines(run(t, i, "cat", "/var/vcap/data/probe.out")) {
		words := strings.Fields(line)
		got[words[0]] = words[1:]
	}
	for key, want := range map[string]string{"sigpipe": "141", "sudo": "vcap", "forward": "1",
		"tmpdir": "/var/vcap/data/tmp", "program": "executed"} {
		if value := strings.Join(got[key], " "); value != want {
			t.Errorf("%s is %q in a pre-start, want %q", key, value, want)
		}
	}
	if mount := run(t, i, "findmnt", "-n", "-o", "FSTYPE", "/var/vcap/data/probe.mnt"); mount != "tmpfs\n" {
		t.Errorf("what the pre-start mounted is %q, want a tmpfs that all processes see", mount)
	}

	var errand struct {
		Stdout   string `json:"stdout"`
		ExitCode int    `json:"exit_code"`
	}
	if err := i.Agent.Into(t.Context(), &errand, "run_errand", "probe"); err != nil || errand.ExitCode != 0 ||
		errand.Stdout != "tmpdir /var/vcap/data/tmp\n" {
		t.Errorf("errand: %+v, %v", errand, err)
	}
	source, err := release.Package{Name: "src", Files: release.Files{"packaging": "set -eu\n" + inherited + `inherited >/var/vcap/data/compilation.inherited
[ $TMPDIR = /var/vcap/data/tmp ]
touch $BOSH_INSTALL_TARGET/made
`}}.Pack("")
	if err != nil {
		t.Fatal(err)
	}
	id, digest := putBlob(t, l, source)
	if _, err := i.Agent.Do(t.Context(), "compile_package_with_signed_url",
		map[string]any{"package_get_signed_url": l.Blobs.SignedURL("GET", id),
			"upload_signed_url": l.Blobs.SignedURL("PUT", "compiled"), "digest": digest, "name": "src", "version": "1",
			"deps": map[string]any{}}); err != nil {
		t.Fatal(err)
	}
	if err := i.WriteFile(machine.File{Path: "/root/service",
		Data: []byte(inherited + "inherited >/var/vcap/data/service.inherited\n"), Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	run(t, i, "systemd-run", "--wait", "--quiet", "--nice=0", "bash", "/root/service") // the default, also where these tests run with another
	lines := func(who string) []string {
		return strings.Split(run(t, i, "cat", "/var/vcap/data/"+who+".inherited"), "\n")
	}
	want := lines("service")
	if len(want) < 25 {
		t.Fatalf("a service of systemd has %q", want)
	}
	do(t, i, "0", "drain", "shutdown")
	for _, who := range []string{"pre-start", "drain", "errand", "compilation"} {
		got := lines(who)
		for n, line := range want {
			if n >= len(got) || got[n] != line {
				t.Errorf("a %s has %q, want %q as a service of systemd", who, got[min(n, len(got)-1)], line)
			}
		}
	}
	// monit gives its programs an environment, a nice level and limits of its own.
	program := strings.Join(lines("job"), "\n") + "\n"
	seen := 0
	for _, line := range want {
		if slices.ContainsFunc(hardening, func(prefix string) bool { return strings.HasPrefix(line, prefix) }) {
			seen++
			if !strings.Contains(program, line+"\n") {
				t.Errorf("a process of monit's does not have %q as a service of systemd; it has\n%s", line, program)
			}
		}
	}
	if seen < 15 {
		t.Errorf("a service of systemd tells %d lines about what it may do", seen)
	}
}
