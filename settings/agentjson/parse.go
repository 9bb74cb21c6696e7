package agentjson

import (
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"cambium/internal/jsontree"
	"cambium/internal/report"
	"cambium/internal/secret"
)

// Load reads and parses a file. The error is about reading; what is wrong inside is in the
// report.
func Load(path string) (Config, report.Report, error) {
	file, err := os.Open(path)
	if err != nil {
		return Config{}, report.Report{}, fmt.Errorf("read agent.json: %w", err)
	}
	defer func() { _ = file.Close() }() // only read from
	data, err := io.ReadAll(io.LimitReader(file, jsontree.MaxSize+1))
	if err != nil {
		return Config{}, report.Report{}, fmt.Errorf("read agent.json: %w", err)
	}
	config, rep := Parse(path, data)
	return config, rep, nil
}

// Parse decodes a document and reports all that is wrong with it. The Config is usable when
// the report has no errors.
func Parse(name string, data []byte) (Config, report.Report) {
	var (
		c   Config
		rep report.Report
	)
	root := jsontree.Parse(name, data, &rep)
	if root.Kind() == jsontree.Absent {
		return c, rep
	}
	if root.Kind() != jsontree.Object {
		root.Expected("an object")
		return c, rep
	}
	f := root.Fields()
	platform := f.Get("Platform").Fields()
	c.Platform.Linux = linux(platform.Get("Linux"))
	windows := platform.Get("Windows").Fields()
	windows.Get("EnableEphemeralDiskMounting").Bool(&c.Platform.Windows.EnableEphemeralDiskMounting)
	windows.Done(jsontree.Warn)
	platform.Done(jsontree.Warn)

	infrastructure := f.Get("Infrastructure").Fields()
	// Two keys of early 2015 that some old files still carry; they never had an effect since.
	infrastructure.Get("NetworkingType").Text(new(string))
	infrastructure.Get("StaticEphemeralDiskPath").Text(new(string))
	settings := infrastructure.Get("Settings").Fields()
	settings.Get("UseRegistry").Bool(&c.Infrastructure.Settings.UseRegistry)
	settings.Get("UseServerName").Bool(&c.Infrastructure.Settings.UseServerName)
	sources := settings.Get("Sources")
	for _, item := range sources.Items() {
		c.Infrastructure.Settings.Sources = append(c.Infrastructure.Settings.Sources, source(item))
	}
	if wrongKind := sources.Present() && sources.Kind() != jsontree.List; !wrongKind && len(c.Infrastructure.Settings.Sources) == 0 {
		sources.Errorf("at least one source is needed")
	}
	settings.Done(jsontree.Warn)
	infrastructure.Done(jsontree.Warn)
	f.Done(jsontree.Warn)
	rep.Sort()
	return c, rep
}

func linux(v jsontree.Value) (l Linux) {
	f := v.Fields()
	f.Get("UseDefaultTmpDir").Bool(&l.UseDefaultTmpDir)
	f.Get("UsePreformattedPersistentDisk").Bool(&l.UsePreformattedPersistentDisk)
	f.Get("BindMountPersistentDisk").Bool(&l.BindMountPersistentDisk)
	f.Get("CreatePartitionIfNoEphemeralDisk").Bool(&l.CreatePartitionIfNoEphemeralDisk)
	f.Get("SkipDiskSetup").Bool(&l.SkipDiskSetup)
	f.Get("UseMonitIptablesFirewall").Bool(&l.UseMonitIptablesFirewall)
	choice(f.Get("DevicePathResolutionType"), &l.DevicePathResolutionType, "", "virtio", "scsi", "iscsi")
	choice(f.Get("PartitionerType"), &l.PartitionerType, "", "parted", "sfdisk")
	f.Get("ServiceManager").Text(&l.ServiceManager)
	pattern := f.Get("DiskIDTransformPattern")
	pattern.Text(&l.DiskIDTransformPattern)
	if _, err := regexp.Compile(l.DiskIDTransformPattern); err != nil {
		pattern.Errorf("not a valid regular expression (RE2 syntax)")
	}
	f.Get("DiskIDTransformReplacement").Text(&l.DiskIDTransformReplacement)
	f.Get("LunDeviceSymlinkPath").Text(&l.LunDeviceSymlinkPath)
	glob(f.Get("InstanceStorageManagedVolumePattern"), &l.InstanceStorageManagedVolumePattern)
	glob(f.Get("InstanceStorageDevicePattern"), &l.InstanceStorageDevicePattern)
	choice(f.Get("ForeignPersistentDisk"), &l.ForeignPersistentDisk, foreignRefuse, foreignFormat)
	choice(f.Get("BlankDisks"), &l.BlankDisks, blankZeros, blankNoise)
	choice(f.Get("MissingEphemeralDisk"), &l.MissingEphemeralDisk, missingFail, missingRoot)
	seconds(f.Get("TaskAnswerHold"), &l.TaskAnswerHold, DefaultTaskAnswerHold)
	l.EarlyPings, l.Firewall = true, true
	f.Get("EarlyPings").Bool(&l.EarlyPings)
	f.Get("Firewall").Bool(&l.Firewall)
	// Options that shipped stemcells still carry although nothing has read them for years.
	for _, legacy := range LegacyLinux() {
		f.Get(legacy)
	}
	f.Done(jsontree.Warn)
	return l
}

// LegacyLinux lists the keys of Platform.Linux that are accepted and have no effect.
func LegacyLinux() []string {
	return []string{"VirtioDevicePrefix", "ScrubEphemeralDisk", "StripVolumeRegex", "DNSResolverType"}
}

// choice reads one of a few values; the first is the default.
func choice(v jsontree.Value, into *string, values ...string) {
	*into = values[0]
	var got string
	v.Text(&got)
	switch {
	case v.Kind() != jsontree.String:
	case slices.Contains(values, got):
		*into = got
	default:
		quoted := make([]string, len(values))
		for i, value := range values {
			quoted[i] = fmt.Sprintf("%q", value)
		}
		v.Errorf("expected one of %s", strings.Join(quoted, ", "))
	}
}

// seconds reads a whole number of seconds of at most the default.
func seconds(v jsontree.Value, into *time.Duration, byDefault time.Duration) {
	*into = byDefault
	if !v.Present() {
		return
	}
	var text string
	v.Scalar(&text)
	n, err := strconv.Atoi(text)
	got := time.Duration(n) * time.Second
	if err != nil || v.Kind() != jsontree.Number || got < 0 || got > byDefault {
		v.Errorf("expected a whole number of seconds from 0 to %d", int(byDefault.Seconds()))
		return
	}
	*into = got
}

func glob(v jsontree.Value, into *string) {
	v.Text(into)
	if _, err := path.Match(*into, ""); err != nil {
		v.Errorf("not a valid file name pattern")
	}
}

// option is one option of a source: where it is stored and which types read it.
type option struct {
	key      string
	read     func(jsontree.Value, *Source)
	set      func(Source) bool
	types    []string // that use it
	required []string // that cannot work without it
}

func text(field func(*Source) *string) (func(jsontree.Value, *Source), func(Source) bool) {
	return func(v jsontree.Value, s *Source) { v.Text(field(s)) }, func(s Source) bool { return *field(&s) != "" }
}

func options() []option {
	o := func(key string, field func(*Source) *string, types ...string) option {
		read, set := text(field)
		return option{key: key, read: read, set: set, types: types}
	}
	needed := func(o option, types ...string) option {
		o.required = types
		return o
	}
	web := []string{HTTP, InstanceMetadata}
	userData := needed(o("UserDataPath", func(s *Source) *string { return &s.UserDataPath }, HTTP, ConfigDrive, File), ConfigDrive)
	userData.set = func(s Source) bool { return s.UserDataPath != "" || s.SettingsPath != "" }
	return []option{
		{key: "URI", read: readURI, set: func(s Source) bool { return !s.URI.Empty() }, types: web, required: web},
		{key: "Headers", read: readHeaders, set: func(s Source) bool { return len(s.Headers) > 0 }, types: web},
		userData,
		o("InstanceIDPath", func(s *Source) *string { return &s.InstanceIDPath }, HTTP),
		o("SSHKeysPath", func(s *Source) *string { return &s.SSHKeysPath }, HTTP),
		o("TokenPath", func(s *Source) *string { return &s.TokenPath }, HTTP),
		needed(o("SettingsPath", func(s *Source) *string { return &s.SettingsPath }, InstanceMetadata, ConfigDrive, File), InstanceMetadata, File),
		{key: "DiskPaths", read: func(v jsontree.Value, s *Source) { v.Strings(&s.DiskPaths) },
			set: func(s Source) bool { return len(s.DiskPaths) > 0 }, types: []string{ConfigDrive}, required: []string{ConfigDrive}},
		o("MetaDataPath", func(s *Source) *string { return &s.MetaDataPath }, ConfigDrive, File),
		needed(o("FileName", func(s *Source) *string { return &s.FileName }, CDROM), CDROM),
		o("RpcToolPath", func(s *Source) *string { return &s.RpcToolPath }, VsphereGuestInfo),
		o("VmToolsdPath", func(s *Source) *string { return &s.VmToolsdPath }, VsphereGuestInfo),
	}
}

// source decodes one member of Sources. Keys are matched without regard to case, Type alone
// exactly, as upstream does.
func source(v jsontree.Value) (s Source) {
	if v.Kind() != jsontree.Object {
		v.Expected("an object")
		return s
	}
	f := v.Fields()
	kind := f.GetExact("Type")
	kind.Text(&s.Type)
	typed := slices.Contains(Types(), s.Type)
	switch {
	case !kind.Present():
		kind.Errorf("missing; expected one of %s", strings.Join(Types(), ", "))
	case kind.Kind() == jsontree.String && !typed:
		kind.Errorf("unknown source type; expected one of %s", strings.Join(Types(), ", "))
	}
	all := options()
	members := make([]jsontree.Value, len(all))
	for i, o := range all {
		members[i] = f.Get(o.key)
		o.read(members[i], &s)
	}
	for i, o := range all {
		member := members[i]
		switch {
		case !typed:
		case slices.Contains(o.required, s.Type) && !o.set(s) && (!member.Present() || wellTyped(member)):
			member.Errorf("needed by a source of type %s", s.Type)
		case member.Present() && !slices.Contains(o.types, s.Type):
			member.Warnf("has no effect in a source of type %s", s.Type)
		}
	}
	f.Done(jsontree.Warn)
	return s
}

// wellTyped reports a member whose emptiness is the problem, not its kind, which would have
// been reported already.
func wellTyped(v jsontree.Value) bool {
	return v.Kind() == jsontree.String || v.Kind() == jsontree.List && len(v.Node().Items) == 0
}

func readURI(v jsontree.Value, s *Source) {
	var raw string
	v.Text(&raw)
	s.URI = secret.NewURL(raw)
	if raw == "" {
		return
	}
	parsed, err := url.Parse(raw)
	switch {
	case err != nil:
		v.Errorf("not a valid URI")
	case parsed.Scheme != "http" && parsed.Scheme != "https":
		v.Errorf("expected an http or https URI")
	case parsed.Host == "":
		v.Errorf("the URI names no host")
	}
}

func readHeaders(v jsontree.Value, s *Source) {
	if !v.Present() {
		return
	}
	s.Headers = map[string]secret.String{}
	for name, value := range v.Fields().All() {
		var text string
		value.Text(&text)
		s.Headers[name] = secret.New(text)
		if !headerName(name) || strings.ContainsAny(text, "\r\n\x00") {
			value.Errorf("not a valid HTTP header")
		}
	}
}

func headerName(name string) bool {
	for _, r := range name {
		if r <= ' ' || r >= 0x7f || strings.ContainsRune(`()<>@,;:\"/[]?={}`, r) {
			return false
		}
	}
	return name != ""
}
