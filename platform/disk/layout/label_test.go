package layout

import "testing"

func TestWhatTablesCanAddress(t *testing.T) {
	for _, c := range []struct {
		label  Label
		end    int64
		sector int
		want   bool
	}{
		{MBR, mbrLimit, 512, true},
		{MBR, mbrLimit + 512, 512, false},
		{MBR, 8 * mbrLimit, 4096, true},
		{GPT, mbrLimit + 512, 512, true},
		{None, mbrLimit + 512, 512, true},
	} {
		if got := c.label.CanAddress(c.end, c.sector); got != c.want {
			t.Errorf("%q addresses %d with sectors of %d: %v, want %v", c.label, c.end, c.sector, got, c.want)
		}
	}
	for _, c := range []struct {
		label  Label
		sector int
		want   int64
	}{
		{MBR, 512, 100 * MiB}, {GPT, 512, 100*MiB - 33*512}, {GPT, 4096, 100*MiB - 5*4096}, {None, 512, 100 * MiB},
	} {
		if got := UsableEnd(c.label, 100*MiB+100, c.sector); got != c.want {
			t.Errorf("usable of %q with sectors of %d: %d, want %d", c.label, c.sector, got, c.want)
		}
	}
}
