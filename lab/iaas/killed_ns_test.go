//go:build ns

package iaas

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"

	"cambium/internal/skiptest"
	"cambium/lab/iaas/fabric"
	"cambium/lab/netns"
	"cambium/lab/sweep"
)

// TestNSKilledHolderIsSwept: a holder is killed and leaves a bridge with a gateway, a DHCP server, and a link and a
// route of the host. They are gone when the next one starts; those of another IaaS and of the host itself stay. The
// host is a namespace that this process is in.
func TestNSKilledHolderIsSwept(t *testing.T) {
	const onHost, asHolder = "CAMBIUM_TEST_HOST", "CAMBIUM_TEST_HOLDER"
	again := func(variable, value string) *exec.Cmd {
		child := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestNSKilledHolderIsSwept$")
		child.Env = append(os.Environ(), variable+"="+value)
		return child
	}
	if dir := os.Getenv(asHolder); dir != "" {
		held(t, dir, fabric.HostOnly)
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
		return
	}
	if os.Getenv(onHost) == "" {
		if os.Geteuid() != 0 {
			skiptest.Skip(t, os.ErrPermission)
		}
		child := again(onHost, "yes")
		child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br-host"}}
	address, err := netlink.ParseAddr("198.51.100.1/24")
	if err == nil {
		err = netlink.LinkAdd(bridge)
	}
	if err == nil {
		err = netlink.AddrAdd(bridge, address)
	}
	if err != nil {
		t.Fatal(err)
	}
	other := held(t, t.TempDir(), fabric.NoAccess)
	const gateway = " 10.88.55.1/24"
	if got := other.links(t); !strings.Contains(got, gateway) {
		t.Fatalf("the other IaaS has %q", got)
	}
	before, dir := hostLinks(t), t.TempDir()
	killed := kill(t, again(asHolder, dir), dir)
	if got := killed.links(t); !strings.Contains(got, gateway) || hostLinks(t) == before {
		t.Fatalf("a killed holder has left %q, and %q on the host", got, hostLinks(t))
	}
	left := killed.processes(t)
	if len(left) == 0 {
		t.Fatal("a killed holder has left no process")
	}
	next := networkOf(t, opens(t, dir).Net)
	if got := next.links(t); strings.Contains(got, "br-") {
		t.Errorf("the next holder has %q", got)
	}
	if got := hostLinks(t); got != before {
		t.Errorf("the host has %q, want %q", got, before)
	}
	for _, process := range left {
		if slices.Contains(killed.processes(t), process) {
			t.Errorf("%s runs in the network of the killed holder", process)
		}
	}
	if got := other.links(t); !strings.Contains(got, gateway) || len(other.processes(t)) == 0 {
		t.Errorf("the other IaaS has %q and the processes %q", got, other.processes(t))
	}
}

// network is one of an IaaS, by its number also when it has lost its name.
type network struct {
	space netns.Namespace
	inode string
}

func networkOf(t *testing.T, space netns.Namespace) (n network) {
	t.Helper()
	info, err := os.Stat(space.Path())
	if err != nil {
		t.Fatal(err)
	}
	return network{space, fmt.Sprintf("net:[%d]", info.Sys().(*syscall.Stat_t).Ino)}
}

// links are those of the network, with their addresses.
func (n network) links(t *testing.T) (text string) {
	t.Helper()
	if err := n.space.Do(func() (err error) { text, err = linksHere(); return err }); err != nil {
		t.Fatal(err)
	}
	return text
}

// processes are those in the network.
func (n network) processes(t *testing.T) (found []string) {
	t.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range all {
		if in, _ := os.Readlink(filepath.Join(process, "ns/net")); in == n.inode {
			found = append(found, process)
		}
	}
	return found
}

func hostLinks(t *testing.T) string {
	t.Helper()
	text, err := linksHere()
	if err != nil {
		t.Fatal(err)
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	tables, failed := exec.Command("nft", "list", "tables").Output()
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return fmt.Sprint(text, routes, string(tables))
}

func linksHere() (text string, err error) {
	links, err := net.Interfaces()
	for _, l := range links {
		addresses, _ := l.Addrs()
		text += fmt.Sprintln(l.Name, addresses)
	}
	return strings.NewReplacer("[", "", "]", "").Replace(text), err
}

// opens takes the IaaS in a directory until the end of the test.
func opens(t *testing.T, dir string) *IaaS {
	t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	i, err := Open(dir, "killed", logrus.NewEntry(log))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	})
	return i
}

// held is an IaaS with a VM that needs DHCP.
func held(t *testing.T, dir string, access fabric.Access) network {
	t.Helper()
	i := opens(t, dir)
	var nets fabric.Networks
	err := json.Unmarshal([]byte(`{"a":{"type":"manual","ip":"10.88.55.5","netmask":"255.255.255.0",
		"gateway":"10.88.55.1","cloud_properties":{"name":"segment"}}}`), &nets)
	if err != nil {
		t.Fatal(err)
	}
	filled, cards, err := fabric.Plan("vm", nets)
	if err == nil {
		_, err = i.net.Plug("vm", cards[0], filled, true)
	}
	if err == nil {
		err = i.net.LinkHost(access)
	}
	if err != nil {
		t.Fatal(err)
	}
	return networkOf(t, i.Net)
}

// kill starts a holder, and kills it when it has made its network.
func kill(t *testing.T, process *exec.Cmd, dir string) network {
	t.Helper()
	name := RuntimeName(dir, "killed")
	t.Cleanup(func() { _ = sweep.Remains{Name: name, Dir: dir}.Remove() })
	output, err := process.StdoutPipe()
	if err == nil {
		_, err = process.StdinPipe()
	}
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("the holder said %q: %v", line, err)
	}
	n := networkOf(t, netns.Open(name))
	_, _ = process.Process.Kill(), process.Wait()
	return n
}
