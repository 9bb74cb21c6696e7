//go:build machine

package machine

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab"
	"cambium/lab/machine"
	"cambium/lab/release"
)

// TestMachineGate looks into a machine with a job as the acceptance tests of the field and the releases that run on
// every machine do: by the names of processes, through sudo, and by the path of monit's program.
func TestMachineGate(t *testing.T) { passGate(t, "systemd") }

// TestMachineGateUnderMonit is TestMachineGate with monit as the supervisor. MONIT names the monit of another stemcell,
// such as 5.2.5.
func TestMachineGateUnderMonit(t *testing.T) {
	var files []machine.File
	if path := os.Getenv("MONIT"); path != "" {
		program, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files = []machine.File{{Path: "/var/vcap/bosh/bin/monit", Mode: 0o755, Data: program}}
	}
	passGate(t, "monit", files...)
}

func passGate(t *testing.T, supervisor string, files ...machine.File) {
	t.Parallel()
	g := gate{t: t, l: newLab(t, func(o *lab.Options) { o.VM = twoCards(t, supervised(supervisor, files...)) })}
	m := manifest([]release.Job{limited(supervisor == "monit" && len(files) == 0)}, tool("one"))
	m.Groups[0].PersistentDisk = 64
	g.i = mustDeploy(t, g.l, m)
	g.sh("groupadd -f bosh_sudoers; useradd -m -s /bin/bash -G vcap,bosh_sudoers bosh_op")
	g.names()
	g.monitProgram()
	g.closedPort()
	g.deaths()
	g.restart()
	g.logs()
	g.networks()
	g.boot()
	g.grows(m)
	if supervisor == "systemd" {
		g.limit()
	}
}

// limited is a job that writes its own number and becomes the daemon, which current versions of monit kill unless it is
// in the background.
func limited(currentMonit bool) release.Job {
	job := execer()
	if !currentMonit {
		job.Files["monit"] = monitFile("execer")
	}
	return job
}

// Addresses of a machine with two cards: two of the first card, which are one group, one of the second, and one of
// the prefix that is delegated to the first, which a release adds.
const (
	first6, second4, prefix6, inPrefix = "fd88::30", "10.88.1.30", "fd88:0:0:0:1::", "fd88::1:0:0:20"
)

// twoCards gives a machine networks of every kind that the acceptance tests deploy, an SSH server, and the stemcell's
// restart_networking.
func twoCards(t *testing.T, describe func(vm *lab.VM)) func(vm *lab.VM) {
	t.Helper()
	const program = "/var/vcap/bosh/bin/restart_networking"
	restart, err := os.ReadFile("../../stemcell-assets/rootfs" + program)
	if err != nil {
		t.Fatal(err)
	}
	return func(vm *lab.VM) {
		describe(vm)
		vm.NICs, vm.SSHD = 2, true
		vm.Files = append(vm.Files, machine.File{Path: program, Mode: 0o755, Data: restart})
		edit := vm.Edit
		vm.Edit = func(d lab.Document) {
			edit(d)
			name := d["vm"].(map[string]any)["name"].(string)
			add := func(network string, card int, ip, prefix, netmask string) {
				d.Set("networks."+network, map[string]any{"type": "manual", "ip": ip, "prefix": prefix, "netmask": netmask,
					"mac": machine.MAC(name, card).String(), "nic_group": fmt.Sprint(card + 1)})
			}
			const half = "ffff:ffff:ffff:ffff::"
			add("ipv6", 0, first6, "128", half)
			add("delegated", 0, prefix6, "80", half)
			add("second", 1, second4, "32", lab.Netmask)
		}
	}
}

// gate is a machine that is looked into.
type gate struct {
	t *testing.T
	l *lab.Lab
	i *lab.Instance
}

func (g gate) sh(script string) string {
	g.t.Helper()
	return strings.TrimSpace(run(g.t, g.i, "sh", "-c", script))
}

// operator runs a command as one who came by bosh ssh.
func (g gate) operator(command string) string {
	g.t.Helper()
	return g.sh("su bosh_op -c '" + command + "' 2>&1")
}

// one waits until exactly one process has a name, other than one of before, and returns its number.
func (g gate) one(pattern, before string) (pid string) {
	g.t.Helper()
	eventually.True(g.t, "one process "+pattern, func() bool {
		pid = g.sh("pgrep " + pattern + " || true")
		return pid != "" && pid != before && !strings.Contains(pid, "\n")
	})
	return pid
}

func (g gate) job() string {
	g.t.Helper()
	return g.sh("cat /var/vcap/data/sys/run/execer/execer.pid")
}

// running waits until the job runs as a process other than before.
func (g gate) running(before string) (pid string) {
	g.t.Helper()
	eventually.True(g.t, "the job to run", func() bool {
		pid = g.sh("cat /var/vcap/data/sys/run/execer/execer.pid 2>/dev/null || true")
		return pid != "" && pid != before && g.sh("kill -0 "+pid+" 2>/dev/null && echo lives || true") == "lives"
	})
	return pid
}

// names: each of both programs is one process, whether or not the pattern is anchored.
func (g gate) names() {
	for _, name := range []string{"monit", "bosh-agent"} {
		if all, exact := g.one(name, ""), g.one("'^"+name+"$'", ""); all != exact {
			g.t.Errorf("pgrep %s: process %s, and %s by the exact name", name, all, exact)
		}
	}
	// netstat takes a program's name from its arguments.
	if got := g.sh(`tr '\0' '\n' </proc/$(pgrep '^monit$')/cmdline | head -1`); !strings.HasSuffix(got, "monit") {
		g.t.Errorf("the supervisor's first argument is %q", got)
	}
	if got := g.operator("sudo cat /var/vcap/bosh/agent.json"); !strings.Contains(got, `"ServiceManager": "systemd"`) {
		g.t.Errorf("agent.json does not name systemd as the service manager: %s", got)
	}
	if got := g.sh("hostname"); got != g.i.AgentID {
		g.t.Errorf("the host name is %q, want the agent's id %q", got, g.i.AgentID)
	}
	if got := g.sh("mount | grep -c ' on /var/vcap/data/sys/run '; su vcap -c 'touch /var/vcap/data/sys/run/of-vcap' && echo made"); got != "1\nmade" {
		g.t.Errorf("mounts of sys/run, and a file of vcap there: %q", got)
	}
}

// monitProgram is found by everyone who may use it, and talks to what runs the jobs, with a package's monit and without.
func (g gate) monitProgram() {
	g.t.Helper()
	look := func(when string) {
		g.t.Helper()
		calls := []string{"sudo monit", "sudo PATH=$PATH:/var/vcap/bosh/bin monit", "sudo /var/vcap/bosh/bin/monit"}
		for _, call := range calls {
			for _, command := range []string{"summary", "status"} {
				if got := g.operator(call + " " + command); !strings.Contains(got, "execer") {
					g.t.Errorf("%s: %s %s: %s", when, call, command, got)
				}
			}
		}
		calls = []string{"monit summary", "/var/vcap/bosh/bin/monit summary", "su - -c 'monit summary'"}
		for _, call := range calls {
			if got := g.sh(call + " 2>&1 || true"); !strings.Contains(got, "execer") {
				g.t.Errorf("%s: root's %s: %s", when, call, got)
			}
		}
	}
	look("with the package")
	if got, want := g.operator(`sudo monit status 2>/dev/null | grep "^ *pid " | sed "s/[^0-9]//g"`),
		g.job(); got != want {
		g.t.Errorf("monit status names process %q, want %q", got, want)
	}
	if supervisor := g.sh("systemctl show -P ExecStart monit"); !strings.Contains(supervisor, "supervise") {
		return
	}
	g.sh("mv /usr/bin/monit /root/debians")
	look("without the package")
	g.sh("mv /root/debians /usr/bin/monit")
}

// closedPort: a connection of one who may not reach monit gets no answer, rather than a refusal.
func (g gate) closedPort() {
	for _, user := range []string{"bosh_op", "vcap"} {
		if got := g.sh("su " + user + ` -c 'timeout 2 bash -c "exec 3<>/dev/tcp/127.0.0.1/2822"; echo $?' 2>&1`); got != "124" {
			g.t.Errorf("%s connects to monit's port: %q, want a timeout", user, got)
		}
	}
}

// deaths: a process that is killed comes back, and takes no other with it.
func (g gate) deaths() {
	agent, monit, job := g.one("'^bosh-agent$'", ""), g.one("'^monit$'", ""), g.running("")
	g.sh("pkill -9 agent")
	agent = g.one("'^bosh-agent$'", agent)
	ready(g.t, g.i)
	if now := g.one("'^monit$'", ""); now != monit {
		g.t.Errorf("the death of the agent replaced monit %s by %s", monit, now)
	}
	for _, signal := range []string{"-TERM", "-KILL"} {
		g.sh("pkill " + signal + " monit")
		monit = g.one("'^monit$'", monit)
	}
	if now := g.one("'^bosh-agent$'", ""); now != agent {
		g.t.Errorf("the death of monit replaced the agent %s by %s", agent, now)
	}
	if now := g.running(""); now != job {
		g.t.Errorf("the job %s became %s", job, now)
	}
	g.sh("pkill sleeper")
	g.running(job)
}

// restart: stopping and starting the agent changes nothing that it does not own.
func (g gate) restart() {
	state := func() string {
		return fmt.Sprint(g.one("'^monit$'", ""), " ", g.running(""), "\n",
			g.sh("cat /proc/self/mountinfo | grep ' /var/vcap/data/sys/run '; ls /var/vcap/data/sys/run"))
	}
	before := state()
	for _, unit := range []string{"agent", "bosh-agent"} {
		g.sh("systemctl stop " + unit)
		if got := g.sh("pgrep '^bosh-agent$' || true"); got != "" {
			g.t.Errorf("after systemctl stop %s: agent %s", unit, got)
		}
		g.sh("systemctl start " + unit)
		ready(g.t, g.i)
	}
	if after := state(); after != before {
		g.t.Errorf("a restart of the agent changed\n%s\nto\n%s", before, after)
	}
}

// logs are packed under the names that are expected, whatever runs the jobs.
func (g gate) logs() {
	for _, log := range []struct{ kind, name, content string }{
		{"agent", "./current", "agent starting"}, {"job", "./execer/execer.log", "one execer up"}} {
		if got := logsOf(g.t, g.l, g.i, log.kind)[log.name]; !strings.Contains(got, log.content) {
			g.t.Errorf("%s of the %s's logs: %.500q, want %q in it", log.name, log.kind, got, log.content)
		}
	}
}

// networks: those of a group are on one card, and a line that a release appends to our file for networkd is in effect
// after restart_networking.
func (g gate) networks() {
	for address, card := range map[string]string{g.i.IP: "eth0", first6: "eth0", second4: "eth1"} {
		if got := g.sh("ip -o address show to " + address); !strings.Contains(got, " "+card+" ") {
			g.t.Errorf("address %s: %q, want it on %s", address, got, card)
		}
	}
	var spec struct {
		Networks map[string]struct{ IP, Prefix string } `json:"networks"`
	}
	if err := json.Unmarshal([]byte(g.operator("sudo cat /var/vcap/bosh/spec.json")), &spec); err != nil {
		g.t.Error(err)
	}
	if got := spec.Networks["delegated"]; got.IP != prefix6 || got.Prefix != "80" {
		g.t.Errorf("spec.json has the prefix %q of %q, want 80 of %s", got.Prefix, got.IP, prefix6)
	}
	card := g.sh("ip -j -6 route get " + inPrefix + ` | sed 's/.*"dev":"\([^"]*\).*/\1/'`)
	g.operator(fmt.Sprintf(`printf "[Address]\nAddress=%s/80\n" | sudo tee -a /etc/systemd/network/10_%s.network && sudo /var/vcap/bosh/bin/restart_networking`,
		inPrefix, card))
	g.appended("after restart_networking")
}

// appended waits for the address of the delegated prefix.
func (g gate) appended(when string) {
	g.t.Helper()
	eventually.True(g.t, "the appended address "+when,
		func() bool { return g.sh("ip -o address show dev eth0 to "+inPrefix) != "" })
}

// greets is nil once the machine's SSH server answers.
func (g gate) greets() error {
	conn, err := g.l.Net.Dial("tcp", g.i.IP+":22")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, err = io.ReadFull(conn, make([]byte, len("SSH-2.0")))
	return err
}

// boot: after a reboot that an operator asks for, ssh and the jobs are there without the Director, files of before are
// gone, and all three know the same process.
func (g gate) boot() {
	g.sh("touch /var/vcap/data/sys/run/stale.pid; sync")
	g.l.Bus.Stop()
	boots, _ := g.i.Boots()
	_, _ = g.i.Output(g.t.Context(), "su", "bosh_op", "-c", "sudo reboot") // ends with the machine
	eventually.True(g.t, "the reboot", func() bool { now, _ := g.i.Boots(); return now > boots })
	eventually.Nil(g.t, "an SSH server after the reboot", g.greets)
	g.one("'^monit$'", "")
	pid := g.running("")
	g.appended("after a boot")
	if got := g.sh("ls /var/vcap/data/sys/run"); strings.Contains(got, "stale") {
		g.t.Errorf("after a boot: %q", got)
	}
	eventually.True(g.t, "monit to name the job's process", func() bool {
		return g.operator(`sudo monit status 2>/dev/null | grep "^ *pid " | sed "s/[^0-9]//g"`) == pid
	})
	if got := g.sh("pgrep sleeper"); got != pid {
		g.t.Errorf("the job is process %s, and its file says %s", got, pid)
	}
	if err := g.l.Bus.Restart(g.t.Context()); err != nil {
		g.t.Fatal(err)
	}
	ready(g.t, g.i)
}

// grows: a deployment with a larger persistent disk keeps what is on it.
func (g gate) grows(m release.Manifest) {
	const look = "cat /var/vcap/store/kept; df --output=size /var/vcap/store | tail -1"
	small := g.sh("echo foobar >/var/vcap/store/kept; " + look)
	m.Groups[0].PersistentDisk *= 2
	mustDeploy(g.t, g.l, m)
	large := g.sh(look)
	if !strings.HasPrefix(large, "foobar\n") || large == small {
		g.t.Errorf("on the disk of twice the size: %q, before: %q", large, small)
	}
}

// limit: a limit of open files that a job sets for the supervisor, by its name, is for what it starts from then on.
func (g gate) limit() {
	before := g.running("")
	g.sh("prlimit --pid $(pgrep monit) --nofile=3000:4000 && kill -9 " + before)
	pid := g.running(before)
	if got := g.sh("prlimit --pid " + pid + " --nofile --output SOFT,HARD --noheadings | xargs"); got != "3000 4000" {
		g.t.Errorf("the job may open %s files, want 3000 4000", got)
	}
}
