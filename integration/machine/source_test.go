//go:build machine

package machine

import (
	"fmt"
	"testing"

	"cambium/lab"
)

// TestMachineSources boots a machine from every kind of settings delivery.
func TestMachineSources(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for _, source := range lab.Sources() {
		t.Run(string(source), func(t *testing.T) {
			i := start(t, l, lab.VM{Source: source, Ephemeral: lab.GiB * 2})
			defer remove(t, i)
			ready(t, i)
		})
	}
}

// TestMachineVersions boots with the newest CPI API and with the next older one; TestNightlyVersions has the whole table.
func TestMachineVersions(t *testing.T) {
	t.Parallel()
	bootVersions(t, lab.Versions{Director: 2, CPI: 2, Stemcell: 2}, lab.Versions{Director: 2, CPI: 2, Stemcell: 1})
}

// bootVersions: only when Director, CPI and stemcell all speak version 2 are the settings in user data.
func bootVersions(t *testing.T, versions ...lab.Versions) {
	l := newLab(t)
	for _, v := range versions {
		t.Run(fmt.Sprintf("director %d, CPI %d, stemcell %d", v.Director, v.CPI, v.Stemcell), func(t *testing.T) {
			i := start(t, l, lab.VM{Source: lab.HTTP, Versions: v, Ephemeral: lab.GiB * 2})
			defer remove(t, i)
			ready(t, i)
			asked := l.Registry.Requests(i.Name()) > 0
			if want := v.Director+v.CPI+v.Stemcell < 6; asked != want {
				t.Errorf("the agent asked the registry: %v, want %v", asked, want)
			}
		})
	}
}

// remove makes room for the next machine; the lab would remove it in the end anyway.
func remove(t *testing.T, i *lab.Instance) {
	t.Helper()
	if t.Failed() {
		return // kept for its console and journal
	}
	if err := i.Delete(t.Context()); err != nil {
		t.Error(err)
	}
}
