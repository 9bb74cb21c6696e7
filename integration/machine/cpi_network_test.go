//go:build machine

package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"cambium/internal/eventually"
	"cambium/lab/cpi"
	"cambium/lab/iaas"
	"cambium/lab/netns"
	assets "cambium/stemcell-assets"
)

// into writes a file of a container.
func (c *cloud) into(vm, path, mode string, data []byte) {
	c.t.Helper()
	shell := c.vm(vm).Shell
	argv := append(append([]string(nil), shell[:len(shell)-2]...), "install", "-o", "vcap", "-m", mode, "/dev/stdin", path)
	cmd := exec.CommandContext(c.t.Context(), argv[0], argv[1:]...)
	cmd.Stdin = bytes.NewReader(data)
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("%s: %v: %s", path, err, out)
	}
}

// Networks whose addresses the IaaS chooses, settings by HTTP and on a CD, and version 1 with its registry.
func TestMachineCPISources(t *testing.T) {
	t.Parallel()
	c := newCloud(t, fmt.Sprintf("n%d", os.Getpid()))
	// A namespace stands for the host: nothing is added to the one of this machine.
	host, err := netns.Create(fmt.Sprintf("cpihost%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Delete(); err != nil {
			t.Error(err)
		}
	})
	c.host = host.Path()
	outside := outsideOf(t, host)
	hostRoute := func(words ...string) {
		t.Helper()
		argv := append([]string{"--net=" + host.Path(), c.lab, "host-route", "--dir", c.dir, "--iaas", c.name}, words...)
		if out, err := exec.Command("nsenter", argv...).CombinedOutput(); err != nil {
			t.Fatalf("host-route %v: %v: %s", words, err, out)
		}
	}
	reaches := func() error {
		conn, err := host.Dial("tcp", "10.245.0.6:6868")
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	hostRoute("on")
	sc := c.cid("create_stemcell", stemcellImage(t), map[string]any{})
	dynamic := order(sc, "")
	dynamic[3] = map[string]any{"any": map[string]any{"type": "dynamic", "default": []string{"dns", "gateway"},
		"cloud_properties": map[string]any{}},
		"public": map[string]any{"type": "vip", "ip": "203.0.113.7", "cloud_properties": map[string]any{}},
		"second": map[string]any{"type": "manual", "ip": "10.247.0.5", "netmask": "255.255.255.0", "gateway": "10.247.0.1",
			"cloud_properties": map[string]any{"name": "second", "mac": "02:11:22:33:44:55"}}}
	byHTTP := order(sc, "10.245.0.6")
	byHTTP[2].(map[string]any)["settings_source"] = "http"
	vms := []string{c.cid("create_vm", dynamic...), c.cid("create_vm", byHTTP...), c.asVSphere(sc, "10.245.0.8")}
	r := c.request(t.Context(), 1, "create_vm", order(sc, "10.245.0.7")...)
	old, ok := r.Result.(string)
	if !ok {
		t.Fatalf("create_vm in version 1: got %+v, want a CID", r)
	}
	vms = append(vms, old)
	for _, ip := range []string{"10.246.0.10", "10.247.0.5", "10.245.0.6", "10.245.0.7", "10.245.0.8"} {
		c.pong(ip, time.Minute)
	}
	if command := c.run(vms[2], "sh", "-c", "tr '\\0' ' ' </proc/$(systemctl show -P MainPID bosh-agent)/cmdline"); !strings.Contains(command, "-P centos ") {
		t.Errorf("the agent was started as %q", command)
	}
	// With the options of vSphere the agent finds the disk by the id in the hint, not by the path.
	onSCSI := c.cid("create_disk", 64, nil, nil)
	c.agent("10.245.0.8", "add_persistent_disk", onSCSI, c.must("attach_disk", vms[2], onSCSI))
	c.agent("10.245.0.8", "mount_disk", onSCSI)
	c.mounted("10.245.0.8", onSCSI)
	if cards := c.run(vms[0], "ip", "-brief", "link"); !strings.Contains(cards, "02:11:22:33:44:55") {
		t.Errorf("the VM has the cards\n%s, want one with the given address", cards)
	}
	if err := reaches(); err != nil {
		t.Errorf("the host does not reach a VM by its route: %v", err)
	}
	hears := func(address string) string {
		return c.run(vms[1], "timeout", "5", "bash", "-c", "cat 2>/dev/null </dev/tcp/"+address+"; true")
	}
	greet(t, netns.Open(c.runtime()), "10.245.0.1:8000", "from the host")
	if got := hears("10.245.0.1/8000"); got != "from the host" {
		t.Errorf("a VM hears %q from the host", got)
	}
	// Connects to the agent of another VM, or fails.
	c.run(vms[1], "timeout", "5", "bash", "-c", "exec 3<>/dev/tcp/10.245.0.7/6868")
	if got := hears(outside); got != "" {
		t.Errorf("a VM reaches the outside without permission: %q", got)
	}
	hostRoute("on", "--outside")
	if got := hears(outside); got != "from outside" {
		t.Errorf("a VM hears %q from outside", got)
	}
	hostRoute("off")
	if reaches() == nil {
		t.Error("the host reaches a VM without a route")
	}
	if out, err := exec.Command("nsenter", "--net="+host.Path(), "nft", "list", "tables").CombinedOutput(); err != nil ||
		len(out) > 0 {
		t.Errorf("packet filter of the host after off: %v: %s", err, out)
	}
	hostRoute("on")
	disk := c.cid("create_disk", 64, nil, nil)
	if r := c.request(t.Context(), 1, "attach_disk", old, disk); r.Error != nil || r.Result != nil {
		t.Fatalf("attach_disk in version 1: got %+v, want null", r)
	}
	// Without add_persistent_disk: the agent finds the disk in the registry.
	c.agent("10.245.0.7", "mount_disk", disk)
	eventually.True(t, "the disk is mounted", func() bool {
		return strings.Contains(c.run(old, "cat", "/proc/mounts"), " /var/vcap/store ")
	})
	for _, command := range [][]string{{"ls", "--dir", c.dir}, {"cpi-clean", "--dir", c.dir, "--iaas", c.name}} { // which only list
		out, err := exec.Command(c.lab, command...).CombinedOutput()
		for _, want := range []string{old, disk, "on " + old, "director director-1"} {
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("lab %v: %v: %s; want %q in it", command, err, out, want)
			}
		}
	}
	if out, err := exec.Command(c.lab, "cpi-clean", "--dir", c.dir, "--iaas", c.name, "--director", "director-2",
		"--disks").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("cpi-clean of another Director: %v: %s", err, out)
	}
	for _, cid := range vms {
		c.must("delete_vm", cid)
	}
	c.must("delete_disk", onSCSI)
	// The addresses are free again.
	if second, _ := c.must("create_vm", dynamic...).([]any); len(second) != 2 ||
		!strings.Contains(fmt.Sprint(second[1]), "10.246.0.10") {
		t.Errorf("a dynamic network after the others have gone: got %v, want the first address", second)
	}
	c.pong("10.246.0.10", time.Minute)
	clean := []string{"cpi-clean", "--dir", c.dir, "--iaas", c.name, "--director", "director-1", "--stemcells"}
	out, err := exec.Command(c.lab, clean...).CombinedOutput()
	if err != nil || c.must("has_disk", disk) != true {
		t.Errorf("cpi-clean of a Director: %v: %s; the disk is to stay", err, out)
	}
	if out, err := exec.Command(c.lab, "cpi-clean", "--dir", c.dir, "--iaas", c.name,
		disk).CombinedOutput(); err == nil || !strings.Contains(string(out), "--disks") {
		t.Errorf("cpi-clean of a disk without --disks: %v: %s", err, out)
	}
	if out, err := exec.Command(c.lab, "cpi-clean", "--dir", c.dir, "--iaas", c.name, "--disks",
		disk).CombinedOutput(); err != nil {
		t.Errorf("cpi-clean of a disk: %v: %s", err, out)
	}
	c.gone()
	if err := host.Do(func() error {
		links, err := net.Interfaces()
		if len(links) != 3 {
			t.Errorf("the host has the links %v, want the loopback and the two to the outside only", links)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// outsideOf gives the host a network with a server on it that has no route to VMs, and returns the server's address as
// the shell wants it.
func outsideOf(t *testing.T, host netns.Namespace) string {
	t.Helper()
	space, err := netns.Create(fmt.Sprintf("cpioutside%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := space.Delete(); err != nil {
			t.Error(err)
		}
	})
	err = errors.Join(host.Bridge("up0", "198.51.100.1/24"),
		host.Connect(space, netns.Wire{Bridge: "up0", Near: "up1", Far: "eth0", MAC: net.HardwareAddr{2, 0xcc, 0, 0, 0, 1}}),
		space.AddAddress("eth0", "198.51.100.2/24"),
		host.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644) }))
	if err == nil {
		err = exec.Command("nsenter", "--net="+space.Path(), "ip", "link", "set", "eth0", "up").Run()
	}
	if err != nil {
		t.Fatal(err)
	}
	greet(t, space, "198.51.100.2:80", "from outside")
	return "198.51.100.2/80"
}

// greet serves an address of a network: whatever connects there is sent the words.
func greet(t *testing.T, space netns.Namespace, address, words string) {
	t.Helper()
	listener, err := space.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(words))
			_ = conn.Close()
		}
	}()
}

// asVSphere makes a container that is set up as vSphere's stemcell is: settings on a CD, disks by the end of their serial numbers. Its unit
// starts the agent for the platform centos, as that of an older stemcell does.
func (c *cloud) asVSphere(stemcell, ip string) string {
	c.t.Helper()
	agentJSON, err := assets.AgentJSON("vsphere")
	if err != nil {
		c.t.Fatal(err)
	}
	o := order(stemcell, ip)
	shape := o[2].(map[string]any)
	shape["settings_source"], shape["disk_bus"] = "cdrom", "scsi"
	vm := c.cid("create_vm", o...)
	c.into(vm, "/var/vcap/bosh/agent.json", "644", agentJSON)
	c.run(vm, "sed", "-i", "s/-P ubuntu/-P centos/", "/etc/systemd/system/bosh-agent.service")
	c.run(vm, "sh", "-c", "until systemctl daemon-reload && systemctl --no-block restart bosh-agent; do sleep 0.1; done 2>/dev/null")
	return vm
}

// mounted waits until an agent lists a persistent disk as mounted.
func (c *cloud) mounted(ip, disk string) {
	c.t.Helper()
	eventually.True(c.t, disk+" is mounted", func() bool {
		list, err := c.ask(ip, "list_disk")
		return err == nil && strings.Contains(list, disk)
	})
}

// agent sends a request to the agent at an address.
func (c *cloud) agent(ip, method string, arguments ...any) {
	c.t.Helper()
	if _, err := c.ask(ip, method, arguments...); err != nil {
		c.t.Fatal(err)
	}
}

// ask sends a request to the agent at an address and returns its first answer.
func (c *cloud) ask(ip, method string, arguments ...any) (string, error) {
	c.t.Helper()
	body, err := json.Marshal(map[string]any{"method": method, "arguments": arguments, "reply_to": "test"})
	if err != nil {
		c.t.Fatal(err)
	}
	response, err := c.http().Post("https://mbus:secret@"+ip+":6868/agent", "application/json", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	return string(answer), err
}

// A Director's CPI: in a VM, as vcap, with a cleared environment, and the image is a file there.
func TestMachineCPIInsideAVM(t *testing.T) {
	t.Parallel()
	c := newCloud(t, fmt.Sprintf("i%d", os.Getpid()))
	image := stemcellImage(t)
	sc := c.cid("create_stemcell", image, map[string]any{})
	vm := c.cid("create_vm", order(sc, "10.245.0.6")...)
	c.pong("10.245.0.6", time.Minute)
	out, err := exec.Command(c.lab, "cpi-tls", "--dir", c.dir, "--iaas", c.name).Output()
	if err != nil {
		t.Fatal(err)
	}
	var id cpi.Identity
	if err := json.Unmarshal(out, &id); err != nil {
		t.Fatal(err)
	}
	config := func(id cpi.Identity) []byte {
		data, err := json.Marshal(map[string]any{"host": fmt.Sprintf("tls://10.245.0.1:%d", cpi.TLSPort), "tls": id})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	program, err := os.ReadFile(c.cpi)
	if err != nil {
		t.Fatal(err)
	}
	bytes, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	c.into(vm, "/usr/local/bin/cpi", "755", program)
	c.into(vm, "/var/tmp/image", "600", bytes)
	c.into(vm, "/etc/cpi.json", "600", config(id))
	// The certificate of another authority.
	if err := os.MkdirAll(c.dir+"/other", 0o700); err != nil {
		t.Fatal(err)
	}
	other, err := cpi.EnsureIdentity(c.dir+"/other", c.name, true)
	if err != nil {
		t.Fatal(err)
	}
	other.CA = id.CA
	c.into(vm, "/etc/other.json", "600", config(other))
	inside := func(config, request string) (reply cpi.Reply) {
		t.Helper()
		out := c.run(vm, "sh", "-c", fmt.Sprintf("echo '%s' | setpriv --reuid vcap --regid vcap --init-groups env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/local/bin/cpi --config %s", request, config))
		if err := json.Unmarshal([]byte(out), &reply); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		return reply
	}
	made := inside("/etc/cpi.json", `{"method":"create_stemcell","arguments":["/var/tmp/image",{},{"tags":{"a":"b"}}],"api_version":3,"context":{"director_uuid":"inside"}}`)
	second, ok := made.Result.(string)
	if !ok || !strings.HasPrefix(second, "sc-") {
		t.Fatalf("create_stemcell inside the VM: got %+v", made)
	}
	if r := inside("/etc/cpi.json", `{"method":"has_vm","arguments":["`+vm+`"],"api_version":3}`); r.Result != true {
		t.Errorf("has_vm inside the VM: got %+v, want true", r)
	}
	request := map[string]any{"method": "create_vm", "arguments": order(second, "10.245.0.7"), "api_version": 3}
	create, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	r := inside("/etc/cpi.json", string(create))
	if r.Error == nil || !strings.Contains(r.Error.Message, "lab cpi-tls --containers") {
		t.Errorf("a container over TLS without permission: got %+v", r)
	}
	allow := []string{"cpi-tls", "--dir", c.dir, "--iaas", c.name, "--containers"}
	if out, err := exec.Command(c.lab, allow...).CombinedOutput(); err != nil {
		t.Fatalf("cpi-tls: %v: %s", err, out)
	}
	if r := inside("/etc/cpi.json", string(create)); r.Error != nil {
		t.Errorf("a container over TLS with permission: got %+v", r)
	} else {
		c.must("delete_vm", r.Result.([]any)[0])
	}
	if r := inside("/etc/other.json", `{"method":"has_vm","arguments":["`+vm+`"],"api_version":3}`); r.Error == nil ||
		r.Error.Type != "Bosh::Clouds::"+string(iaas.CloudError) {
		t.Errorf("with a certificate of another authority: got %+v, want a CloudError", r)
	}
	c.must("delete_vm", vm)
	for _, cid := range []string{sc, second} {
		c.must("delete_stemcell", cid)
	}
	c.gone()
}
