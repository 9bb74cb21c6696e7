package settings

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"cambium/internal/jsondoc"
	"cambium/internal/report"
)

// The rules convert what CPIs and manifests write to what this agent and cloudfoundry/bosh-agent can decode, such as
// numbers in place of strings, strings in place of numbers, and other forms of disks. They also apply to the cached
// copy, so that either agent can read it.

// rewrite converts the raw JSON of a member, and reports problems through say.
type rewrite = func(raw string, say func(report.Severity, string)) string

const null = "null"

func documentRules() []jsondoc.Rule {
	rules := []jsondoc.Rule{
		{Path: "disks.system", Rewrite: systemDisk},
		{Path: "disks.ephemeral", Rewrite: hint},
		{Path: "disks.persistent.*", Rewrite: hint},
		{Path: "disks.raw_ephemeral.*", Rewrite: rawDisk},
		{Path: "env.bosh.swap_size", Rewrite: wholeNumber(0)},
		{Path: "env.bosh.agent.task_answer_hold", Rewrite: wholeNumber(0)},
		{Path: "env.bosh.parallel", Rewrite: workers},
		{Path: "env.bosh.job_dir.tmpfs_size", Rewrite: text},
		{Path: "env.bosh.run_dir.tmpfs_size", Rewrite: text},
		{Path: "blobstore.options", Rewrite: object},
		{Path: "env.bosh.blobstores.*.options", Rewrite: object},
	}
	return slices.Concat(rules, hintRules("disks.ephemeral."), hintRules("disks.persistent.*."),
		recordRules("disks.raw_ephemeral.*."), networkRules("networks.*."))
}

func hintRules(at string) []jsondoc.Rule {
	return slices.Concat([]jsondoc.Rule{{Path: at + "iscsi_settings", Rewrite: iscsi}},
		texts(at, "path", "volume_id", "id", "lun", "host_device_id"),
		texts(at+"iscsi_settings.", "initiator_name", "username", "target", "password"))
}

// recordRules returns the rules for a disk in persistent_disk_hints.json, whose keys differ.
func recordRules(at string) []jsondoc.Rule {
	return slices.Concat([]jsondoc.Rule{
		{Path: at + "device_id", Key: "DeviceID", Rewrite: text},
		{Path: at + "volume_id", Key: "VolumeID", Rewrite: text},
		{Path: at + "host_device_id", Key: "HostDeviceID", Rewrite: text},
	}, texts(at, "ID", "DeviceID", "VolumeID", "Lun", "HostDeviceID", "Path", "FileSystemType", "Partitioner"),
		texts(at+"ISCSISettings.", "InitiatorName", "Username", "Target", "Password"))
}

func networkRules(at string) []jsondoc.Rule {
	return []jsondoc.Rule{{Path: at + "prefix", Rewrite: text}, {Path: at + "mac", Rewrite: lowerCase}}
}

func texts(at string, keys ...string) (rules []jsondoc.Rule) {
	for _, key := range keys {
		rules = append(rules, jsondoc.Rule{Path: at + key, Rewrite: text})
	}
	return rules
}

// text converts a number to a string, and null to an empty one: cloudfoundry/bosh-agent fails if a member of a disk is
// null.
func text(raw string, say func(report.Severity, string)) string {
	switch kind := jsondoc.KindOf(raw); kind {
	case jsondoc.String:
		return raw
	case jsondoc.Number:
		return quoted(integral(raw))
	case jsondoc.Null:
		return quoted("")
	default:
		say(report.Error, "expected a string, got "+kind.String())
		return null
	}
}

func quoted(s string) string {
	raw, _ := json.Marshal(s) // cannot fail for a string
	return string(raw)
}

// lowerCase converts a MAC address: the kernel reports lower case, and upstream compares byte for byte.
func lowerCase(raw string, _ func(report.Severity, string)) string {
	var s string
	if json.Unmarshal([]byte(raw), &s) != nil || s == strings.ToLower(s) {
		return raw
	}
	return quoted(strings.ToLower(s))
}

// wholeNumber accepts 2048, 2048.0 and "2048", but no number below least.
func wholeNumber(least int64) rewrite {
	return func(raw string, say func(report.Severity, string)) string {
		digits := raw
		switch kind := jsondoc.KindOf(raw); kind {
		case jsondoc.Null:
			return raw
		case jsondoc.String:
			_ = json.Unmarshal([]byte(raw), &digits) // a string
		case jsondoc.Number:
		default:
			say(report.Error, "expected a whole number, got "+kind.String())
			return null
		}
		n, err := strconv.ParseInt(integral(digits), 10, 64)
		switch {
		case err != nil:
			say(report.Error, "expected a whole number")
			return null
		case n < least:
			say(report.Error, fmt.Sprintf("expected a whole number of at least %d", least))
			return null
		}
		return strconv.FormatInt(n, 10)
	}
}

// workers raises numbers below 1 to 1: cloudfoundry/bosh-agent reads 0 as no workers and exits on a negative number.
func workers(raw string, say func(report.Severity, string)) string {
	raw = wholeNumber(math.MinInt32)(raw, say)
	n, err := strconv.ParseInt(raw, 10, 64)
	if err != nil {
		return raw // null
	}
	if n < 1 {
		say(report.Warning, "at least one worker is needed; using 1")
	}
	return strconv.FormatInt(min(max(n, 1), math.MaxInt32), 10)
}

// integral writes a whole number without fraction and exponent: 2048.0 and 2.048e3 become 2048. Other text is returned
// unchanged.
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

// object accepts only objects whose numbers are in range: cloudfoundry/bosh-agent decodes all of them.
func object(raw string, say func(report.Severity, string)) string {
	switch kind := jsondoc.KindOf(raw); {
	case kind == jsondoc.Null:
	case kind != jsondoc.Object:
		say(report.Error, "expected an object, got "+kind.String())
		return null
	case json.Unmarshal([]byte(raw), new(any)) != nil:
		say(report.Error, "contains a number that is out of range")
		return null
	}
	return raw
}

// systemDisk accepts the object shown in the documentation of CPI API v2, where upstream expects a string.
func systemDisk(raw string, say func(report.Severity, string)) string {
	if jsondoc.KindOf(raw) != jsondoc.Object {
		return text(raw, say)
	}
	path := struct{ Path json.RawMessage }{json.RawMessage(null)}
	_ = json.Unmarshal([]byte(raw), &path) // an object
	return text(string(path.Path), say)
}

// hint accepts numbers for strings. Like upstream, it reads lists and booleans as an empty hint.
func hint(raw string, say func(report.Severity, string)) string {
	switch kind := jsondoc.KindOf(raw); kind {
	case jsondoc.Object:
		return object(raw, say)
	case jsondoc.Number:
		return text(raw, say)
	case jsondoc.List, jsondoc.Bool:
		say(report.Warning, "expected a string or an object, got "+kind.String()+"; taken as an empty hint")
		return null
	}
	return raw
}

func iscsi(raw string, say func(report.Severity, string)) string {
	if kind := jsondoc.KindOf(raw); kind != jsondoc.Object && kind != jsondoc.Null {
		say(report.Warning, "expected an object, got "+kind.String()+"; ignored")
		return null
	}
	return raw
}

// rawDisk also accepts a path, where upstream expects an object.
func rawDisk(raw string, say func(report.Severity, string)) string {
	if jsondoc.KindOf(raw) == jsondoc.Object {
		return raw
	}
	if raw = hint(raw, say); raw == null {
		return raw
	}
	return fmt.Sprintf(`{"VolumeID":%[1]s,"Path":%[1]s}`, raw)
}
