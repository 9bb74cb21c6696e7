package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"cambium/internal/vcap"
	"cambium/platform"
	"cambium/platform/platformtest"
)

// newHost returns a machine in a temporary directory, whose kernel host name is a variable.
func newHost(t *testing.T, files map[string]string) (*Host, *string) {
	t.Helper()
	name := "stemcell"
	h := &Host{Root: t.TempDir(), Dirs: vcap.New(""), Log: platformtest.Quiet()}
	h.hostname = func() (string, error) { return name, nil }
	h.setHostname = func(b []byte) error { name = string(b); return nil }
	for path, content := range files {
		put(t, h, path, content)
	}
	return h, &name
}

func put(t *testing.T, h *Host, path, content string) {
	t.Helper()
	full := h.joinRoot(path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, h *Host, path string) string {
	t.Helper()
	data, err := h.read(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func once(t *testing.T, h *Host, want Desired) ([]Change, error) {
	return platform.Converge(t.Context(), h, Diff, want)
}

func converge(t *testing.T, h *Host, want Desired) []string {
	t.Helper()
	return platformtest.Converge(t, h, Diff, want)
}

const hostsOfAgent = `127.0.0.1 agent-1 localhost

# IPv6
::1 agent-1 localhost ip6-localhost ip6-loopback
fe00::0 ip6-localnet
ff00::0 ip6-mcastprefix
ff02::1 ip6-allnodes
ff02::2 ip6-allrouters
ff02::3 ip6-allhosts
`

func TestHostsFile(t *testing.T) {
	got, skipped, err := HostsFile("agent-1", nil)
	if err != nil || string(got) != hostsOfAgent || skipped != 0 {
		t.Errorf("got %q, %d, %v, want %q", got, skipped, err, hostsOfAgent)
	}
	got, skipped, err = HostsFile("agent-1", [][2]string{{"10.0.0.5", "a.b.bosh"}, {"", "x"}, {"10.0.0.6", "two words"},
		{"10.0.0.7\n0.0.0.0", "x"}, {"fd00::1", "c_d.bosh"}})
	if want := hostsOfAgent + "10.0.0.5 a.b.bosh\nfd00::1 c_d.bosh\n"; err != nil || string(got) != want || skipped != 3 {
		t.Errorf("got %q, %d, %v, want %q and 3 left out", got, skipped, err, want)
	}
	for _, name := range []string{"", "a b", "a\nb", "a/b", strings.Repeat("a", 65), "a\x00"} {
		if _, _, err := HostsFile(name, nil); err == nil {
			t.Errorf("name %q was accepted", name)
		}
	}
}

func FuzzHostsFile(f *testing.F) {
	f.Add("agent-1", "10.0.0.1", "name.bosh")
	f.Add("a", "::1", "x\ny")
	f.Add("a", "10.0.0.1 evil", "#x")
	f.Add("a", "10.0.0.1", "x\u3000y") // an ideographic space
	f.Fuzz(func(t *testing.T, name, ip, record string) {
		got, skipped, err := HostsFile(name, [][2]string{{ip, record}})
		if err != nil {
			return
		}
		lines := bytes.Count(got, []byte("\n"))
		if want := bytes.Count([]byte(hostsOfAgent), []byte("\n")) + 1 - skipped; lines != want {
			t.Errorf("got %d lines, want %d: %q", lines, want, got)
		}
		if skipped == 0 && len(strings.Fields(ip+" "+record)) != 2 {
			t.Errorf("record %q %q became more than two words", ip, record)
		}
	})
}

func TestName(t *testing.T) {
	h, name := newHost(t, map[string]string{"/etc/hosts": "127.0.0.1 localhost\n"})
	hosts, _, err := HostsFile("agent-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	got := converge(t, h, Desired{Hostname: "agent-1", Hosts: hosts})
	if want := []string{"set host name to agent-1", "write /etc/hostname", "write /etc/hosts"}; !reflect.DeepEqual(got,
		want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if *name != "agent-1" || get(t, h, "/etc/hostname") != "agent-1" || get(t, h, "/etc/hosts") != hostsOfAgent {
		t.Errorf("got name %q, file %q, hosts %q", *name, get(t, h, "/etc/hostname"), get(t, h, "/etc/hosts"))
	}
	if _, err := once(t, h, Desired{Hostname: "no good"}); err == nil {
		t.Error("a name with a space was accepted")
	}
}

func TestIPv6(t *testing.T) {
	sysctls := func(ra, off string) map[string]string {
		return map[string]string{
			ipv6Conf + "/all/accept_ra": ra + "\n", ipv6Conf + "/default/accept_ra": ra + "\n",
			ipv6Conf + "/all/disable_ipv6": off + "\n", ipv6Conf + "/default/disable_ipv6": off + "\n",
			"/proc/cmdline": "BOOT_IMAGE=/vmlinuz quiet\n",
		}
	}
	t.Run("turned on", func(t *testing.T) {
		files := sysctls("0", "1")
		files[sysctlFile] = "kernel.x = 1\nnet.ipv6.conf.all.disable_ipv6=1\nnet.ipv6.conf.default.disable_ipv6 = 1\n" +
			"net.ipv6.conf.lo.disable_ipv6=1\n"
		h, _ := newHost(t, files)
		if got := converge(t, h, Desired{IPv6: true}); len(got) != 5 {
			t.Errorf("got %q, want the file and four settings", got)
		}
		const want = "kernel.x = 1\nnet.ipv6.conf.all.disable_ipv6=0\nnet.ipv6.conf.default.disable_ipv6 = 0\n" +
			"net.ipv6.conf.lo.disable_ipv6=1\n"
		if got := get(t, h, sysctlFile); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		for _, w := range ipv6Wanted {
			if got := strings.TrimSpace(get(t, h, w.path)); got != w.value {
				t.Errorf("%s: got %q, want %q", w.path, got, w.value)
			}
		}
	})
	t.Run("on already, forwarding", func(t *testing.T) {
		h, _ := newHost(t, sysctls("2", "0"))
		if got := converge(t, h, Desired{IPv6: true}); got != nil {
			t.Errorf("got %q, want nothing", got)
		}
	})
	t.Run("off by kernel argument", func(t *testing.T) {
		h, _ := newHost(t, map[string]string{"/proc/cmdline": "quiet ipv6.disable=1 console=ttyS0\n"})
		_, err := once(t, h, Desired{IPv6: true})
		if !errors.Is(err, errIPv6Off) || !strings.Contains(err.Error(), "remove ipv6.disable=1") {
			t.Errorf("got %v, want ErrIPv6Off and the argument's name", err)
		}
	})
	t.Run("no module", func(t *testing.T) {
		h, _ := newHost(t, nil)
		if _, err := once(t, h, Desired{IPv6: true}); !errors.Is(err, errIPv6Off) {
			t.Errorf("got %v, want ErrIPv6Off", err)
		}
	})
}

type units struct{ restarted []string }

func (u *units) Restart(_ context.Context, name string) error {
	u.restarted = append(u.restarted, name)
	return nil
}

func TestTime(t *testing.T) {
	const list = "/var/vcap/bosh/etc/ntpserver"
	want := Desired{TimeServers: []string{"0.pool.example", "10.0.0.1"}}
	t.Run("no time daemon", func(t *testing.T) {
		h, _ := newHost(t, nil)
		converge(t, h, want)
		if got := get(t, h, list); got != "0.pool.example 10.0.0.1" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("none given", func(t *testing.T) {
		h, _ := newHost(t, nil)
		if got := converge(t, h, Desired{TimeServers: []string{}}); got != nil {
			t.Errorf("got %q, want nothing", got)
		}
	})
	t.Run("not a server", func(t *testing.T) {
		h, _ := newHost(t, nil)
		if _, err := once(t, h, Desired{TimeServers: []string{"a\nserver evil"}}); err == nil {
			t.Error("a line break was accepted")
		}
	})
	t.Run("timesyncd", func(t *testing.T) {
		h, _ := newHost(t, map[string]string{"/usr/lib/systemd/systemd-timesyncd": ""})
		u := &units{}
		h.Units = u
		converge(t, h, want)
		if got := get(t, h, timesyncdDropIn); got != "[Time]\nNTP=0.pool.example 10.0.0.1\n" ||
			!reflect.DeepEqual(u.restarted, []string{"systemd-timesyncd"}) {
			t.Errorf("got %q, restarted %q", got, u.restarted)
		}
	})
	t.Run("stemcell's program", func(t *testing.T) {
		h, _ := newHost(t, nil)
		put(t, h, "/var/vcap/bosh/bin/sync-time", "#!/bin/sh\ncp "+h.joinRoot(list)+" "+h.joinRoot("/seen")+"\n")
		converge(t, h, want)
		if got := get(t, h, "/seen"); got != "0.pool.example 10.0.0.1" {
			t.Errorf("the program saw %q", got)
		}
		// Other servers in the same boot of the machine are other servers.
		converge(t, h, Desired{TimeServers: []string{"10.0.0.2"}})
		if got := get(t, h, "/seen"); got != "10.0.0.2" {
			t.Errorf("after a change the program saw %q", got)
		}
		// The same ones are told again after the next boot, in which /run is empty.
		if err := errors.Join(os.RemoveAll(h.joinRoot("/run")), os.Remove(h.joinRoot("/seen"))); err != nil {
			t.Fatal(err)
		}
		converge(t, h, Desired{TimeServers: []string{"10.0.0.2"}})
		if got := get(t, h, "/seen"); got != "10.0.0.2" {
			t.Errorf("after a boot the program saw %q", got)
		}
	})
	t.Run("chrony not running", func(t *testing.T) {
		h, _ := newHost(t, map[string]string{"/etc/chrony/sources.d/README": ""})
		converge(t, h, want)
		if got := get(t, h, chronySources); got != "server 0.pool.example iburst\nserver 10.0.0.1 iburst\n" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("chrony", func(t *testing.T) {
		h, _ := newHost(t, map[string]string{"/etc/chrony/sources.d/README": "", "/run/chrony/x": ""})
		asked, _ := chronyc(t, h, "exit 0")
		converge(t, h, want)
		if got := asked(); got != "-h "+h.joinRoot(chronySocket)+" reload sources\n" {
			t.Errorf("chronyc was called with %q, want one reload", got)
		}
	})
	t.Run("chrony left its socket", func(t *testing.T) {
		h, _ := newHost(t, map[string]string{"/etc/chrony/sources.d/README": "", "/run/chrony/x": ""})
		asked, daemon := chronyc(t, h, "exit 1")
		daemon.Close()
		converge(t, h, want)
		if got := asked(); got != "" {
			t.Errorf("chronyc was called with %q", got)
		}
	})
	t.Run("chrony refuses, and is asked again", func(t *testing.T) {
		h, _ := newHost(t, map[string]string{"/etc/chrony/sources.d/README": "", "/run/chrony/x": ""})
		chronyc(t, h, "echo 500 Failure; exit 1")
		for range 2 {
			if _, err := once(t, h, want); err == nil || !strings.Contains(err.Error(), "500 Failure") {
				t.Errorf("got %v, want the refusal", err)
			}
		}
	})
}

// chronyc puts a program into PATH that runs a command, and chronyd's socket onto the machine. The first result returns
// the program's arguments, a line for each call.
func chronyc(t *testing.T, h *Host, command string) (asked func() string, daemon *net.UnixConn) {
	t.Helper()
	daemon, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: h.joinRoot(chronySocket), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { daemon.Close() })
	bin := t.TempDir()
	calls := filepath.Join(bin, "calls")
	script := "#!/bin/sh\necho \"$@\" >>" + calls + "\n" + command + "\n"
	if err := os.WriteFile(filepath.Join(bin, "chronyc"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return func() string {
		data, _ := os.ReadFile(calls)
		return string(data)
	}, daemon
}

func TestCertificates(t *testing.T) {
	h, _ := newHost(t, map[string]string{certificateDir + "/own.crt": "not ours"})
	bin := t.TempDir()
	runs := filepath.Join(bin, "runs")
	script := "#!/bin/sh\necho run >>" + runs + "\n[ -e " + bin + "/broken ] && exit 1\nexit 0\n"
	if err := os.WriteFile(filepath.Join(bin, "update-ca-certificates"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	count := func() int {
		data, _ := os.ReadFile(runs)
		return strings.Count(string(data), "run")
	}
	block := func(body string) string {
		return "-----BEGIN CERTIFICATE-----\n" + body + "\n-----END CERTIFICATE-----"
	}
	two := "junk\n" + block("bogus one") + "\nmore junk -----BEGIN CERTIFICATE----- never closed\n" + block("two") + "tail"

	converge(t, h, Desired{Certificates: &two})
	if count() != 1 {
		t.Errorf("store updated %d times, want once", count())
	}
	if got := get(t, h, certificateDir+"/bosh-trusted-cert-1.crt"); got != block("bogus one")+"\n" {
		t.Errorf("got %q", got)
	}
	if got := get(t, h, certificateDir+"/bosh-trusted-cert-2.crt"); got != block("two")+"\n" {
		t.Errorf("got %q", got)
	}

	one := block("two")
	if err := os.WriteFile(filepath.Join(bin, "broken"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := once(t, h, Desired{Certificates: &one}); err == nil {
		t.Error("a failing update was taken for success")
	}
	if count() != 4 {
		t.Errorf("got %d runs, want three more", count())
	}
	if err := os.Remove(filepath.Join(bin, "broken")); err != nil {
		t.Fatal(err)
	}
	// The files are as wanted already; that the store is not must not be forgotten.
	converge(t, h, Desired{Certificates: &one})
	if count() != 5 {
		t.Errorf("got %d runs, want the update made up for", count())
	}

	none := ""
	converge(t, h, Desired{Certificates: &none})
	left, err := os.ReadDir(h.joinRoot(certificateDir))
	if err != nil || len(left) != 1 || left[0].Name() != "own.crt" {
		t.Errorf("got %v, %v, want only what is not ours", left, err)
	}
}

func TestRemoveListed(t *testing.T) {
	const list = "/var/vcap/bosh/etc/dev_tools_file_list"
	h, _ := newHost(t, map[string]string{"/usr/bin/gcc": "", "/usr/lib/gcc/x86/cc1": "", "/usr/bin/ls": "",
		"/etc/passwd": "",
		list: "/usr/bin/gcc\n\n/usr/lib/gcc\n/usr/bin/never-there\nrelative\n/\n/usr\n/usr/../etc\n/var/vcap\n" +
			"/var/vcap/../vcap\n"})
	want := Desired{RemoveListed: []string{list}}
	planned, planErr := platform.Plan(t.Context(), h, Diff, want)
	made, err := once(t, h, want)
	if got := platformtest.Texts(made); !slices.Equal(got, []string{"remove 2 paths that " + list + " lists"}) ||
		err == nil || strings.Count(err.Error(), "too close to the root directory") != 3 {
		t.Errorf("got %q, %v", got, err)
	}
	if !slices.Equal(platformtest.Texts(planned), platformtest.Texts(made)) || fmt.Sprint(planErr) != fmt.Sprint(err) {
		t.Errorf("planned %q, %v; made %q, %v", planned, planErr, made, err)
	}
	for path, kept := range map[string]bool{"/usr/bin/gcc": false, "/usr/lib/gcc": false, "/usr/bin/ls": true,
		"/etc/passwd": true, list: true} {
		if _, err := os.Stat(h.joinRoot(path)); (err == nil) != kept {
			t.Errorf("%s: there %v, want %v", path, err == nil, kept)
		}
	}
	if second, _ := once(t, h, want); len(second) != 0 {
		t.Errorf("second run: %q", platformtest.Texts(second))
	}
	if made, err := once(t, h, Desired{RemoveListed: []string{"/no/list"}}); len(made) != 0 || err != nil {
		t.Errorf("missing list: got %q, %v", made, err)
	}
}

func TestHooksRunOncePerBoot(t *testing.T) {
	const good, bad = "/var/vcap/bosh/bin/good", "/var/vcap/bosh/bin/bad"
	h, _ := newHost(t, map[string]string{good: "#!/bin/sh\nexit 0\n", bad: "#!/bin/sh\necho why >&2\nexit 3\n"})
	want := Desired{Hooks: []string{"good", "no-such-hook-anywhere"}}
	planned, err := platform.Plan(t.Context(), h, Diff, want)
	if err != nil || !slices.Equal(platformtest.Texts(planned), []string{"run " + good}) {
		t.Errorf("planned %q, %v", planned, err)
	}
	if second, err := platform.Plan(t.Context(), h, Diff, want); err != nil || len(second) != 1 {
		t.Errorf("a plan has run the hook: %q, %v", second, err)
	}
	if made := converge(t, h, want); !slices.Equal(made, platformtest.Texts(planned)) {
		t.Errorf("made %q, planned %q", made, planned)
	}
	for range 2 { // a failure does not count as a run
		made, err := once(t, h, Desired{Hooks: []string{"bad"}})
		if len(made) != 0 || err == nil || !strings.Contains(err.Error(), "why") {
			t.Errorf("got %q, %v", made, err)
		}
	}
	if !h.HasHook("good") || !h.HasHook("bad") || h.HasHook("no-such-hook-anywhere") {
		t.Error("HasHook is wrong")
	}
}
