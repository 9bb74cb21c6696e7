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

	"cambium/internal/jsondoc"
	"cambium/internal/report"
)

// Load reads and parses a file. It returns an error only if the file cannot be read; the report lists what is wrong
// with its content.
func Load(path string) (Config, report.Report, error) {
	file, err := os.Open(path)
	if err != nil {
		return Config{}, report.Report{}, fmt.Errorf("read agent.json: %w", err)
	}
	defer func() { _ = file.Close() }() // only read from
	data, err := io.ReadAll(io.LimitReader(file, jsondoc.MaxSize+1))
	if err != nil {
		return Config{}, report.Report{}, fmt.Errorf("read agent.json: %w", err)
	}
	config, rep := Parse(path, data)
	return config, rep, nil
}

// Parse decodes a document and reports all its mistakes. The Config is usable if the report has no errors.
func Parse(name string, data []byte) (Config, report.Report) {
	var c Config
	c.Platform.Linux = Linux{ForeignPersistentDisk: foreignRefuse, BlankDisks: blankZeros,
		MissingEphemeralDisk: missingFail, TaskAnswerHold: DefaultTaskAnswerHold, EarlyPings: true, Firewall: true,
		MetadataAccess: metadataAll}
	d, _ := jsondoc.Decode(name, data, &c, jsondoc.Warn,
		jsondoc.Rule{Path: "Platform.Linux.TaskAnswerHold", Rewrite: nanoseconds})
	c.Platform.Linux.check(d)
	sources := c.Infrastructure.Settings.Sources
	for i := range sources {
		sources[i].check(d, "Infrastructure.Settings.Sources"+jsondoc.Item(i))
	}
	if len(sources) == 0 {
		d.Errorf("Infrastructure.Settings.Sources", "at least one source is needed")
	}
	return c, d.Findings()
}

// nanoseconds converts a whole number of seconds, at most the default, to a time.Duration.
func nanoseconds(raw string, say func(report.Severity, string)) string {
	if jsondoc.KindOf(raw) == jsondoc.Null {
		return raw
	}
	n, err := strconv.Atoi(raw)
	if most := int(DefaultTaskAnswerHold.Seconds()); err != nil || n < 0 || n > most {
		say(report.Error, fmt.Sprintf("expected a whole number of seconds from 0 to %d", most))
		return "null"
	}
	return strconv.FormatInt(int64(n)*int64(time.Second), 10)
}

func (l Linux) check(d *jsondoc.Document) {
	choice := func(key, got string, values ...string) {
		if !slices.Contains(values, got) {
			d.Errorf("Platform.Linux."+key, `expected one of "%s"`, strings.Join(values, `", "`))
		}
	}
	choice("DevicePathResolutionType", l.DevicePathResolutionType, "", "virtio", "scsi", "iscsi")
	choice("PartitionerType", l.PartitionerType, "", "parted", "sfdisk")
	choice("ForeignPersistentDisk", l.ForeignPersistentDisk, foreignRefuse, foreignFormat)
	choice("BlankDisks", l.BlankDisks, blankZeros, blankNoise)
	choice("MissingEphemeralDisk", l.MissingEphemeralDisk, missingFail, missingRoot)
	if p := l.VerdictPort; p != "" && (p != path.Clean(p) || !strings.HasPrefix(p, "/dev/")) {
		d.Errorf("Platform.Linux.VerdictPort", "expected the path of a device below /dev")
	}
	choice("MetadataAccess", l.MetadataAccess, metadataAll, MetadataRoot)
	if _, err := regexp.Compile(l.DiskIDTransformPattern); err != nil {
		d.Errorf("Platform.Linux.DiskIDTransformPattern", "not a valid regular expression (RE2 syntax)")
	}
	glob := func(key, pattern string) {
		if _, err := path.Match(pattern, ""); err != nil {
			d.Errorf("Platform.Linux."+key, "not a valid file name pattern")
		}
	}
	glob("InstanceStorageManagedVolumePattern", l.InstanceStorageManagedVolumePattern)
	glob("InstanceStorageDevicePattern", l.InstanceStorageDevicePattern)
}

func (s *Source) check(d *jsondoc.Document, at string) {
	s.checkURI(d, at+".URI")
	for name, value := range s.Headers {
		if !headerName(name) || strings.ContainsAny(value.Reveal(), "\r\n\x00") {
			d.Errorf(at+".Headers"+jsondoc.Key(name), "not a valid HTTP header")
		}
	}
	switch {
	case s.Type == "":
		d.Errorf(at+".Type", "missing; expected one of %s", strings.Join(Types(), ", "))
		return
	case !slices.Contains(Types(), s.Type):
		d.Errorf(at+".Type", "unknown source type; expected one of %s", strings.Join(Types(), ", "))
		return
	}
	for _, o := range s.options() {
		switch {
		case !o.set && slices.Contains(o.required, s.Type):
			d.Errorf(at+"."+o.key, "required by a source of type %s", s.Type)
		case o.set && !slices.Contains(o.types, s.Type):
			d.Warnf(at+"."+o.key, "has no effect in a source of type %s", s.Type)
		}
	}
	if s.Type == ConfigDrive && s.UserDataPath == "" && s.SettingsPath == "" {
		d.Errorf(at+".UserDataPath", "required by a source of type %s", s.Type)
	}
}

func (s *Source) checkURI(d *jsondoc.Document, at string) {
	if s.URI.Empty() {
		return
	}
	parsed, err := url.Parse(s.URI.Reveal())
	switch {
	case err != nil:
		d.Errorf(at, "not a valid URI")
	case parsed.Scheme != "http" && parsed.Scheme != "https":
		d.Errorf(at, "expected an http or https URI")
	case parsed.Host == "":
		d.Errorf(at, "the URI has no host")
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
