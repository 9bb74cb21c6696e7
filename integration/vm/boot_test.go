//go:build vm

package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cambium/integration/faults"
	"cambium/internal/eventually"
	"cambium/internal/status"
	"cambium/lab"
	"cambium/lab/director"
	"cambium/lab/labtest"
	"cambium/lab/machine"
	"cambium/lab/machine/qemu"
	"cambium/lab/release"
)

// The tests of this file boot one machine each and look at much in it: the boot is the expensive part.

// agentStatus is the agent's own account.
func agentStatus(t testing.TB, i *lab.Instance) (d status.Document) {
	t.Helper()
	data, err := i.Status()
	if err == nil {
		err = json.Unmarshal(data, &d)
	}
	if err != nil {
		t.Fatalf("status: %v: %s", err, data)
	}
	return d
}

// wantReady checks that the boot has ended well, with the settings that were delivered.
func wantReady(t testing.TB, i *lab.Instance) status.Document {
	t.Helper()
	d := agentStatus(t, i)
	if d.State != status.Ready || d.AgentID != i.AgentID || len(d.Warnings) > 0 {
		t.Errorf("status: %s %q, agent %s, warnings %q; want ready without warnings", d.State, d.Verdict, d.AgentID,
			d.Warnings)
	}
	return d
}

// addresses lists the global addresses of a link, as CIDR.
func addresses(t testing.TB, i *lab.Instance, link string) []string {
	t.Helper()
	return strings.Fields(run(t, i, "sh", "-c", "ip -o address show scope global dev "+link+" | awk '{print $4}' | sort"))
}

func wantAddresses(t testing.TB, i *lab.Instance, link string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := addresses(t, i, link); !slices.Equal(got, want) {
		t.Errorf("%s has %v, want %v", link, got, want)
	}
}

// reaches checks that the lab's end of a network answers from the machine, over one link.
func reaches(t testing.TB, i *lab.Instance, link, address string) {
	t.Helper()
	route := run(t, i, "ip", "route", "get", address)
	if !strings.Contains(route, "dev "+link+" ") {
		t.Errorf("the way to %s is %q, want by %s", address, route, link)
	}
}

// web asks the web job until it answers.
func web(t testing.TB, l *lab.Lab, ip string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: l.Net.DialContext, DisableKeepAlives: true},
		Timeout: 5 * time.Second}
	eventually.Nil(t, "an answer of the web job", func() error {
		response, err := client.Get("http://" + net.JoinHostPort(ip, "8080") + "/")
		if err == nil {
			_ = response.Body.Close()
		}
		return err
	})
}

// TestVMMetadataAndTwoCards: settings by HTTP, first card by DHCP, second card static on another
// network; cgroup v2; the root disk grows.
func TestVMMetadataAndTwoCards(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := create(t, l, lab.VM{Name: "vm1", Source: lab.HTTP, Ephemeral: 10 * lab.GiB, NICs: 2, Edit: func(d lab.Document) {
		d.Set("networks.default.type", "dynamic")
		d.Set("networks.second", map[string]any{"type": "manual", "ip": "10.88.1.10", "netmask": "255.255.255.0",
			"mac": cardMAC(l, 1)})
		d.Set("ntp", []string{lab.Gateway}) // where no time server is
	}})
	watched := faults.Watch(i)
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	wantReady(t, i)
	eventually.True(t, "the verdict on the virtio port", func() bool {
		said, err := machine.LastVerdict(filepath.Dir(i.Console()))
		return err == nil && strings.HasPrefix(said, "ready after ")
	})
	wantAddresses(t, i, "eth0", i.IP+"/24")
	wantAddresses(t, i, "eth1", "10.88.1.10/24")
	reaches(t, i, "eth1", "10.88.1.1")
	reaches(t, i, "eth0", "10.99.0.1")
	if conn, err := l.Net.DialContext(t.Context(), "tcp", "10.88.1.10:22"); err == nil {
		_ = conn.Close()
	} else if !strings.Contains(err.Error(), "refused") {
		t.Errorf("the second card cannot be reached: %v", err)
	}
	groupsV2(t, i)
	// The image's root file system is about half a gigabyte, the disk has 3.
	eventually.True(t, "a root file system that has grown to its disk", func() bool {
		var blocks, size int64
		_, err := fmt.Sscan(run(t, i, "stat", "-f", "-c", "%b %S", "/"), &blocks, &size)
		return err == nil && blocks*size >= 2<<30
	})
	for _, name := range []string{"virtio-ephemeral", "virtio-root"} {
		run(t, i, "test", "-b", "/dev/disk/by-id/"+name)
	}
	if text := run(t, i, "agent", "timeline"); !strings.Contains(text, "kernel") {
		t.Errorf("the timeline of a virtual machine does not begin with its kernel:\n%s", text)
	}
	nothingIsPlanned(t, i)
	faults.Named("clock not synchronized").Check(t, watched)
	wrongClock(t, i)
}

// nothingIsPlanned: the machine was booted, and is as its settings want it. The doctor's two seconds are too few for an
// emulated machine.
func nothingIsPlanned(t *testing.T, i *lab.Instance) {
	t.Helper()
	var p labtest.PlannedBoot
	out := run(t, i, "agent", "plan", "--json", "--timeout", "2m")
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatalf("plan: %v: %s", err, out)
	}
	if len(p.Plan) == 0 || len(p.Texts()) > 0 {
		t.Errorf("a booted machine plans %d steps with the changes %q, want none", len(p.Plan), p.Texts())
	}
}

// wrongClock sets the clock of the machine, and looks at every cell of its row in docs/operating.md.
func wrongClock(t *testing.T, i *lab.Instance) {
	t.Helper()
	watched := faults.Watch(i)
	run(t, i, "date", "-s", "+1 day")
	defer run(t, i, "date", "-s", "-1 day")
	faults.Named("clock").Check(t, watched)
}

// cardMAC is the hardware address that the lab will give a card of vm1, for settings that name it.
func cardMAC(l *lab.Lab, card int) string {
	return machine.MAC(lab.Prefix+l.Name()+".vm1", card).String()
}

// groupsV2 looks at the agent under nothing but cgroup v2.
func groupsV2(t *testing.T, i *lab.Instance) {
	t.Helper()
	if got := run(t, i, "stat", "-f", "-c", "%T", "/sys/fs/cgroup"); got != "cgroup2fs\n" {
		t.Errorf("/sys/fs/cgroup is %q, want version 2 alone", got)
	}
	if v1 := run(t, i, "sh", "-c", "grep -c ' - cgroup ' /proc/self/mountinfo || true"); v1 != "0\n" {
		t.Errorf("%s hierarchies of version 1 are mounted", strings.TrimSpace(v1))
	}
	pid := strings.TrimSpace(run(t, i, "systemctl", "show", "-p", "MainPID", "--value", "bosh-agent"))
	got := run(t, i, "sh", "-c", fmt.Sprintf("cat /proc/%s/oom_score_adj /proc/%[1]s/cgroup; ps -o ni= -p %[1]s", pid))
	if want := "-900\n0::/system.slice/bosh-agent.service\n-15\n"; strings.ReplaceAll(got, " ", "") != want {
		t.Errorf("the agent's OOM score, control group and nice level are %q, want %q", got, want)
	}
	out := run(t, i, "sh", "-c", "systemd-run --quiet --wait --pipe -p MemoryMax=32M -p MemorySwapMax=0 perl -e 'my $x = \"x\" x (256 << 20); print length $x' 2>&1 || echo killed")
	if !strings.Contains(out, "killed") {
		t.Errorf("a limit of 32 MiB lets 256 MiB through: %q", out)
	}
	// Root may talk to monit, others may not.
	for user, want := range map[string]string{"root": "open\n", "vcap": "closed\n"} {
		if got := reachesMonit(t, i, user); got != want {
			t.Errorf("monit's port is %q for %s, want %q", got, user, want)
		}
	}
}

// reachesMonit says whether monit's port is open or closed to a user.
func reachesMonit(t *testing.T, i *lab.Instance, user string) string {
	t.Helper()
	return run(t, i, "sh", "-c", "setpriv --reuid "+user+" --clear-groups timeout 5 bash -c 'exec 3<>/dev/tcp/127.0.0.1/2822' 2>/dev/null && echo open || echo closed")
}

// agentJSONFallBack reads a config drive, and uses the root disk if the ephemeral disk is missing.
const agentJSONFallBack = `{"Platform": {"Linux": {"ServiceManager": "systemd",
	"CreatePartitionIfNoEphemeralDisk": true, "MissingEphemeralDisk": "root"}},
"Infrastructure": {"Settings": {"Sources": [{"Type": "ConfigDrive", "DiskPaths": ["/dev/disk/by-label/config-2"],
	"MetaDataPath": "openstack/latest/meta_data.json", "UserDataPath": "openstack/latest/user_data"}],
	"UseServerName": true, "UseRegistry": true}}}`

// TestVMConfigDriveFAT: a config drive as FAT, a bus that has an IPv6 address alone, ephemeral data and swap space on the
// root disk, a raw disk.
func TestVMConfigDriveFAT(t *testing.T) {
	t.Parallel()
	l := newLab(t, func(o *lab.Options) { o.BusHost = lab.Gateway6 })
	i := start(t, l, lab.VM{Source: lab.ConfigDriveNovaF, AgentJSON: []byte(agentJSONFallBack), Disks: []int64{lab.GiB},
		Files: []machine.File{labtest.PlanFirst}, Edit: func(d lab.Document) {
			d.Set("disks.ephemeral", "/dev/sdz")
			d.Set("disks.raw_ephemeral", []any{map[string]any{"path": "/dev/disk/by-id/virtio-disk-1"}})
			delete(d["env"].(map[string]any)["bosh"].(map[string]any), "swap_size")
			d.Set("networks", map[string]any{"default": map[string]any{"type": "manual",
				"ip": "fd88::10", "netmask": "ffff:ffff:ffff:ffff::",
				"gateway": lab.Gateway6, "default": []string{"dns", "gateway"}, "mac": cardMAC(l, 0)}})
		}})
	if !strings.HasPrefix(i.MbusURL, "nats://[fd88::1]:") {
		t.Fatalf("the bus is %s", i.MbusURL)
	}
	ready(t, i)
	wantReady(t, i)
	wantAddresses(t, i, "eth0", "fd88::10/64")
	if v4 := run(t, i, "sh", "-c", "ip -4 -o address show scope global | wc -l"); v4 != "0\n" {
		t.Errorf("an IPv6 machine has %s IPv4 addresses", strings.TrimSpace(v4))
	}
	fellBack(t, i)
	rawAndSeveral(t, i)
}

// rawAndSeveral looks at disks as `bosh ssh` shows them: the raw one by its label, and two that come later by their sizes.
func rawAndSeveral(t *testing.T, i *lab.Instance) {
	t.Helper()
	const label = "/dev/disk/by-partlabel/raw-ephemeral-0"
	run(t, i, "udevadm", "wait", "--timeout=120", label)
	if got := run(t, i, "lsblk", "-no", "PKNAME", label); got != strings.TrimPrefix(run(t, i, "readlink", "-f",
		"/dev/disk/by-id/virtio-disk-1"), "/dev/") {
		t.Errorf("%s is a partition of %q, want of the raw disk", label, got)
	}
	sizes := map[string]int64{"one": 300 << 20, "two": 200 << 20}
	for id, size := range sizes {
		if _, err := i.AttachNew(t.Context(), id, size); err != nil {
			t.Fatal(err)
		}
	}
	eventually.Nil(t, "both disks in lsblk", func() error {
		for id, size := range sizes {
			if got := run(t, i, "lsblk", "-bdno", "SERIAL,SIZE"); !slices.Contains(strings.Fields(got), fmt.Sprint(size)) {
				return fmt.Errorf("%s has not %d bytes in\n%s", id, size, got)
			}
		}
		return nil
	})
}

// fellBack checks that the ephemeral data is on the root disk, by a boot that has done what was planned before it.
func fellBack(t *testing.T, i *lab.Instance) {
	t.Helper()
	eventually.Nil(t, "a boot that does what was planned", func() error {
		out := run(t, i, "cat", "/run/plan.json")
		var p labtest.PlannedBoot
		if err := json.Unmarshal([]byte(out), &p); err != nil {
			return fmt.Errorf("plan: %w: %s%s", err, out, run(t, i, "cat", "/run/plan.err"))
		}
		// Before the first start of the agent the kernel may not have found the card.
		disks := []string{"raw-disks", "ephemeral-disk", "persistent-disk", "directories", "root-disk"}
		d := agentStatus(t, i)
		d.Steps = slices.DeleteFunc(d.Steps, func(s status.Step) bool { return !slices.Contains(disks, s.Name) })
		return p.Of(disks...).Compare(d)
	})
	done, _ := labtest.BootSays(agentStatus(t, i))
	const appended = "nothing after root partition 1: append GPT"
	if changes := strings.Join(done["ephemeral-disk"], "\n"); !strings.Contains(changes, appended) {
		t.Errorf("the boot did\n%s\nwant %q", changes, appended)
	}
	if got := run(t, i, "findmnt", "-no", "SOURCE", "/var/vcap/data"); got != "/dev/vda3\n" {
		t.Errorf("the ephemeral data is on %q", got)
	}
	if got := run(t, i, "swapon", "--noheadings", "--show=NAME,TYPE"); strings.Join(strings.Fields(got),
		" ") != "/dev/vda2 partition" {
		t.Errorf("the swap space is %q, want a partition of the root disk", got)
	}
}

// TestVMCDROM: settings on a CD as vSphere hands it out. The disc is ejected, which the
// hypervisor sees, jobs cannot read it, and neither a restart of the agent nor a reboot needs it again.
func TestVMCDROM(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := start(t, l, lab.VM{Source: lab.CDROM, Ephemeral: 2 * lab.GiB})
	vm := i.Machine.(*qemu.Machine)
	if vm.Ejected() {
		t.Fatal("the tray is open before the machine has booted")
	}
	ready(t, i)
	wantReady(t, i)
	eventually.True(t, "the open tray", vm.Ejected)
	jobsReadNoMedium(t, i)
	run(t, i, "systemctl", "restart", "bosh-agent")
	ready(t, i)
	wantDrive(t, i, "after a restart of the agent")
	eventually.True(t, "the open tray", vm.Ejected)
	if err := i.Detach(t.Context(), "cdrom"); err != nil {
		t.Fatal(err)
	}
	within, cancel := context.WithTimeout(t.Context(), readyTimeout)
	defer cancel()
	if err := i.Reboot(within); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	if d := agentStatus(t, i); d.Settings == nil || !d.Settings.Cached || d.State != status.Ready {
		t.Errorf("after a reboot without the disc: %s, settings %+v, want ready with the cached ones", d.State, d.Settings)
	}
}

// jobsReadNoMedium tries to read the settings from the drive as vcap, who is in group cdrom.
func jobsReadNoMedium(t *testing.T, i *lab.Instance) {
	t.Helper()
	if groups := strings.Fields(run(t, i, "id", "-nG", "vcap")); !slices.Contains(groups, "cdrom") {
		t.Errorf("vcap is in groups %v, want cdrom among them", groups)
	}
	run(t, i, "sh", "-ec", "modprobe sg; udevadm settle")
	wantDrive(t, i, "after the boot")
	// The drive comes once more, and udev makes its devices.
	run(t, i, "sh", "-ec", "modprobe -r sr_mod sg; modprobe -a sr_mod sg; udevadm settle")
	wantDrive(t, i, "with a drive that has come")
	defer virtual.Secrets(t, i)()
	if found := virtual.Search(t, i, labtest.DevicesOfJobs); found != "" {
		t.Errorf("vcap reads a secret from %s", found)
	}
	// The search finds a planted secret.
	run(t, i, "sh", "-c", "chgrp cdrom "+driveNodes+"; chmod 660 "+driveNodes)
	found := strings.Fields(virtual.Search(t, i, labtest.DevicesOfJobs))
	if slices.Sort(found); len(found) != 2 || !strings.HasPrefix(found[0], "/dev/sg") || found[1] != "/dev/sr0" {
		t.Errorf("a search of a drive that vcap can open found %q, want both of its devices", found)
	}
}

// driveNodes are the drive's devices, in shell: the disk, and the one for SCSI commands.
const driveNodes = `/dev/sr0 $(cd /sys/class/scsi_generic && grep -lx 5 */device/type | sed 's:\([^/]*\).*:/dev/\1:')`

// wantDrive checks that the devices of the drive are root's alone.
func wantDrive(t *testing.T, i *lab.Instance, when string) {
	t.Helper()
	const root = "600 root root\n"
	if got := run(t, i, "sh", "-c", "stat -c '%a %U %G' "+driveNodes); got != root+root {
		t.Errorf("%s its devices are %q, want two with %q", when, got, root)
	}
}

// TestVMRegistryAndDirectorDown: settings in a registry, a deployment with a job and a
// persistent disk; then the machine is rebooted while bus and registry are down.
func TestVMRegistryAndDirectorDown(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	m := release.WebManifest()
	m.Groups[0].Source = string(lab.Registry)
	// A container's kernel is its host's: only here can a pre-start load a module, as releases do.
	m.Groups[0].Jobs = append(m.Groups[0].Jobs, release.Job{Name: "module", Files: release.Files{"bin/pre-start": `#!/bin/bash
set -e
if grep '^xfs ' /proc/modules; then echo loaded already >&2; exit 1; fi
modprobe xfs
grep '^xfs ' /proc/modules
`}})
	if err := l.Deploy(t.Context(), m, func(instance, step string, took time.Duration, err error) {
		t.Logf("%s: %s %.1f s %v", instance, step, took.Seconds(), err)
	}); err != nil {
		for _, i := range l.Machines() {
			labtest.Explain(t, i)
		}
		t.Fatal(err)
	}
	i := l.Machines()[m.Groups[0].Name+"-0"]
	labtest.Explain(t, i)
	web(t, l, i.IP)
	// Jobs do not inherit what protects the agent.
	if got := run(t, i, "sh", "-c", "p=$(cat /var/vcap/sys/run/web/web.pid); cat /proc/$p/oom_score_adj; ps -o ni= -p $p"); strings.Join(strings.Fields(got), " ") != "0 0" {
		t.Errorf("OOM score and nice level of the job are %q, want 0 0", got)
	}
	if l.Registry.Requests(i.Name()) == 0 {
		t.Error("the registry was never asked")
	}
	run(t, i, "sh", "-c", "echo precious >/var/vcap/store/precious; sync")

	l.Bus.Stop()
	l.Registry.Delete(i.Name())
	within, cancel := context.WithTimeout(t.Context(), readyTimeout)
	defer cancel()
	if err := i.Reboot(within); err != nil {
		t.Fatal(err)
	}
	web(t, l, i.IP)
	if got := run(t, i, "cat", "/var/vcap/store/precious"); got != "precious\n" {
		t.Errorf("the persistent disk has %q", got)
	}
	since := time.Now()
	if err := l.Bus.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready(t, i)
	if _, err := l.Monitor.Wait(within, since,
		func(e director.Event) bool { return e.Kind == "heartbeat" && e.Agent == i.AgentID }); err != nil {
		t.Errorf("no heartbeat after the Director is back: %v", err)
	}
}
