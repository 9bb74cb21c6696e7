//go:build machine

package network_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cambium/internal/eventually"
	"cambium/internal/skiptest"
	"cambium/lab/machine"
	"cambium/lab/machine/nspawn"
	"cambium/lab/netns"
	"cambium/lab/tree"
	"cambium/settings"
)

// vm is a machine under a real systemd, with two NICs in a namespace with the gateway and the DHCP server.
type vm struct {
	machine.Machine
	world netns.Namespace
}

var machines int

func newVM(t *testing.T) *vm {
	t.Helper()
	engine := nspawn.Engine{}
	err := engine.CheckHost()
	if _, missing := exec.LookPath("dnsmasq"); err == nil && missing != nil {
		err = missing
	}
	if err != nil {
		skiptest.Skip(t, err)
	}
	if engine.Tree, err = (tree.Cache{Dir: tree.DefaultDir()}).Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	machines++
	name := fmt.Sprintf("cambium-n%d-%d", os.Getpid(), machines)
	world, err := netns.Create(name + ".w")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := world.Delete(); err != nil {
			t.Error(err)
		}
	})
	spec := machine.Spec{Name: name, Dir: filepath.Join(t.TempDir(), "machine")}
	for i, mac := range []string{mac0, mac1} {
		bridge := fmt.Sprintf("br%d", i)
		if err := world.Bridge(bridge, fmt.Sprintf("10.%d.0.1/24", i)); err != nil {
			t.Fatal(err)
		}
		hardware, err := net.ParseMAC(mac)
		if err != nil {
			t.Fatal(err)
		}
		spec.NICs = append(spec.NICs, machine.NIC{Name: fmt.Sprintf("eth%d", i), MAC: hardware, Net: world, Bridge: bridge})
	}
	serveDHCP(t, world)
	self, err := os.ReadFile(must(os.Executable()))
	if err != nil {
		t.Fatal(err)
	}
	spec.Files = []machine.File{{Path: "/usr/local/bin/order", Data: self, Mode: 0o755}}
	m, err := engine.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			var journal bytes.Buffer
			_ = m.Run(context.Background(), machine.Command{Args: []string{"journalctl", "--no-pager", "-u",
				"systemd-networkd"}, Stdout: &journal})
			t.Logf("networkd:\n%s", journal.Bytes())
		}
		if err := m.Delete(context.Background()); err != nil {
			t.Error(err)
		}
	})
	v := &vm{m, world}
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.up(t)
	return v
}

func must(path string, err error) string {
	if err != nil {
		panic(err)
	}
	return path
}

func serveDHCP(t *testing.T, world netns.Namespace) {
	t.Helper()
	leases := filepath.Join(t.TempDir(), "leases")
	server := exec.Command("nsenter", "--net="+world.Path(), "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null",
		"--port=0",
		"--interface=br0", "--interface=br1", "--bind-interfaces", "--no-ping", "--pid-file=", "--user=root",
		"--dhcp-leasefile="+leases,
		"--dhcp-range=set:zero,10.0.0.100,10.0.0.150,255.255.255.0,1h",
		"--dhcp-range=set:one,10.1.0.100,10.1.0.150,255.255.255.0,1h",
		// A server that sends classless routes sends the default route among them.
		"--dhcp-option=tag:one,121,203.0.113.0/24,10.1.0.7,0.0.0.0/0,10.1.0.1")
	server.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
}

// up waits until networkd is running.
func (v *vm) up(t *testing.T) {
	t.Helper()
	eventually.Nil(t, "networkd", func() error {
		_, err := v.output(t, "systemctl", "is-active", "systemd-networkd.service")
		return err
	})
}

func (v *vm) output(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := v.Run(t.Context(), machine.Command{Args: args, Stdout: &out})
	return out.String(), err
}

func (v *vm) sh(t *testing.T, script string) string {
	t.Helper()
	out, err := v.output(t, "sh", "-c", script)
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return out
}

// order sends an order to the machine and returns its account.
func (v *vm) order(t *testing.T, o order) account {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	err = v.Run(t.Context(), machine.Command{Args: []string{"/usr/local/bin/order"},
		Env: []string{inside + "=" + string(text)}, Stdout: &out, Stderr: &log})
	var a account
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &a)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", o.Do, err, out.Bytes(), log.Bytes())
	}
	return a
}

// apply configures the machine's networks; a second run must find nothing to do.
func (v *vm) apply(t *testing.T, n nets) account {
	t.Helper()
	a := v.order(t, order{Do: "apply", Networks: n})
	if a.Error != "" || len(a.Again) > 0 {
		t.Fatalf("apply: %s; a second run would change %q after %q", a.Error, a.Again, a.Changes)
	}
	t.Logf("%d changes, ready after %v", len(a.Changes), a.Took.Round(100*time.Microsecond))
	return a
}

// addresses lists the global addresses of a link.
func (v *vm) addresses(t *testing.T, link string) []string {
	t.Helper()
	return strings.Fields(v.sh(t, "ip -o address show scope global dev "+link+" | awk '{print $4}'"))
}

func (v *vm) expect(t *testing.T, link string, want ...string) {
	t.Helper()
	got := v.addresses(t, link)
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", link, got, want)
	}
}

// settled waits until networkd has finished with a link.
func (v *vm) settled(t *testing.T, link string) {
	t.Helper()
	eventually.Nil(t, link+" configured", func() error {
		state := v.sh(t, "networkctl status "+link+" | sed -n 's/.*State: .*(\\(.*\\))/\\1/p'")
		if strings.TrimSpace(state) != "configured" {
			return fmt.Errorf("it is %q", state)
		}
		return nil
	})
}

func vmStatic(ip string) settings.Network {
	return settings.Network{Type: "manual", IP: ip, Netmask: "255.255.255.0", Gateway: "10.0.0.1", MAC: mac0,
		Default: []string{"dns", "gateway"}, DNS: []string{"10.0.0.1"}}
}

func vmExtra(ip string) settings.Network {
	n := vmStatic(ip)
	n.Default = nil
	return n
}

var (
	leased0 = settings.Network{Type: "dynamic", MAC: mac0, Default: []string{"gateway"}}
	leased1 = settings.Network{Type: "dynamic", MAC: mac1}
)

// vmStream is a connection into the machine with constant traffic.
type vmStream struct {
	conn   *net.TCPConn
	echoed atomic.Int64
	broken chan error
	stop   func()
}

func (v *vm) stream(t *testing.T, address string) *vmStream {
	t.Helper()
	text, err := json.Marshal(order{Do: "echo"})
	if err != nil {
		t.Fatal(err)
	}
	// The server ends when its input does. It must have ended before the machine shuts down:
	// systemd stops (SIGSTOP) all processes first, and nsenter stops with its child and does not
	// continue.
	var running sync.WaitGroup
	input, output := io.Pipe()
	running.Go(func() {
		_ = v.Run(context.Background(), machine.Command{Args: []string{"/usr/local/bin/order"},
			Env: []string{inside + "=" + string(text)}, Stdin: input})
	})
	stop := sync.OnceFunc(func() { output.Close(); running.Wait() })
	t.Cleanup(stop)
	var conn net.Conn
	eventually.Nil(t, "a connection", func() (err error) {
		conn, err = v.world.DialContext(t.Context(), "tcp", address)
		return err
	})
	t.Cleanup(func() { conn.Close() })
	s := &vmStream{conn: conn.(*net.TCPConn), broken: make(chan error, 1), stop: stop}
	go func() {
		buffer := make([]byte, 1024)
		for {
			if _, err := s.conn.Write(buffer); err != nil {
				s.broken <- err
				return
			}
			if _, err := io.ReadFull(s.conn, buffer); err != nil {
				s.broken <- err
				return
			}
			s.echoed.Add(1)
		}
	}()
	return s
}

// intact checks that the stream continues and that no packet was lost. On a busy host a reply may be so late that a
// packet is sent twice; the peer then reports both.
func (s *vmStream) intact(t *testing.T, when string) {
	t.Helper()
	from := s.echoed.Load()
	eventually.True(t, when+": more from the stream", func() bool {
		select {
		case err := <-s.broken:
			t.Fatalf("%s: the stream broke: %v", when, err)
		default:
		}
		return s.echoed.Load() >= from+50
	})
	raw, err := s.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	eventually.Nil(t, when+": a running stream without lost packets", func() error {
		var info *unix.TCPInfo
		failed := raw.Control(func(fd uintptr) {
			info,
				err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		})
		if failed != nil || err != nil {
			return errors.Join(failed, err)
		}
		if info.Total_retrans > info.Dsack_dups {
			return fmt.Errorf("%d packets were sent again, and %d of them came twice", info.Total_retrans, info.Dsack_dups)
		}
		return nil
	})
}

func TestMachineNetworkStatic(t *testing.T) {
	v := newVM(t)
	n := nets{"a": vmStatic("10.0.0.5")}
	v.apply(t, n)
	v.expect(t, "eth0", "10.0.0.5/24")
	v.settled(t, "eth0")
	s := v.stream(t, "10.0.0.5:7000")
	s.intact(t, "before")

	for _, step := range []struct {
		name   string
		change func()
	}{
		{"unchanged", func() {}},
		{"extended", func() {
			n["b"], n["c"] = vmExtra("10.0.0.6"), vmExtra("10.5.0.7")
			n["al"] = settings.Network{IP: "10.0.0.9", Netmask: "255.255.255.0", Alias: "eth0:9"}
			n["six"] = settings.Network{IP: "fd00::5", Netmask: "ffff:ffff:ffff:ffff::", Gateway: "fd00::1", MAC: mac0,
				Default: []string{"gateway"}}
		}},
		{"other servers", func() { x := n["a"]; x.DNS = []string{"10.0.0.2"}; n["a"] = x }},
		{"reduced", func() { delete(n, "b"); delete(n, "al") }},
	} {
		step.change()
		v.apply(t, n)
		v.settled(t, "eth0")
		s.intact(t, step.name)
	}
	v.expect(t, "eth0", "10.0.0.5/24", "10.5.0.7/24", "fd00::5/64")
	if second := v.order(t, order{Do: "apply", Networks: n}); len(second.Changes) > 0 {
		t.Errorf("after networkd has settled, %q would change", second.Changes)
	}
	s.stop()

	if err := v.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.up(t)
	v.settled(t, "eth0")
	v.expect(t, "eth0", "10.0.0.5/24", "10.5.0.7/24", "fd00::5/64")
	if routes := v.sh(t, "ip route show default; ip -6 route show default"); !strings.Contains(routes,
		"default via 10.0.0.1 dev eth0 proto static") || !strings.Contains(routes, "default via fd00::1 dev eth0") {
		t.Errorf("routes after a reboot: %s", routes)
	}
	if a := v.apply(t, n); len(a.Changes) > 0 {
		t.Errorf("after a reboot, %q was changed", a.Changes)
	}
}

func TestMachineNetworkDHCP(t *testing.T) {
	v := newVM(t)
	if a := v.order(t, order{Do: "dhcp"}); a.Error != "" {
		t.Fatalf("minimal network: %s", a.Error)
	} else {
		t.Logf("minimal network after %v", a.Took)
	}
	if files := strings.Fields(v.sh(t, "ls /run/systemd/network")); !slices.Contains(files, "10_eth0.network") {
		t.Errorf("minimal network: files %q", files)
	}
	if err := v.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.up(t)
	if files := v.sh(t, "ls /etc/systemd/network /run/systemd/network 2>/dev/null || true"); strings.Contains(files,
		"10_eth") {
		t.Errorf("the minimal network survived a reboot: %q", files)
	}

	n := nets{"a": leased0, "b": leased1}
	a := v.apply(t, n)
	if got := a.Resolved["a"]; !strings.HasPrefix(got.IP, "10.0.0.") || got.Netmask != "255.255.255.0" ||
		got.Gateway != "10.0.0.1" {
		t.Errorf("a: got %+v", got)
	}
	if got := a.Resolved["b"]; !strings.HasPrefix(got.IP, "10.1.0.") || got.Gateway != "10.1.0.1" {
		t.Errorf("b: got %+v", got)
	}
	// Two leases do not fight over the default route, and the useful route of the other is kept.
	v.settled(t, "eth1")
	if got := v.sh(t, "ip route get 192.0.2.1"); !strings.Contains(got, "via 10.0.0.1 dev eth0") {
		t.Errorf("the way out is %s, want through eth0", got)
	}
	if got := v.sh(t, "ip route get 203.0.113.5"); !strings.Contains(got, "via 10.1.0.7 dev eth1") {
		t.Errorf("the classless route is not there: %s", got)
	}
	if err := v.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.up(t)
	v.settled(t, "eth0")
	if a := v.apply(t, n); len(a.Changes) > 0 {
		t.Errorf("after a reboot, %q was changed", a.Changes)
	}
}

func TestMachineNetworkChangesOfKind(t *testing.T) {
	v := newVM(t)
	lease := func(a account, name string) string { return a.Resolved[name].IP + "/24" }
	for range 2 {
		v.apply(t, nets{"a": vmStatic("10.0.0.5"), "b": leased1})
		v.expect(t, "eth0", "10.0.0.5/24")
		v.settled(t, "eth0")
		v.expect(t, "eth0", "10.0.0.5/24")

		a := v.apply(t, nets{"a": leased0, "b": leased1})
		v.expect(t, "eth0", lease(a, "a"))
		v.expect(t, "eth1", lease(a, "b"))

		// To static with the address of the lease, and beside a lease.
		v.apply(t, nets{"a": vmStatic(a.Resolved["a"].IP), "b": leased1})
		v.expect(t, "eth0", lease(a, "a"))
		v.settled(t, "eth0")
		v.expect(t, "eth0", lease(a, "a"))
		if got := v.sh(t, "ip -o -4 address show dev eth0"); strings.Contains(got, "dynamic") {
			t.Errorf("a static address has a lifetime: %s", got)
		}
		a = v.apply(t, nets{"a": vmStatic("10.5.0.5"), "d": {Type: "dynamic", MAC: mac0}, "b": leased1})
		v.expect(t, "eth0", "10.5.0.5/24", lease(a, "d"))
	}
}

func TestMachineNetworkKilledHalfWay(t *testing.T) {
	v := newVM(t)
	six := settings.Network{IP: "fd00::5", Netmask: "ffff:ffff:ffff:ffff::", MAC: mac0}
	second := vmExtra("10.1.0.5")
	second.MAC = mac1
	before := nets{"a": vmStatic("10.0.0.5"), "b": vmExtra("10.0.0.6"), "x": leased1}
	after := nets{"a": leased0, "six": six, "y": second}
	for stop := 1; ; stop++ {
		v.apply(t, before)
		v.expect(t, "eth0", "10.0.0.5/24", "10.0.0.6/24")
		if a := v.order(t, order{Do: "apply", Networks: after, Stop: stop}); a.Error != "" {
			t.Fatalf("stopped after %d: %s", stop, a.Error)
		} else if len(a.Changes) > 0 {
			t.Logf("%d changes: %q", len(a.Changes), a.Changes)
			break // that was all
		}
		a := v.apply(t, after)
		v.expect(t, "eth0", a.Resolved["a"].IP+"/24", "fd00::5/64")
		v.expect(t, "eth1", "10.1.0.5/24")
		v.settled(t, "eth1")
		v.expect(t, "eth1", "10.1.0.5/24")
		if t.Failed() {
			t.Fatalf("stopped after %d", stop)
		}
	}
}

func TestMachineNetworkDNS(t *testing.T) {
	v := newVM(t)
	pid := func() string { return v.sh(t, "systemctl show -p MainPID systemd-resolved") }
	set := func(servers ...string) account {
		t.Helper()
		a := v.order(t, order{Do: "dns", Networks: nets{"a": {MAC: mac0, DNS: servers}}})
		if a.Error != "" || len(a.Again) > 0 {
			t.Fatalf("dns: %s; a second run would change %q", a.Error, a.Again)
		}
		return a
	}
	global := func() string { return v.sh(t, "resolvectl dns | sed -n 's/^Global: *//p'") }
	set("10.0.0.2", "10.0.0.1", "fd00::53")
	if got := strings.TrimSpace(global()); got != "10.0.0.2 10.0.0.1 fd00::53" {
		t.Errorf("servers %q, want them in order", got)
	}
	before := pid()
	if a := set("10.0.0.2", "10.0.0.1", "fd00::53"); len(a.Changes) > 0 || pid() != before {
		t.Errorf("an unchanged list changed %q; %s, before %s", a.Changes, pid(), before)
	}
	set()
	if got := strings.TrimSpace(global()); got != "" {
		t.Errorf("servers %q, want none", got)
	}
}
