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

// TestMachineVersions goes through the table of CPI API versions: only when Director, CPI and
// stemcell all speak version 2 are the settings in user data.
func TestMachineVersions(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for director := 1; director <= 2; director++ {
		for cpi := 1; cpi <= 2; cpi++ {
			for stemcell := 1; stemcell <= 2; stemcell++ {
				v := lab.Versions{Director: director, CPI: cpi, Stemcell: stemcell}
				t.Run(fmt.Sprintf("director %d, CPI %d, stemcell %d", director, cpi, stemcell), func(t *testing.T) {
					i := start(t, l, lab.VM{Source: lab.HTTP, Versions: v, Ephemeral: lab.GiB * 2})
					defer remove(t, i)
					ready(t, i)
					asked := l.Registry.Requests(i.Name()) > 0
					if want := director+cpi+stemcell < 6; asked != want {
						t.Errorf("the agent asked the registry: %v, want %v", asked, want)
					}
				})
			}
		}
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
