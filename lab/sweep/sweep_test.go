package sweep

import "testing"

func TestBelongs(t *testing.T) {
	lab := Remains{Name: "cambium-a", Holds: func(argument string) bool { return argument == "lab-of-a" }}
	iaas := Remains{Name: "iaas-a", Visitors: true}
	for _, c := range []struct {
		of      Remains
		cmdline string
		want    bool
	}{
		{lab, "systemd-nspawn\x00--machine=cambium-a.vm1\x00", true},
		{lab, "systemd-nspawn\x00--machine=cambium-ab.vm1\x00", false},
		{lab, "lab\x00supervise\x00lab-of-a\x00", true},
		{lab, "vi\x00cambium-a.vm1\x00", false},
		{iaas, "qemu-system-x86_64\x00-name\x00iaas-a.vm-1\x00", true},
		{iaas, "qemu-system-x86_64\x00-name\x00iaas-b.vm-1\x00", false},
		{iaas, "bosh\x00create-env\x00", false},
	} {
		if got := c.of.belongs(c.cmdline); got != c.want {
			t.Errorf("%q of %s: got %v, want %v", c.cmdline, c.of.Name, got, c.want)
		}
	}
}

func TestGrouped(t *testing.T) {
	r := Remains{Name: "iaas-a"}
	for groups, want := range map[string]bool{
		"0::/iaas-a.vm-1/init.scope\n":                                true,
		"1:name=systemd:/iaas-a.vm-1\n0::/\n":                         true,
		"0::/system.slice/iaas-a.vm-1.scope/payload/system.slice/x\n": true,
		"0::/iaas-ab.vm-1\n":                                          false,
		"0::/user.slice\n":                                            false,
	} {
		if got := r.grouped(groups); got != want {
			t.Errorf("%q: got %v, want %v", groups, got, want)
		}
	}
}
