package agentjson

import (
	"testing"
)

func TestEveryProblemAtOnceWithItsPlace(t *testing.T) {
	_, rep := Parse("agent.json", []byte(`{
  "platform": {"linux": {"usedefaulttmpdir": 1, "PartitionerType": "fdisk", "DiskIDTransformPattern": "(",
    "DevicePathResolutionType": "virtoi", "MissingEphemeralDisk": "root", "UsePreformatedPersistentDisk": true}},
  "Infrastructure": {"Settings": {"UseRegistry": true, "Sources": [
    {"Type": "File", "SettingsPath": "/x"},
    {"Type": "ConfigDrive", "DiskPaths": 5, "UserDataPath": "u"},
    {"Type": "Http", "URI": "http://h"},
    {"type": "CDROM", "FileName": "env"},
    {"Type": "HTTP", "URI": "ftp://user:password@h", "DiskPaths": ["a"], "Colour": 1},
    {"Type": "InstanceMetadata", "URI": "http://h", "Headers": {"X": 1}}
  ]}}
}`))
	want := `agent.json:2:46: error: Platform.Linux.UseDefaultTmpDir: expected a boolean, got a number
agent.json:2:68: error: Platform.Linux.PartitionerType: expected one of "", "parted", "sfdisk"
agent.json:2:103: error: Platform.Linux.DiskIDTransformPattern: not a valid regular expression (RE2 syntax)
agent.json:3:33: error: Platform.Linux.DevicePathResolutionType: expected one of "", "virtio", "scsi", "iscsi"
agent.json:3:75: warning: Platform.Linux.UsePreformatedPersistentDisk: unknown key; did you mean UsePreformattedPersistentDisk?
agent.json:6:42: error: Infrastructure.Settings.Sources[1].DiskPaths: expected a list of strings, got a number
agent.json:7:14: error: Infrastructure.Settings.Sources[2].Type: unknown source type; expected one of HTTP, InstanceMetadata, ConfigDrive, File, CDROM, VsphereGuestInfo
agent.json:8:5: error: Infrastructure.Settings.Sources[3].Type: missing; expected one of HTTP, InstanceMetadata, ConfigDrive, File, CDROM, VsphereGuestInfo
agent.json:8:6: warning: Infrastructure.Settings.Sources[3].type: unknown key; did you mean Type?
agent.json:9:29: error: Infrastructure.Settings.Sources[4].URI: expected an http or https URI
agent.json:9:67: warning: Infrastructure.Settings.Sources[4].DiskPaths: has no effect in a source of type HTTP
agent.json:9:74: warning: Infrastructure.Settings.Sources[4].Colour: unknown key, ignored; the nearest known key is URI
agent.json:10:5: error: Infrastructure.Settings.Sources[5].SettingsPath: needed by a source of type InstanceMetadata
agent.json:10:70: error: Infrastructure.Settings.Sources[5].Headers.X: expected a string, got a number`
	if got := rep.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
