package main

import (
	"testing"
	"time"
)

func TestDescribeReboot(t *testing.T) {
	began := time.Date(2026, 11, 18, 10, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name string
		seen time.Time
		why  string
		want string
	}{
		{"requested", began.Add(-12 * time.Second), "requested (reboot) by vcap (sudo reboot)",
			"2026-11-18T10:00:00Z, requested (reboot) by vcap (sudo reboot); last seen 12s before"},
		{"power cut", began.Add(-time.Hour), "",
			"2026-11-18T10:00:00Z, nothing was written before it: the power was cut, or the machine was reset; last seen 1h0m0s before"},
		{"a clock that was behind", began.Add(time.Hour), "the watchdog reset the machine",
			"2026-11-18T10:00:00Z, the watchdog reset the machine"},
		{"nothing known", time.Time{}, "the watchdog reset the machine",
			"2026-11-18T10:00:00Z, the watchdog reset the machine"},
	} {
		if got := describeReboot(began, c.seen, c.why); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestListed(t *testing.T) {
	for want, c := range map[string][2][]string{
		"disks: none":                        {},
		"disks: mounted a, b":                {{"b", "a"}},
		"disks: not mounted c":               {nil, {"c"}},
		"disks: mounted a, not mounted b, c": {{"a"}, {"c", "b"}},
	} {
		if got := listed("disks", "mounted", c[0], "not mounted", c[1]); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
