package wait

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cambium/platform/network"
)

// DHCP makes a network for the time before the settings are known: DHCP on every NIC. It
// returns when one NIC has an address. The files it writes are below /run and do not survive a
// reboot; the settings' own files take their place. A machine that has an address, or files of
// an earlier boot, is left as it is.
func DHCP(ctx context.Context, k *network.Kernel) error {
	// NICs may be attached late; without any there is nothing to do.
	if err := Until(ctx, k, func(have network.State) error {
		if len(have.NICs()) == 0 {
			return errors.New("there is no NIC")
		}
		return nil
	}); err != nil {
		return err
	}
	have, err := k.Observe(ctx)
	if err != nil {
		return err
	}
	if connected(have) == nil {
		return nil
	}
	if !have.Configured() {
		if !have.Networkd.Available {
			return errors.New("no NIC has an address, and systemd-networkd, the DHCP client, is not available")
		}
		if _, err := k.Apply(ctx, network.DHCPEverywhere(have)); err != nil {
			return err
		}
	}
	if err := Until(ctx, k, connected); err != nil {
		return fmt.Errorf("wait for DHCP: %w", err)
	}
	return nil
}

// connected reports a NIC with a usable address.
func connected(have network.State) error {
	for _, nic := range have.NICs() {
		if slices.ContainsFunc(nic.Addresses, func(a network.Address) bool { return a.Global() && a.Usable() }) {
			return nil
		}
	}
	return errors.New("no NIC has an address")
}
