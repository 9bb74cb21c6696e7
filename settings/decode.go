package settings

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"cambium/internal/hwaddr"
	"cambium/internal/jsondoc"
	"cambium/internal/managedfs"
	"cambium/internal/report"
	"cambium/internal/secret"
)

// defaultParallel is the number of workers that prepare jobs and packages unless env.bosh.parallel sets another.
const defaultParallel = 5

// Decode parses a settings document from any source. name identifies the document in the report and for Explain.
// Unknown members are kept for the cached copy, null counts as absent, and the case of keys is ignored. The Settings
// are usable if the report has no errors.
func Decode(name string, raw secret.JSON) (Settings, report.Report) {
	var s Settings
	s.Env.Bosh.Parallel = defaultParallel
	d, text := jsondoc.Decode(name, raw.Reveal(), &s, jsondoc.Tolerate, documentRules()...)
	s.name, s.document = name, secret.NewJSON(text)
	if s.Disks.Ephemeral != nil && s.Disks.Ephemeral.Empty() {
		s.Disks.Ephemeral = nil
	}
	s.check(d)
	return s, d.Findings()
}

// Encode returns the content of the cached settings.json: the document with its unknown members, in a form that
// cloudfoundry/bosh-agent can read. It contains secrets in clear, and no updates.
func (s Settings) Encode() secret.JSON { return s.document }

// Redacted returns the known members as JSON, without secrets.
func (s Settings) Redacted() json.RawMessage {
	cert := &s.Env.Bosh.Mbus.Cert // s is a copy; a bundle may contain its private key
	for _, bundle := range []*string{&cert.CA, &cert.Certificate} {
		if *bundle != "" {
			*bundle = certificates(*bundle)
		}
	}
	raw, err := json.Marshal(s)
	if err != nil { // not possible with these types
		return json.RawMessage(null)
	}
	return raw
}

// check reports what is wrong with decoded settings.
func (s Settings) check(d *jsondoc.Document) {
	if s.AgentID == "" {
		d.Errorf("agent_id", "missing; without it the agent has no identity")
	}
	checkURL(d, "mbus", s.Mbus)
	checkNetworks(d, "networks", s.Networks)
	if _, there := s.Disks.Persistent[""]; there {
		d.Warnf("disks.persistent"+jsondoc.Key(""), "a disk without a CID cannot be mounted")
	}
	oneOf(d, "env.persistent_disk_fs", s.Env.PersistentDiskFS, managedfs.Names()...)
	oneOf(d, "env.persistent_disk_partitioner", s.Env.PersistentDiskPartitioner, "parted", "sfdisk")
	oneOf(d, "env.persistent_disk_foreign", s.Env.PersistentDiskForeign, "refuse", "format")
	oneOf(d, "env.persistent_disk_blank", s.Env.PersistentDiskBlank, "zeros", "noise")
	oneOf(d, "env.bosh.agent.persistent_disk_foreign", s.Env.Bosh.Agent.PersistentDiskForeign, "refuse", "format")
	oneOf(d, "env.bosh.agent.metadata_access", s.Env.Bosh.Agent.MetadataAccess, "all", "root")
	checkURLs(d, "env.bosh.mbus.urls", s.Env.Bosh.Mbus.URLs)
	checkSize(d, "env.bosh.job_dir.tmpfs_size", s.Env.Bosh.JobDir.TmpfsSize)
	checkSize(d, "env.bosh.run_dir.tmpfs_size", s.Env.Bosh.RunDir.TmpfsSize)
}

func checkURLs(d *jsondoc.Document, path string, urls []secret.URL) {
	for i, u := range urls {
		checkURL(d, path+jsondoc.Item(i), u)
	}
}

func checkURL(d *jsondoc.Document, path string, u secret.URL) {
	if url := u.Reveal(); url != "" && !strings.HasPrefix(url, "nats://") && !strings.HasPrefix(url, "https://") {
		d.Warnf(path, "expected a URL with scheme nats or https")
	}
}

// oneOf warns about an unknown value. It is not an error, since a machine that never uses the value must still start: a
// disk action refuses it or uses the default.
func oneOf(d *jsondoc.Document, path, got string, known ...string) {
	if got == "" || slices.Contains(known, got) {
		return
	}
	d.Warnf(path, "expected \"%s\"", strings.Join(known, `" or "`))
}

func checkSize(d *jsondoc.Document, path, size string) {
	digits := strings.TrimRight(size, "kKmMgG%")
	if _, err := strconv.ParseUint(digits, 10, 64); size != "" && (err != nil || len(size)-len(digits) > 1) {
		d.Warnf(path, "expected a tmpfs size such as \"100m\"")
	}
}

// Validate reports the mistakes in a document to its author. Unlike Decode, it accepts a pointer to a registry, which a
// source may return instead of settings.
func Validate(name string, raw secret.JSON) report.Report {
	s, rep := Decode(name, raw)
	var pointer struct {
		Registry struct{ Endpoint string }
	}
	if json.Unmarshal(s.document.Reveal(), &pointer) != nil || pointer.Registry.Endpoint == "" {
		return rep
	}
	for i, e := range rep.Entries {
		if e.Path == "agent_id" && strings.HasPrefix(e.Message, "missing") {
			rep.Entries[i].Severity = report.Warning
			rep.Entries[i].Message = "missing; this is a pointer to a registry, which has the settings"
		}
	}
	return rep
}

// DecodeNetworks parses a "networks" object on its own. User data with a pointer to a registry may contain one, for a
// machine that needs an address to fetch its settings. name identifies it in the report.
func DecodeNetworks(name string, raw []byte) (networks map[string]Network, rep report.Report) {
	d, _ := jsondoc.Decode(name, raw, &networks, jsondoc.Tolerate, networkRules("*.")...)
	checkNetworks(d, "", networks)
	return networks, d.Findings()
}

func checkNetworks(d *jsondoc.Document, at string, networks map[string]Network) {
	defaults := map[string]int{}
	for name, n := range networks {
		checkNetwork(d, strings.TrimPrefix(at+jsondoc.Key(name), "."), n)
		for _, category := range n.Default {
			defaults[category]++
		}
	}
	for _, category := range []string{"dns", "gateway"} {
		if defaults[category] > 1 {
			d.Warnf(at, "%d networks are the default for %q; the first by name is used", defaults[category], category)
		}
	}
}

func checkNetwork(d *jsondoc.Document, at string, n Network) {
	if n.Alias == "." || n.Alias == ".." || strings.ContainsAny(n.Alias, "/ \t\r\n") {
		d.Errorf(at+".alias", "not a valid interface name")
	}
	if !n.VIP() && !n.DHCP() && !n.Preconfigured {
		for key, got := range map[string]string{".ip": n.IP, ".netmask": n.Netmask, ".gateway": n.Gateway} {
			if got != "" && !isAddress(got) {
				d.Errorf(at+key, "expected an IP address")
			}
		}
	}
	for i, server := range n.DNS {
		if !isAddress(server) {
			d.Warnf(at+".dns"+jsondoc.Item(i), "expected an IP address")
		}
	}
	if _, err := hwaddr.Parse(n.MAC); n.MAC != "" && err != nil {
		d.Warnf(at+".mac", "expected a MAC address such as \"02:00:00:00:00:09\"; no interface will match")
	}
}

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}
