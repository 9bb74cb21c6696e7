package agentjson

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTaskAnswerHold(t *testing.T) {
	parse := func(hold string) (time.Duration, error) {
		c, rep := Parse("agent.json", []byte(`{"Platform":{"Linux":{`+hold+`}},"Infrastructure":{"Settings":{"Sources":[{"Type":"CDROM","FileName":"env"}]}}}`))
		return c.Platform.Linux.TaskAnswerHold, rep.Err()
	}
	for document, want := range map[string]time.Duration{``: 2 * time.Second, `"TaskAnswerHold":0`: 0,
		`"TaskAnswerHold":1`: time.Second, `"TaskAnswerHold":null`: 2 * time.Second} {
		if got, err := parse(document); got != want || err != nil {
			t.Errorf("%s: got %s, %v; want %s", document, got, err, want)
		}
	}
	for _, document := range []string{`"TaskAnswerHold":3`, `"TaskAnswerHold":-1`, `"TaskAnswerHold":"1"`,
		`"TaskAnswerHold":0.5`, `"TaskAnswerHold":true`} {
		if _, err := parse(document); err == nil {
			t.Errorf("%s: accepted", document)
		}
	}
}

func TestEveryProblemAtOnceWithItsPlace(t *testing.T) {
	_, rep := Parse("agent.json", []byte(`{
  "platform": {"linux": {"usedefaulttmpdir": 1, "PartitionerType": "fdisk", "DiskIDTransformPattern": "(",
    "DevicePathResolutionType": "virtoi", "MissingEphemeralDisk": "root", "UsePreformatedPersistentDisk": true}},
  "Infrastructure": {"Settings": {"UseRegistry": true, "Sources": [
    {"Type": "File", "SettingsPath": "/x"},
    {"Type": "ConfigDrive", "DiskPaths": 5, "UserDataPath": "u"},
    {"Type": "Http", "URI": "http://h"},
    {"type": "CDROM", "FileName": "env"},
    {"Type": "HTTP", "URI": "ftp://user:password@h", "DiskPaths": ["a"], "Color": 1},
    {"Type": "InstanceMetadata", "URI": "http://h", "Headers": {"X": 1}}
  ]}}
}`))
	want := `agent.json:2:46: error: Platform.Linux.UseDefaultTmpDir: expected a boolean, got a number
agent.json:2:68: error: Platform.Linux.PartitionerType: expected one of "", "parted", "sfdisk"
agent.json:2:103: error: Platform.Linux.DiskIDTransformPattern: not a valid regular expression (RE2 syntax)
agent.json:3:33: error: Platform.Linux.DevicePathResolutionType: expected one of "", "virtio", "scsi", "iscsi"
agent.json:3:75: warning: Platform.Linux.UsePreformatedPersistentDisk: unknown key; did you mean UsePreformattedPersistentDisk?
agent.json:6:42: error: Infrastructure.Settings.Sources[1].DiskPaths: expected a list of strings, got a number
agent.json:7:14: error: Infrastructure.Settings.Sources[2].Type: unknown source type; expected one of TYPES
agent.json:8:5: error: Infrastructure.Settings.Sources[3].Type: missing; expected one of TYPES
agent.json:8:6: warning: Infrastructure.Settings.Sources[3].type: unknown key; did you mean Type?
agent.json:9:29: error: Infrastructure.Settings.Sources[4].URI: expected an http or https URI
agent.json:9:67: warning: Infrastructure.Settings.Sources[4].DiskPaths: has no effect in a source of type HTTP
agent.json:9:74: warning: Infrastructure.Settings.Sources[4].Color: unknown key, ignored; the nearest known key is Type
agent.json:10:5: error: Infrastructure.Settings.Sources[5].SettingsPath: required by a source of type InstanceMetadata
agent.json:10:70: error: Infrastructure.Settings.Sources[5].Headers.X: expected a string, got a number`
	want = strings.ReplaceAll(want, "TYPES", strings.Join(Types(), ", "))
	if got := rep.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestOptionsAreRemembered(t *testing.T) {
	c, rep := Parse("agent.json", []byte(`{"platform":{"LINUX":{"useDefaultTmpDir":true,"DevicePathResolutionType":"scsi","diskidtransformpattern":"^vol-(.+)$",
		"DiskIDTransformReplacement":"x-${1}","MissingEphemeralDisk":"root","VerdictPort":"/dev/ttyS1","ServiceManager":"systemd","LunDeviceSymlinkPath":null}},
		"infrastructure":{"settings":{"useRegistry":true,"useServerName":true,"sources":[
		{"Type":"HTTP","uri":"http://h:80","headers":{"X-A":"1"},"userdatapath":"/u","TokenPath":"/t","InstanceIDPath":"/i","SSHKeysPath":"/k"},
		{"Type":"ConfigDrive","diskPaths":["/dev/sr0"],"UserDataPath":"u","metadatapath":"m"},{"Type":"VsphereGuestInfo","RpcToolPath":"r","VmToolsdPath":"v"}]}}}`))
	if len(rep.Entries) != 0 {
		t.Fatal(rep)
	}
	l, s := c.Platform.Linux, c.Infrastructure.Settings
	if !l.UseDefaultTmpDir || l.DevicePathResolutionType != "scsi" || l.DiskIDTransformPattern != "^vol-(.+)$" ||
		l.MissingEphemeralDisk != missingRoot || l.VerdictPort != "/dev/ttyS1" ||
		l.ForeignPersistentDisk != foreignRefuse || l.ServiceManager != "systemd" || !s.UseRegistry || !s.UseServerName {
		t.Errorf("got %+v %+v", l, s)
	}
	http, drive, guest := s.Sources[0], s.Sources[1], s.Sources[2]
	if http.URI.Reveal() != "http://h:80" || http.Headers["X-A"].Reveal() != "1" || http.UserDataPath != "/u" ||
		http.TokenPath != "/t" || http.InstanceIDPath != "/i" || http.SSHKeysPath != "/k" {
		t.Errorf("HTTP source is %+v", http)
	}
	if len(drive.DiskPaths) != 1 || drive.MetaDataPath != "m" || guest.RpcToolPath != "r" || guest.VmToolsdPath != "v" {
		t.Errorf("sources are %+v, %+v", drive, guest)
	}
}

func TestWhatCannotWorkIsAnError(t *testing.T) {
	source := func(s string) string { return `{"Infrastructure":{"Settings":{"Sources":[` + s + `]}}}` }
	for document, want := range map[string]string{
		``:                                 "document is empty",
		`[]`:                               "expected an object, got a list",
		`{}`:                               "Infrastructure.Settings.Sources: at least one source is needed",
		`{"Infrastructure":[]}`:            "Infrastructure: expected an object, got a list",
		source(``):                         "Sources: at least one source is needed",
		source(`null`):                     "Sources[0].Type: missing",
		source(`{}`):                       "Sources[0].Type: missing",
		source(`{"Type":5}`):               "Sources[0].Type: expected a string, got a number",
		source(`{"Type":"HTTP"}`):          "Sources[0].URI: required by a source of type HTTP",
		source(`{"Type":"HTTP","URI":""}`): "Sources[0].URI: required by a source of type HTTP",
		source(`{"Type":"HTTP","URI":"http://"}`):                              "Sources[0].URI: the URI has no host",
		source(`{"Type":"HTTP","URI":"http://%zz"}`):                           "Sources[0].URI: not a valid URI",
		source(`{"Type":"HTTP","URI":"http://h","Headers":{"a b":"x"}}`):       `Sources[0].Headers["a b"]: not a valid HTTP header`,
		source(`{"Type":"HTTP","URI":"http://h","Headers":{"a":"x\ny"}}`):      "Sources[0].Headers.a: not a valid HTTP header",
		source(`{"Type":"CDROM"}`):                                             "Sources[0].FileName: required by a source of type CDROM",
		source(`{"Type":"File","SettingsPath":""}`):                            "Sources[0].SettingsPath: required by a source of type File",
		source(`{"Type":"ConfigDrive","DiskPaths":[],"UserDataPath":"u"}`):     "Sources[0].DiskPaths: required by a source of type ConfigDrive",
		source(`{"Type":"ConfigDrive","DiskPaths":["/d"],"SettingsPath":""}`):  "Sources[0].UserDataPath: required by a source of type ConfigDrive",
		`{"Platform":{"Linux":{"InstanceStorageDevicePattern":"["}}}`:          "InstanceStorageDevicePattern: not a valid file name pattern",
		`{"Platform":{"Linux":{"ForeignPersistentDisk":"wipe"}}}`:              `ForeignPersistentDisk: expected one of "refuse", "format"`,
		`{"Platform":{"Linux":{"VerdictPort":"ttyS1"}}}`:                       "VerdictPort: expected the path of a device below /dev",
		`{"Platform":{"Linux":{"VerdictPort":"/dev/../etc/passwd"}}}`:          "VerdictPort: expected the path of a device below /dev",
		`{"Infrastructure":{"Settings":{"Sources":"x","UseRegistry":"true"}}}`: "UseRegistry: expected a boolean, got a string",
	} {
		_, rep := Parse("agent.json", []byte(document))
		if !rep.Failed() || !strings.Contains(rep.String(), want) {
			t.Errorf("%s:\ngot %s\nwant %s", document, rep, want)
		}
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.json")
	if _, _, err := Load(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file gave %v", err)
	}
	if err := os.WriteFile(path, []byte(`{"Infrastructure":{"Settings":{"Sources":[{"Type":"File","SettingsPath":"/s"}]}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c, rep, err := Load(path)
	if err != nil || rep.Failed() || len(c.Infrastructure.Settings.Sources) != 1 {
		t.Errorf("got %+v, %v, %v", c, rep, err)
	}
}
