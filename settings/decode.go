package settings

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"cambium/internal/jsontree"
	"cambium/internal/report"
	"cambium/internal/secret"
)

// defaultParallel is how many workers prepare jobs and packages unless env.bosh.parallel says
// otherwise.
const defaultParallel = 5

// document is a parsed document that a value was decoded from. It is shared and never changed.
type document struct {
	name string
	root jsontree.Value
}

// Decode reads a settings document of any source; name says which, for the report and for Explain.
// Unknown members are kept for the cached copy, null counts as absent, and keys are matched without
// regard to case. The Settings are usable when the report has no errors.
func Decode(name string, raw secret.JSON) (Settings, report.Report) {
	var (
		s   Settings
		rep report.Report
	)
	root := jsontree.Parse(name, raw.Reveal(), &rep)
	if root.Kind() == jsontree.Absent {
		return s, rep
	}
	if root.Kind() != jsontree.Object {
		root.Expected("an object")
		return s, rep
	}
	s.document = &document{name: name, root: root}
	f := root.Fields()
	decodeIdentity(f, &s)
	f.Get("ntp").Strings(&s.NTP)
	decodeMbusURL(f.Get("mbus"), &s.Mbus)
	decodeBlobstore(f.Get("blobstore"), &s.Blobstore)
	s.Networks = decodeNetworks(f.Get("networks"))
	decodeDisks(f.Get("disks"), &s.Disks)
	decodeEnv(f.Get("env"), &s.Env)
	f.Done(jsontree.Tolerate)
	rep.Sort()
	return s, rep
}

func decodeIdentity(f *jsontree.Fields, s *Settings) {
	id := f.Get("agent_id")
	id.Text(&s.AgentID)
	if s.AgentID == "" && (!id.Present() || id.Kind() == jsontree.String) {
		id.Errorf("missing; without it the agent has no identity")
	}
	vm := f.Get("vm").Fields()
	vm.Get("name").Text(&s.VM.Name)
	vm.Done(jsontree.Tolerate)
}

func decodeMbusURL(v jsontree.Value, into *secret.URL) {
	var url string
	v.Text(&url)
	*into = secret.NewURL(url)
	if url != "" && !strings.HasPrefix(url, "nats://") && !strings.HasPrefix(url, "https://") {
		v.Warnf("expected a URL with scheme nats or https")
	}
}

func decodeBus(v jsontree.Value) (b Bus) {
	f := v.Fields()
	urls := f.Get("urls")
	if urls.Kind() == jsontree.List {
		b.URLs = make([]secret.URL, len(urls.Node().Items))
	}
	for i, item := range urls.Items() {
		decodeMbusURL(item, &b.URLs[i])
	}
	cert := f.Get("cert").Fields()
	cert.Get("ca").Text(&b.Cert.CA)
	cert.Get("certificate").Text(&b.Cert.Certificate)
	decodeSecret(cert.Get("private_key"), &b.Cert.PrivateKey)
	cert.Done(jsontree.Tolerate)
	f.Done(jsontree.Tolerate)
	return b
}

func decodeSecret(v jsontree.Value, into *secret.String) {
	var text string
	v.Text(&text)
	*into = secret.New(text)
}

func decodeBlobstore(v jsontree.Value, b *Blobstore) {
	f := v.Fields()
	f.Get("provider").Text(&b.Provider)
	options := f.Get("options")
	options.Fields() // reports anything but an object
	if options.Kind() == jsontree.Object {
		var compact bytes.Buffer
		// What cannot be compacted has been reported as an error of the document.
		if json.Compact(&compact, options.Raw()) == nil {
			b.Options = secret.NewJSON(compact.Bytes())
		}
	}
	f.Done(jsontree.Tolerate)
}

func decodeBlobstores(v jsontree.Value) []Blobstore {
	if v.Kind() != jsontree.List {
		v.Items() // reports the wrong kind
		return nil
	}
	all := make([]Blobstore, len(v.Node().Items))
	for i, item := range v.Items() {
		decodeBlobstore(item, &all[i])
	}
	return all
}

func decodeEnv(v jsontree.Value, e *Env) {
	f := v.Fields()
	fs := f.Get("persistent_disk_fs")
	fs.Text(&e.PersistentDiskFS)
	oneOf(fs, e.PersistentDiskFS, "ext4", "xfs")
	f.Get("persistent_disk_mount_options").Strings(&e.PersistentDiskMountOptions)
	partitioner := f.Get("persistent_disk_partitioner")
	partitioner.Text(&e.PersistentDiskPartitioner)
	oneOf(partitioner, e.PersistentDiskPartitioner, "parted", "sfdisk")
	foreign := f.Get("persistent_disk_foreign")
	foreign.Text(&e.PersistentDiskForeign)
	oneOf(foreign, e.PersistentDiskForeign, "refuse", "format")
	blank := f.Get("persistent_disk_blank")
	blank.Text(&e.PersistentDiskBlank)
	oneOf(blank, e.PersistentDiskBlank, "zeros", "noise")
	decodeBoshEnv(f.Get("bosh"), &e.Bosh)
	f.Done(jsontree.Tolerate)
}

// oneOf warns of an unknown value. It is no error, because a machine that never uses it must still
// start: a disk action refuses it or uses the default.
func oneOf(v jsontree.Value, got string, known ...string) {
	if got == "" || slices.Contains(known, got) {
		return
	}
	var quoted []string
	for _, k := range known {
		quoted = append(quoted, strconv.Quote(k))
	}
	v.Warnf("expected %s", strings.Join(quoted, " or "))
}

func decodeBoshEnv(v jsontree.Value, b *BoshEnv) {
	f := v.Fields()
	decodeSecret(f.Get("password"), &b.Password)
	f.Get("keep_root_password").Bool(&b.KeepRootPassword)
	f.Get("remove_dev_tools").Bool(&b.RemoveDevTools)
	f.Get("remove_static_libraries").Bool(&b.RemoveStaticLibraries)
	f.Get("authorized_keys").Strings(&b.AuthorizedKeys)
	if n, ok := wholeNumber(f.Get("swap_size"), 0); ok {
		size := uint64(n)
		b.SwapSizeMiB = &size
	}
	b.Mbus = decodeBus(f.Get("mbus"))
	b.Blobstores = decodeBlobstores(f.Get("blobstores"))
	f.Get("ntp").Strings(&b.NTP)
	ipv6 := f.Get("ipv6").Fields()
	ipv6.Get("enable").Bool(&b.IPv6Enable)
	ipv6.Done(jsontree.Tolerate)
	job := f.Get("job_dir").Fields()
	job.Get("tmpfs").Bool(&b.JobDirTmpfs)
	decodeSize(job.Get("tmpfs_size"), &b.JobDirTmpfsSize)
	job.Done(jsontree.Tolerate)
	run := f.Get("run_dir").Fields()
	decodeSize(run.Get("tmpfs_size"), &b.RunDirTmpfsSize)
	run.Done(jsontree.Tolerate)
	agent := f.Get("agent").Fields()
	if n, ok := wholeNumber(agent.Get("task_answer_hold"), 0); ok {
		seconds := uint64(n)
		b.TaskAnswerHoldSeconds = &seconds
	}
	b.EarlyPings, b.Firewall = decodeSwitch(agent.Get("early_pings")), decodeSwitch(agent.Get("firewall"))
	foreign := agent.Get("persistent_disk_foreign")
	foreign.Text(&b.PersistentDiskForeign)
	oneOf(foreign, b.PersistentDiskForeign, "refuse", "format")
	settings := agent.Get("settings").Fields()
	settings.Get("tmpfs").Bool(&b.SettingsTmpfs)
	settings.Done(jsontree.Tolerate)
	agent.Done(jsontree.Tolerate)
	b.Parallel = defaultParallel
	parallel := f.Get("parallel")
	if n, ok := wholeNumber(parallel, math.MinInt32); ok {
		b.Parallel = int(min(n, math.MaxInt32))
		if n < 1 {
			parallel.Warnf("at least one worker is needed; 1 is used")
			b.Parallel = 1
		}
	}
	f.Done(jsontree.Tolerate)
}

// wholeNumber reads a whole number not below least, written as 2048, 2048.0 or "2048".
func wholeNumber(v jsontree.Value, least int64) (int64, bool) {
	if !v.Present() {
		return 0, false
	}
	if k := v.Kind(); k != jsontree.Number && k != jsontree.String {
		v.Expected("a whole number")
		return 0, false
	}
	n, err := strconv.ParseInt(integral(v.Node().Text), 10, 64)
	switch {
	case err != nil:
		v.Errorf("expected a whole number")
	case n < least:
		v.Errorf("expected a whole number of at least %d", least)
	default:
		return n, true
	}
	return 0, false
}

// integral writes a number without fraction or exponent where it has none in value, so that
// 2048.0 and 2.048e3 read as 2048; anything else is returned as it is.
func integral(number string) string {
	if !strings.ContainsAny(number, ".eE") {
		return strings.TrimSpace(number)
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<53 {
		return number
	}
	return strconv.FormatInt(int64(f), 10)
}

// scalar reads a string, or a number as the string that upstream wants.
func scalar(v jsontree.Value, into *string) {
	v.Scalar(into)
	if v.Kind() == jsontree.Number {
		*into = integral(*into)
	}
}

func decodeSize(v jsontree.Value, into *string) {
	scalar(v, into)
	digits := strings.TrimRight(*into, "kKmMgG%")
	if _, err := strconv.ParseUint(digits, 10, 64); *into != "" && (err != nil || len(*into)-len(digits) > 1) {
		v.Warnf("expected a tmpfs size such as \"100m\"")
	}
}

// Validate reports what is wrong with a document, for its author. It is Decode, but also accepts what
// sources may answer instead of settings: a pointer to a registry.
func Validate(name string, raw secret.JSON) report.Report {
	s, rep := Decode(name, raw)
	endpoint := s.root().At("registry").At("endpoint")
	if endpoint.Kind() != jsontree.String || endpoint.Node().Text == "" {
		return rep
	}
	switch id := s.root().At("agent_id"); id.Kind() {
	case jsontree.Absent, jsontree.Null, jsontree.String:
		for i, e := range rep.Entries {
			if e.Path == "agent_id" && e.Severity == report.Error {
				rep.Entries[i].Severity = report.Warning
				rep.Entries[i].Message = "missing; this is a pointer to a registry, which has the settings"
			}
		}
	}
	return rep
}
