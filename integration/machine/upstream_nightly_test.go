//go:build machine && nightly

package machine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/lab"
	"cambium/lab/disk"
	"cambium/lab/labtest"
	"cambium/lab/machine"
)

const (
	upstreamModule = "github.com/cloudfoundry/bosh-agent/v2"
	// specHost is the SSH name by which the specs reach the machine, specUser their account on it.
	specHost = "agent_vm"
	specUser = "agent_test_user"
	// specAgent is the agent id of every spec. With it the first boot names the machine, which sudo looks up.
	specAgent = "fake-agent-id"
	// specDisk is the ephemeral disk of almost every spec, specDiskSize its size.
	specDisk     = "sdh"
	specDiskSize = 128 << 20
	// standIns is the directory of the programs that the specs find instead of the system's; it is not on the agent's PATH.
	standIns     = "/usr/local/specs"
	systemPath   = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	suiteTimeout = 45 * time.Minute
)

// notApplicable are the specs that are not run, by their full names, with the reason.
var notApplicable = map[string]string{
	"nats firewall ipv4 sets up the outgoing nats firewall":                                                                   otherFirewall,
	"nats firewall ipv6 sets up the outgoing nats for firewall  ipv6 ":                                                        otherFirewall,
	ephemeralSpecs + "provided in settings when ephemeral disk does not exist agent fails with error":                         otherLog,
	ephemeralSpecs + "not provided in settings when root disk can not be used as ephemeral agent fails with error":            otherLog,
	ephemeralSpecs + "not provided in settings when root disk can be used as ephemeral partitions root disk":                  renamedRoot,
	rootDiskSpecs + "when swap size is set to 0 does not partition a swap device":                                             renamedRoot,
	"SystemMounts mounting /tmp when ephemeral disk exists when agent is restarted does not change mounts and permissions":    otherLog,
	"RawEphemeralDisk when raw ephemeral disk is provided in settings labels the raw ephemeral paths for unpartitioned disks": noUdev,
}

// laterWording are specs that want a sentence as this release words it. They are to fail over the words of later releases
// of cloudfoundry/bosh-agent, which are this agent's.
var laterWording = map[string]string{
	"compile_package when configured with a signed URL does not skip verification when digest argument is missing": noDigest,
	"compile_package when configured with a blobstore does not skip verification when digest argument is missing":  noDigest,
	"sync_dns sync_dns action does not skip verification if no checksum is sent":                                   noDigest,
}

const noDigest = "no digest algorithm found. supported algorithms: sha1, sha256, sha512"

const (
	ephemeralSpecs = "EphemeralDisk mounted on /var/vcap/data when ephemeral disk is "
	rootDiskSpecs  = ephemeralSpecs + "not provided in settings when root disk can be used as ephemeral "
	otherFirewall  = "looks for rules of iptables and a control group of cloudfoundry/bosh-agent; this agent makes rules of nftables"
	otherLog       = "searches the log for a sentence of cloudfoundry/bosh-agent"
	renamedRoot    = "gives another disk the name of the root disk's node; this agent asks the kernel which disk the root is on"
	noUdev         = "wants links that udev makes, and a container has no udev"
)

// specPrograms maps programs that the specs start on the machine to scripts that answer in their place in a container.
var specPrograms = map[string]string{
	// Stemcells of upstream have runit. The specs do not wait for a start to end.
	"sv": `[ "$1" != start ] || set -- "$1 --no-block" "$2"
exec systemctl $1 "bosh-$2"`,
	// The specs grow the root partition of a stemcell to 10 GB for the images of their disks, which are none here.
	"parted":  `printf 'BYT;\n/dev/root:10000000000B:loop:512:512:loop::;\n1:0B:10000000000B:10000000000B:ext4::;\n'`,
	"netcat":  `exec bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$3" "$4"`,
	"killall": `for p in $(pgrep -x "$2"); do kill "$1" "$p"; done`,
	// fuser -km MOUNT ends every process that uses the file system.
	"fuser": `for p in $(find /proc/[0-9]*/cwd /proc/[0-9]*/root /proc/[0-9]*/exe /proc/[0-9]*/fd -maxdepth 1 '(' -lname "$2" -o -lname "$2/*" ')' 2>/dev/null | cut -d/ -f3 | sort -u); do
	kill -9 "$p"
done
exit 0`,
	// The specs make loop devices over files and give them the names of disks. Loop devices are the host's, so the disk is
	// the lab's, and a new one is the same disk without its contents.
	"losetup": `[ "$1" != -f ] || echo /dev/` + specDisk,
	"dd":      `case "$*" in *of=/virtualfs-*) exit 0 ;; esac; exec /bin/dd "$@"`,
	"rm":      `case "$2" in /dev/*) exit 0 ;; esac; exec /bin/rm "$@"`,
	"mknod": `case "$1" in
/dev/` + specDisk + `)
	for n in 1 2; do
		[ ! -e "$1$n" ] || { swapoff "$1$n" 2>/dev/null; delpart "$1" "$n" || exit 1; }
	done
	exec blkdiscard --force "$1" ;;
/dev/*) exit 0 ;; # a partition, which the agent announces
esac
exec /bin/mknod "$@"`,
	// Not every kernel has dummy links.
	"ip":    `case "$*" in "link add dummy0 type dummy") set -- link add dummy0 type veth peer name dummy1 ;; esac; exec /sbin/ip "$@"`,
	"rmmod": `exec ip link delete dummy0`,
}

// upstreamSuite builds the integration suite of cloudfoundry/bosh-agent from its module, in the release that the
// benchmarks compare with and in a module of its own. It returns the directory to run the program "specs" in,
// and the release.
func upstreamSuite(t *testing.T) (dir, release string) {
	t.Helper()
	script, err := os.ReadFile("../../scripts/baseline")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^release=(\S+)$`).FindSubmatch(script)
	if found == nil {
		t.Fatal("scripts/baseline names no release")
	}
	release = string(found[1])
	module := t.TempDir()
	dir = filepath.Join(t.TempDir(), "integration") // the specs look for ../integration/assets
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(module, "go.mod"), []byte("module specs\n\ngo 1.26\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tool := func(args ...string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), "go", args...)
		command.Dir, command.Env = module, append(os.Environ(), "GOFLAGS=-mod=mod -trimpath", "CGO_ENABLED=0")
		var problems bytes.Buffer
		command.Stderr = &problems
		out, err := command.Output()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, problems.String())
		}
		return strings.TrimSpace(string(out))
	}
	suite := upstreamModule + "/integration"
	tool("get", "-t", suite+"@"+release)
	tool("test", "-c", "-o", filepath.Join(dir, "specs"), suite)
	tool("build", "-o", filepath.Join(dir, "fake-blobstore"), suite+"/fake-blobstore")
	// A copy, since the specs write a file beside these.
	if err := os.CopyFS(filepath.Join(dir, "assets"),
		os.DirFS(filepath.Join(tool("list", "-m", "-f", "{{.Dir}}", upstreamModule), "integration/assets"))); err != nil {
		t.Fatal(err)
	}
	return dir, release
}

// specFiles returns the files that the specs expect on their machine: programs, SSH for an account with sudo, the
// agent's log in a file, and the blobstore with its content.
func specFiles(t *testing.T, dir string) []machine.File {
	t.Helper()
	files := []machine.File{
		{Path: "/etc/systemd/system/bosh-agent.service.d/specs.conf", Mode: 0o644,
			Data: []byte("[Service]\nStandardOutput=append:/var/vcap/bosh/log/current\nStandardError=append:/var/vcap/bosh/log/current\n")},
		// A private /tmp would keep a service on a disk that the specs take away.
		{Path: "/etc/systemd/system/service.d/specs.conf", Mode: 0o644, Data: []byte("[Service]\nPrivateTmp=no\n")},
		{Path: "/etc/sudoers.d/specs", Mode: 0o440, Data: fmt.Appendf(nil, "Defaults secure_path=%s:%s\n%s ALL=(ALL) NOPASSWD: ALL\n", standIns, systemPath, specUser)},
		{Path: "/etc/ssh/sshd_config.d/specs.conf", Mode: 0o644, Data: fmt.Appendf(nil, "SetEnv PATH=%s:%s\n", standIns, systemPath)},
	}
	add := func(path, source string, mode fs.FileMode) {
		data, err := os.ReadFile(filepath.Join(dir, source))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, machine.File{Path: path, Mode: mode, Data: data})
	}
	add("/root/authorized_keys", "key.pub", 0o644)
	add("/root/fake-blobstore", "fake-blobstore", 0o755)
	for _, name := range []string{"foo", "bar"} {
		blob := "release/packages/" + name + ".tgz"
		add("/home/"+specUser+"/"+blob, "assets/"+blob, 0o644)
	}
	for name, body := range specPrograms {
		files = append(files, machine.File{Path: standIns + "/" + name, Mode: 0o755,
			Data: []byte("#!/bin/sh\n" + body + "\n")})
	}
	return files
}

// specMachine starts a machine as the specs want one, and writes how to reach it.
func specMachine(t *testing.T, l *lab.Lab, dir string) {
	t.Helper()
	key, image := filepath.Join(dir, "key"), filepath.Join(dir, "disk")
	if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
		key).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v: %s", err, out)
	}
	if err := disk.Create(image, specDiskSize); err != nil {
		t.Fatal(err)
	}
	// A source with DHCP, since some specs have the agent ask for a lease.
	i := create(t, l, lab.VM{AgentID: specAgent, Source: lab.HTTP, Files: specFiles(t, dir),
		Edit: func(d lab.Document) { d.Set("disks.ephemeral", "/dev/"+specDisk) }})
	if _, err := i.Attach(t.Context(), machine.Disk{ID: "specs", Image: image, Node: specDisk}); err != nil {
		t.Fatal(err)
	}
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	run(t, i, "sh", "-ec", `getent group syslog >/dev/null || groupadd --system syslog
useradd --home-dir /home/`+specUser+` --shell /bin/bash `+specUser+`
chown `+specUser+` /home/`+specUser+`
install -d -m 700 -o `+specUser+` /home/`+specUser+`/.ssh
install -m 600 -o `+specUser+` /root/authorized_keys /home/`+specUser+`/.ssh/authorized_keys
install -m 755 -o `+specUser+` /root/fake-blobstore /home/`+specUser+`/fake-blobstore
rm -f /run/nologin
systemctl start ssh`)
	config := fmt.Sprintf("Host %s\n  HostName %s\n  User %s\n  Port 22\n  IdentityFile %s\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n",
		specHost, i.IP, specUser, key)
	if err := os.WriteFile(filepath.Join(dir, "ssh-config"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	// The specs start ssh and scp without naming a configuration.
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ssh", "scp"} {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		wrapper := fmt.Sprintf("#!/bin/sh\nexec %s -F %s \"$@\"\n", program, filepath.Join(dir, "ssh-config"))
		if err := os.WriteFile(filepath.Join(dir, "bin", name), []byte(wrapper), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// specReport is the suite's report on a spec.
type specReport struct {
	ContainerHierarchyTexts           []string
	LeafNodeText, LeafNodeType, State string
	RunTime                           time.Duration
	Failure                           struct{ Message string }
}

func (s specReport) name() string {
	return strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " ")
}

const upstreamPage = `# The integration suite of cloudfoundry/bosh-agent

Written by ` + "`make nightly` (`TestNightlyUpstreamSpecs`)" + `: cloudfoundry/bosh-agent %s's own integration suite, run
against this agent in a container of the lab. Programs of a stemcell that a container lacks, and those that would change
the host, are replaced by stubs that only the specs use.

| spec | result |
|---|---|
%s
| windows/ | not applicable: there is no Windows build |
`

// TestNightlyUpstreamSpecs runs the integration specs of cloudfoundry/bosh-agent against this agent. CAMBIUM_SPECS is a
// regular expression of those to run, all if it is empty; CAMBIUM_SPECS_LOG a file for the suite's output.
func TestNightlyUpstreamSpecs(t *testing.T) {
	containers.Need(t)
	if out, err := exec.CommandContext(t.Context(), labtest.Agent(t), "-v").CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "[DEV BUILD]") {
		t.Fatalf("the specs want a development build, and the agent is %s (%v)", out, err)
	}
	dir, release := upstreamSuite(t)
	l := newLab(t)
	specMachine(t, l, dir)
	report, focus := filepath.Join(dir, "report.json"), os.Getenv("CAMBIUM_SPECS")
	arguments := []string{"--net=" + l.Net.Path(), filepath.Join(dir, "specs"), "-test.timeout=0",
		"-ginkgo.timeout=" + suiteTimeout.String(), "-ginkgo.json-report=" + report, "-ginkgo.no-color", "-ginkgo.v",
		"-ginkgo.focus=" + focus}
	for name := range notApplicable {
		arguments = append(arguments, "-ginkgo.skip="+regexp.QuoteMeta(name)+"$")
	}
	suite := exec.CommandContext(t.Context(), "nsenter", arguments...)
	suite.Dir = dir
	// One spec gives the agent a second, Gomega's default, to begin.
	suite.Env = append(os.Environ(), "AGENT_IP="+specHost, "PATH="+filepath.Join(dir, "bin")+":"+os.Getenv("PATH"),
		"GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT=30s")
	var output bytes.Buffer
	suite.Stdout = &output
	if path := os.Getenv("CAMBIUM_SPECS_LOG"); path != "" {
		log, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		suite.Stdout = io.MultiWriter(&output, log)
	}
	suite.Stderr, suite.WaitDelay = suite.Stdout, 10*time.Second // tunnels hold the pipe
	suiteErr := suite.Run()
	data, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("no report (%v), and the suite ended with %v:\n%s", err, suiteErr, labtest.Tail(output.String(), 8<<10))
	}
	var suites []struct{ SpecReports []specReport }
	if err := json.Unmarshal(data, &suites); err != nil {
		t.Fatal(err)
	}
	var table []string
	excused := 0
	for _, s := range suites {
		for _, spec := range s.SpecReports {
			if _, ok := notApplicable[spec.name()]; ok {
				excused++
			}
			if row := judgeSpec(t, spec, focus != ""); row != "" {
				table = append(table, row)
			}
		}
	}
	if excused != len(notApplicable) {
		t.Errorf("the suite has %d of the %d specs that are not applicable", excused, len(notApplicable))
	}
	if focus != "" || t.Failed() {
		t.Logf("\n%s", strings.Join(table, "\n"))
		return
	}
	page := fmt.Sprintf(upstreamPage, release, strings.Join(table, "\n"))
	if err := os.WriteFile("../../docs/results/upstream-specs.md", []byte(page), 0o644); err != nil {
		t.Error(err)
	}
}

// judgeSpec compares the result of a spec with what is expected of this agent, and returns a row of the table.
func judgeSpec(t *testing.T, spec specReport, focused bool) string {
	t.Helper()
	name := spec.name()
	why, excused := notApplicable[name]
	switch {
	case spec.LeafNodeType != "It":
		if spec.State != "passed" {
			t.Errorf("%s %s: %s: %.2000s", spec.LeafNodeType, name, spec.State, spec.Failure.Message)
		}
		return ""
	case excused:
		return fmt.Sprintf("| %s | not applicable: %s |", name, why)
	case spec.State == "skipped" && focused:
		return ""
	case spec.State == "failed" && laterWording[name] != "" && strings.Contains(spec.Failure.Message, laterWording[name]):
		return fmt.Sprintf("| %s | passed with the words of later releases: `%s` |", name, laterWording[name])
	case spec.State == "passed":
		return fmt.Sprintf("| %s | passed |", name)
	}
	t.Errorf("%s: %s: %.2000s", name, spec.State, spec.Failure.Message)
	return fmt.Sprintf("| %s | %s |", name, spec.State)
}
