//go:build machine

package machine

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"os/exec"
	"testing"
	"time"

	"cambium/integration/faults"
	"cambium/internal/eventually"
	"cambium/internal/testca"
	"cambium/lab"
	"cambium/lab/netns"
	"cambium/lab/release"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/vishvananda/netlink"
)

// TestMachineFaults causes faults and looks at every cell of their rows in docs/operating.md; TestNightlyFaults causes
// all of them. The clock needs a kernel of its own: integration/vm.
func TestMachineFaults(t *testing.T) {
	t.Parallel()
	causeFaults(t, func(f faults.Fault) bool { return f.CI })
}

// faulty are the machines that faults are caused in, each made when it is needed.
type faulty struct {
	t    *testing.T // the fault's
	all  *testing.T
	l    *lab.Lab
	made map[string]*lab.Instance
}

func causeFaults(t *testing.T, chosen func(faults.Fault) bool) {
	m := &faulty{t: t, all: t, l: newLab(t), made: map[string]*lab.Instance{}}
	causes := m.causes()
	for _, f := range faults.Table {
		if f.VM || !chosen(f) {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			m.t = t
			c, found := causes[f.Name]
			if !found {
				t.Fatal("nothing causes this fault")
			}
			if c.vm != nil {
				i := create(t, m.l, *c.vm)
				watched := faults.Watch(i)
				if err := i.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				f.Check(t, watched)
				if err := i.Delete(t.Context()); err != nil {
					t.Error(err)
				}
				return
			}
			i := c.in()
			watched := faults.Watch(i)
			c.breaks(i)
			if c.heals != nil {
				defer c.heals(i)
			}
			f.Check(t, watched)
		})
	}
}

// cause is either a machine that does not boot, or what breaks and heals one that is ready.
type cause struct {
	vm            *lab.VM
	in            func() *lab.Instance
	breaks, heals func(i *lab.Instance)
}

// get returns a machine, which is ready.
func (m *faulty) get(name string, make func() *lab.Instance) *lab.Instance {
	m.t.Helper()
	if m.made[name] == nil {
		m.made[name] = make()
		ready(m.t, m.made[name])
		ended(m.t, m.made[name]) // networkd adds routes again while the boot writes its files
	}
	return m.made[name]
}

func (m *faulty) plain() *lab.Instance {
	return m.get("plain", func() *lab.Instance { return start(m.all, m.l, lab.VM{Ephemeral: lab.GiB}) })
}

// metadata is a machine whose settings come from a metadata service.
func (m *faulty) metadata() *lab.Instance {
	return m.get("metadata", func() *lab.Instance {
		return start(m.all, m.l, lab.VM{Ephemeral: lab.GiB, Source: lab.HTTP})
	})
}

// deployed has a persistent disk and a job, which runs.
func (m *faulty) deployed() *lab.Instance {
	i := m.get("deployed", func() *lab.Instance {
		app := manifest([]release.Job{forker()}, tool("one"))
		app.Groups[0].PersistentDisk = 256
		return mustDeploy(m.all, m.l, app)
	})
	eventually.True(m.t, "the job to run", func() bool { return stateOf(m.t, i).JobState == "running" })
	return i
}

// stored has a persistent disk and no job.
func (m *faulty) stored() *lab.Instance {
	return m.get("stored", func() *lab.Instance {
		i := start(m.all, m.l, lab.VM{Ephemeral: lab.GiB})
		ready(m.t, i)
		if err := i.NewDisk("disk-1", 64<<20); err != nil {
			m.t.Fatal(err)
		}
		m.mountStore(i)
		return i
	})
}

func (m *faulty) mountStore(i *lab.Instance) {
	m.t.Helper()
	s := &emptyStore{t: m.t, i: i, cid: "disk-1"}
	s.attach()
	s.do("mount_disk", s.cid)
}

// loseStore boots the machine without its persistent disk.
func (m *faulty) loseStore(i *lab.Instance) {
	m.t.Helper()
	ctx := m.t.Context()
	if err := errors.Join(i.Stop(ctx), i.DetachDisk(ctx, "disk-1"), i.Start(ctx)); err != nil {
		m.t.Fatal(err)
	}
}

// replaceStore boots the machine with a disk that somebody else has formatted.
func (m *faulty) replaceStore(i *lab.Instance) {
	m.t.Helper()
	s := &emptyStore{t: m.t, i: i}
	s.reboot("mkfs.ext4 -q -F $disk")
}

// sh runs a script in a machine.
func (m *faulty) sh(script string) func(*lab.Instance) {
	return func(i *lab.Instance) { m.t.Helper(); run(m.t, i, "sh", "-ec", script) }
}

// restarted changes the settings of a machine and restarts the agent, which then reads them.
func (m *faulty) restarted(path string, value func(i *lab.Instance, before any) any) cause {
	var before any
	set := func(i *lab.Instance, value any) {
		m.t.Helper()
		if err := i.Change(m.t.Context(), func(d lab.Document) { d.Set(path, value) }); err != nil {
			m.t.Fatal(err)
		}
		run(m.t, i, "systemctl", "restart", "bosh-agent")
	}
	return cause{in: m.plain, breaks: func(i *lab.Instance) {
		m.t.Helper()
		before = m.setting(i, path)
		set(i, value(i, before))
	}, heals: func(i *lab.Instance) { m.t.Helper(); set(i, before); ready(m.t, i) }}
}

// edited sets a value of the settings for the time of a fault.
func (m *faulty) edited(path string, value any, before func() any) cause {
	set := func(i *lab.Instance, value any) {
		m.t.Helper()
		if err := i.Change(m.t.Context(), func(d lab.Document) { d.Set(path, value) }); err != nil {
			m.t.Fatal(err)
		}
		run(m.t, i, "systemctl", "restart", "bosh-agent")
		ready(m.t, i)
	}
	return cause{in: m.plain, breaks: func(i *lab.Instance) { set(i, value) },
		heals: func(i *lab.Instance) { set(i, before()) }}
}

// setting is the value in the document of a machine.
func (m *faulty) setting(i *lab.Instance, path string) any {
	m.t.Helper()
	var document struct {
		Env struct {
			Bosh struct{ Mbus map[string]any }
		}
	}
	if err := i.Change(m.t.Context(), func(d lab.Document) {
		if err := json.Unmarshal(d.JSON(), &document); err != nil {
			m.t.Fatal(err)
		}
	}); err != nil {
		m.t.Fatal(err)
	}
	return document.Env.Bosh.Mbus[path[len("env.bosh.mbus."):]]
}

// identity changes the certificate of the bus.
func (m *faulty) identity(change func(i *lab.Instance, cert map[string]any)) cause {
	return m.restarted("env.bosh.mbus.cert", func(i *lab.Instance, before any) any {
		cert := maps.Clone(before.(map[string]any))
		change(i, cert)
		return cert
	})
}

func (m *faulty) issue(cert map[string]any, r testca.Request) {
	m.t.Helper()
	pair, err := m.l.CA.Issue(r)
	if err != nil {
		m.t.Fatal(err)
	}
	cert["certificate"], cert["private_key"] = string(pair.Certificate), string(pair.PrivateKey)
}

// passwordServer is a NATS server that wants a password.
func (m *faulty) passwordServer() {
	m.t.Helper()
	m.natsServer(m.l.Net, server.Options{Host: lab.Gateway, Port: 4999, Username: "agent", Password: "right"})
}

// natsServer runs another NATS server in a network.
func (m *faulty) natsServer(in netns.Namespace, o server.Options) {
	m.t.Helper()
	pair, err := m.l.CA.Server(o.Host)
	if err != nil {
		m.t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.PrivateKey)
	if err != nil {
		m.t.Fatal(err)
	}
	o.NoLog, o.NoSigs, o.TLSTimeout, o.AuthTimeout = true, true, 60, 60
	o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}}
	s, err := server.NewServer(&o)
	if err != nil {
		m.t.Fatal(err)
	}
	// The listening socket is opened on the calling thread, hence in that namespace.
	if err := in.Do(func() error { s.Start(); return nil }); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(s.Shutdown)
}

// neighbor is another host on a bridge, a network namespace with one card.
func (m *faulty) neighbor(name string, on netns.Namespace, bridge, address string) netns.Namespace {
	m.t.Helper()
	n, err := netns.Create(m.l.Net.Name() + "-" + name)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if err := n.Delete(); err != nil {
			m.t.Error(err)
		}
	})
	mac := net.HardwareAddr{0x02, 0, 0, 0, 0, 0x99}
	err = on.Connect(n, netns.Wire{Bridge: bridge, Near: name, Far: "eth0", MAC: mac})
	if err == nil {
		err = n.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			address, err := netlink.ParseAddr(address + "/24")
			if err != nil {
				return err
			}
			return errors.Join(netlink.LinkSetUp(link), netlink.AddrAdd(link, address))
		})
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}

// rival is another machine with the address of this one.
func (m *faulty) rival(i *lab.Instance) {
	m.t.Helper()
	m.neighbor("rival", m.l.Net, "lab0", i.IP)
}

// A bus beyond a router, and the router's address in the machine's network.
const (
	farBus = "10.77.0.1"
	router = "10.88.0.200"
)

// blackHole is a bus beyond a router that passes small packets only, and tells nobody.
func (m *faulty) blackHole() cause {
	c := m.restarted("env.bosh.mbus.urls", func(*lab.Instance, any) any { return []string{"nats://" + farBus + ":4222"} })
	changed := c.breaks
	c.breaks = func(i *lab.Instance) {
		m.t.Helper()
		between := m.neighbor("router", m.l.Net, "lab0", router)
		if err := between.Bridge("far0", "10.77.0.254/24"); err != nil {
			m.t.Fatal(err)
		}
		far := m.neighbor("far", between, "far0", farBus)
		in := func(n netns.Namespace, script string) {
			m.t.Helper()
			out, err := exec.Command("nsenter", "--net="+n.Path(), "sh", "-ec", script).CombinedOutput()
			if err != nil {
				m.t.Fatalf("%s: %v: %s", script, err, out)
			}
		}
		in(far, "ip route add default via 10.77.0.254")
		in(between, `sysctl -qw net.ipv4.ip_forward=1
nft add table ip hole; nft 'add chain ip hole forward { type filter hook forward priority 0; }'
nft add rule ip hole forward meta length '>' 600 drop`)
		m.natsServer(far, server.Options{Host: farBus, Port: 4222})
		run(m.t, i, "ip", "route", "add", "10.77.0.0/24", "via", router)
		changed(i)
	}
	healed := c.heals
	c.heals = func(i *lab.Instance) {
		m.t.Helper()
		run(m.t, i, "ip", "route", "del", "10.77.0.0/24")
		healed(i)
	}
	return c
}

const (
	// drop ends with what the machine does not send any more.
	drop = "nft add table inet test; nft 'add chain inet test out { type filter hook output priority 0; }'; " +
		"nft add rule inet test out "
	undrop       = "nft delete table inet test"
	noMetadata   = drop + "ip daddr 169.254.169.254 drop; "
	restartAgent = "systemctl restart bosh-agent; "
	signal       = "systemctl kill --kill-whom=main bosh-agent -s "
)

// causes are named as the rows of the table.
func (m *faulty) causes() map[string]cause {
	all := m.busCauses()
	maps.Copy(all, m.bootCauses())
	maps.Copy(all, m.servingCauses())
	return all
}

// again heals by a script and a restart of the agent.
func (m *faulty) again(script string) func(*lab.Instance) {
	return func(i *lab.Instance) { m.t.Helper(); m.sh(script + "\n" + restartAgent)(i); ready(m.t, i) }
}

func (m *faulty) busCauses() map[string]cause {
	url := func(url string) cause {
		return m.restarted("env.bosh.mbus.urls", func(*lab.Instance, any) any { return []string{url} })
	}
	password := url("nats://agent:wrong@" + lab.Gateway + ":4999")
	changed := password.breaks
	password.breaks = func(i *lab.Instance) { m.t.Helper(); m.passwordServer(); changed(i) }
	foreign, err := testca.New("another Director's CA")
	if err != nil {
		m.t.Fatal(err)
	}
	return map[string]cause{
		"NATS password": password,
		"wrong CA": m.identity(func(_ *lab.Instance, cert map[string]any) {
			cert["ca"] = string(foreign.PEM)
		}),
		"expired certificate": m.identity(func(i *lab.Instance, cert map[string]any) {
			m.issue(cert, testca.Request{CommonName: testca.BootstrapName(i.AgentID),
				NotBefore: time.Now().AddDate(0, 0, -9), NotAfter: time.Now().AddDate(0, 0, -2)})
		}),
		"certificate of another agent": m.identity(func(_ *lab.Instance, cert map[string]any) {
			m.issue(cert, testca.Request{CommonName: testca.AgentName("another")})
		}),
		"DNS":            url("nats://director.invalid:4222"),
		"blobstore down": {in: m.plain, breaks: m.sh(drop + "tcp dport 25250 drop"), heals: m.sh(undrop)},
		"blobstore's password": m.edited("blobstore.options.password", "wrong", func() any {
			return m.l.Blobs.Options(true)["options"].(map[string]any)["password"]
		}),
		"DNS servers silent": {in: m.plain, breaks: m.sh(drop + "udp dport 53 drop"), heals: m.sh(undrop)},
		"MTU black hole":     m.blackHole(),
		"large packets lost": {in: m.plain, breaks: m.sh(drop + "tcp dport 4222 meta length '>' 600 drop; " + restartAgent),
			heals: m.again(undrop)},
		"plain-text password": m.edited("env.bosh.password", "c1oudc0w", func() any { return "" }),
		"bus dropped":         {in: m.plain, breaks: m.sh(drop + "tcp dport 4222 drop"), heals: m.again(undrop)},
	}
}

// bootCauses keep a machine from booting, or from its store.
func (m *faulty) bootCauses() map[string]cause {
	return map[string]cause{
		"metadata dead, cached copy": {in: m.metadata, breaks: m.sh(noMetadata + restartAgent), heals: m.again(undrop)},
		"metadata dead, no copy": {in: m.metadata, breaks: m.sh(noMetadata + `systemctl stop bosh-agent
rm /var/vcap/bosh/settings.json*
systemctl start --no-block bosh-agent`), heals: m.again(undrop)},
		"wrong MAC": {vm: &lab.VM{Ephemeral: lab.GiB, Edit: func(d lab.Document) {
			d.Set("networks.other", map[string]any{"type": "manual", "ip": "10.89.0.7",
				"netmask": "255.255.255.0", "mac": "02:00:00:00:be:ef"})
		}}},
		"settings file that is not JSON": {vm: &lab.VM{Ephemeral: lab.GiB,
			Settings: []byte("{\n  \"agent_id\": \"a-b-c\",\n}\n")}},
		"bad netmask": {vm: &lab.VM{Ephemeral: lab.GiB, Edit: func(d lab.Document) {
			d.Set("networks.default.netmask", "255.0.255.0")
		}}},
		"store frozen": {in: m.stored, breaks: m.sh("fsfreeze -f /var/vcap/store"),
			heals: m.sh("fsfreeze -u /var/vcap/store")},
		"ephemeral disk missing": {vm: &lab.VM{Edit: func(d lab.Document) {
			d.Set("disks.ephemeral", "/dev/nowhere")
		}}},
		"store missing": {in: m.stored, breaks: m.loseStore, heals: func(i *lab.Instance) {
			ready(m.t, i)
			m.mountStore(i)
		}},
		"foreign disk": {in: m.stored, breaks: m.replaceStore, heals: func(i *lab.Instance) {
			m.t.Helper()
			m.made["stored"] = nil // it has lost its store for good
			if err := i.Delete(m.t.Context()); err != nil {
				m.t.Error(err)
			}
		}},
		"agent.json syntax": {vm: &lab.VM{Ephemeral: lab.GiB, AgentJSON: []byte("{")}},
		"settings corrupt, source dead": {in: m.plain, breaks: m.sh(`cd /var/vcap/bosh
systemctl stop bosh-agent
cp agent-bootstrap-env.json kept
echo '{' >agent-bootstrap-env.json
rm -f settings.json*
echo '{' >settings.json
systemctl start --no-block bosh-agent`),
			heals: m.again("cd /var/vcap/bosh; cp kept agent-bootstrap-env.json; rm -f *.corrupt*")},
	}
}

// fill fills a file system of a machine, which has at most 1 GiB, and never that of the host.
func fill(name string) string {
	dir := "/var/vcap/" + name
	return "mountpoint -q " + dir + "\ndd if=/dev/zero of=" + dir + "/full bs=1M count=2048 2>/dev/null || true"
}

// servingCauses are faults of a machine that serves.
func (m *faulty) servingCauses() map[string]cause {
	return map[string]cause{
		"data full": {in: m.plain, breaks: m.sh(fill("data")), heals: m.sh("rm /var/vcap/data/full")},
		"store full": {in: m.stored, breaks: m.sh(fill("store")),
			heals: m.sh("rm /var/vcap/store/full")},
		"monit's port taken":                 m.portTaken(""),
		"monit's port taken by a job's user": m.portTaken("--uid=vcap"),
		"blobstore stopped": {in: m.plain, breaks: m.sh(drop + "tcp dport 25250 reject with tcp reset"),
			heals: m.sh(undrop)},
		"inodes full": {in: m.plain, heals: m.sh("umount /tmp"),
			breaks: m.sh("mount -t tmpfs -o nr_inodes=70 tmpfs /tmp; cd /tmp; touch $(seq 60)")},
		"gateway dead": {in: m.plain, breaks: m.sh("ip route replace default via 10.88.0.254 dev eth0 onlink"),
			heals: m.sh("ip route replace default via " + lab.Gateway + " dev eth0")},
		"default route removed": {in: m.plain, breaks: m.sh("ip route del default"),
			heals: m.sh("ip route add default via " + lab.Gateway + " dev eth0")},
		"duplicate address": {in: m.plain, breaks: m.rival},
		"password changed by hand": {in: m.plain, breaks: m.sh("cp -p /etc/shadow /root; usermod -p '$6$other$hash' vcap"),
			heals: m.sh("cp -p /root/shadow /etc/shadow")},
		"two agents": {in: m.plain, breaks: m.sh(`mkdir /root/base
systemd-run -q --unit=second /var/vcap/bosh/bin/bosh-agent -P dummy -M dummy -b /root/base -C /var/vcap/bosh/agent.json
sleep 1; systemctl is-active second`), heals: m.sh("systemctl stop second")},
		"job's process stopped": {in: m.deployed, breaks: m.sh("pkill -STOP -f '[b]in/sleeper'"),
			heals: m.sh("pkill -CONT -f '[b]in/sleeper'")},
		"MTU too small": {in: m.plain, breaks: m.sh("ip link set eth0 mtu 576"),
			heals: m.sh("ip link set eth0 mtu 1500")},
		"monit stopped": {in: m.plain, breaks: m.sh("systemctl stop monit"), heals: m.sh("systemctl start monit")},
		"monit killed, restarted by systemd": {in: m.plain,
			breaks: m.sh("systemctl kill --kill-whom=main -s KILL monit")},
		"job failing": {in: m.deployed, breaks: m.sh(`cp /var/vcap/jobs/forker/bin/ctl /root
printf '#!/bin/sh\necho broken >>/var/vcap/sys/log/forker/forker.log\nexit 1\n' >/var/vcap/jobs/forker/bin/ctl
pkill -9 -f '[b]in/sleeper'`), heals: m.sh("cp /root/ctl /var/vcap/jobs/forker/bin/ctl")},
		"settings corrupt, source alive": {in: m.plain, breaks: m.sh("echo '{' >/var/vcap/bosh/settings.json"),
			heals: m.again("")},
		"kill -9": {in: m.plain, breaks: m.sh(restartAgent + signal + "KILL"), heals: m.sh(restartAgent)},
		"SIGSTOP": {in: m.plain, breaks: m.sh(watchdog("30min") + signal + "STOP"),
			heals: m.again(signal + "KILL; " + watchdog("60"))},
		"SIGSTOP, after the watchdog": {in: m.plain, breaks: m.sh(watchdog("3") + signal + "STOP"),
			heals: m.again(watchdog("60"))},
	}
}

// portTaken has another process listen on monit's port before monit starts.
func (m *faulty) portTaken(user string) cause {
	return cause{in: m.deployed, breaks: m.sh(`systemctl stop monit
systemd-run -q --unit=taker ` + user + ` perl -MSocket -e 'socket S, PF_INET, SOCK_STREAM, 0; setsockopt S, SOL_SOCKET, SO_REUSEADDR, 1;
bind S, sockaddr_in(2822, inet_aton("127.0.0.1")) or die $!; listen S, 5; sleep 9999'
sleep 1; systemctl is-active taker; systemctl start monit`),
		heals: m.sh("systemctl stop taker; systemctl restart monit")}
}

// watchdog restarts the agent with another limit of systemd's watchdog.
func watchdog(limit string) string {
	return `mkdir -p /run/systemd/system/bosh-agent.service.d
printf '[Service]\nWatchdogSec=` + limit + `\n' >/run/systemd/system/bosh-agent.service.d/watchdog.conf
systemctl daemon-reload; ` + restartAgent
}
