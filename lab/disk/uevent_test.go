package disk

import "testing"

func TestParseEvent(t *testing.T) {
	message := "add@/devices/virtual/block/loop3/loop3p1\x00ACTION=add\x00DEVPATH=/devices/virtual/block/loop3/loop3p1\x00" +
		"SUBSYSTEM=block\x00MAJOR=259\x00MINOR=4\x00DEVNAME=loop3p1\x00DEVTYPE=partition\x00SEQNUM=812\x00"
	got, ok := parseEvent([]byte(message))
	want := Event{Action: "add", Name: "loop3p1", Major: 259, Minor: 4}
	if !ok || got != want {
		t.Errorf("parseEvent = %+v, %v, want %+v, true", got, ok, want)
	}
	for _, other := range []string{"", "add@/x", "ACTION=add\x00SUBSYSTEM=net\x00DEVNAME=a\x00MAJOR=1\x00MINOR=1",
		"SUBSYSTEM=block\x00DEVNAME=a\x00MAJOR=x\x00MINOR=1"} {
		if e, ok := parseEvent([]byte(other)); ok {
			t.Errorf("parseEvent(%q) = %+v, true, want false", other, e)
		}
	}
}
