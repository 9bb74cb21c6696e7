package lab

import (
	"strings"
	"testing"
)

func TestFillPaths(t *testing.T) {
	paths := map[string]string{"ephemeral": "/dev/loop1", "disk-1": "/dev/loop2"}
	for document, want := range map[string]string{
		`{"disks":{"ephemeral":"@ephemeral@","persistent":{"d":"@disk-1@"}}}`: `{"disks":{"ephemeral":"/dev/loop1","persistent":{"d":"/dev/loop2"}}}`,
		`{"mail":"a@b","x":"@other@"}`:                                        `{"mail":"a@b","x":"@other@"}`,
	} {
		if got, err := FillPaths([]byte(document), paths); err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v; want %s", document, got, err, want)
		}
	}
	if _, err := FillPaths([]byte(`"@disk-2@ @disk-2@ @disk-3@"`), paths); err == nil ||
		strings.Count(err.Error(), "@disk-2@") != 1 || !strings.Contains(err.Error(), "@disk-3@") {
		t.Errorf("disks that are not there: got %v, want both named once", err)
	}
}

func TestAddressesAreReused(t *testing.T) {
	l := &Lab{machines: map[string]*Instance{}}
	take := func(name string) (*Instance, error) {
		i := &Instance{lab: l}
		return i, l.register(i, name)
	}
	for n, want := range []string{"10.88.0.10", "10.88.0.11"} {
		if i, err := take(""); err != nil || i.IP != want {
			t.Errorf("machine %d: got %s, %v; want %s", n, i.IP, err, want)
		}
	}
	delete(l.machines, "vm1")
	if i, err := take("again"); err != nil || i.IP != "10.88.0.10" {
		t.Errorf("after a deletion: got %s, %v; want the free address", i.IP, err)
	}
	if _, err := take("again"); err == nil {
		t.Error("a second machine of that name is accepted")
	}
	if _, err := take("UPPER"); err == nil {
		t.Error("a name that is invalid is accepted")
	}
	for range lastHost - firstHost - 1 {
		if _, err := take(""); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := take(""); err == nil || !strings.Contains(err.Error(), "no free address") {
		t.Errorf("a full network: got %v", err)
	}
}
