package wait

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"cambium/platform/network"
)

// DHCP configures a network for the time before the settings are known, with DHCP on every NIC. It returns when a NIC
// has an address. Its files are below /run, do not survive a reboot, and are replaced by those for the settings. If the
// machine already has an address, or files of an earlier boot, it changes nothing.
func DHCP(ctx context.Context, k *network.Kernel) error {
	// NICs may be attached late. Without any, nothing can be configured.
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

// connected returns nil if a NIC has a usable address.
func connected(have network.State) error {
	for _, nic := range have.NICs() {
		if slices.ContainsFunc(nic.Addresses, func(a network.Address) bool { return a.Global() && a.Usable() }) {
			return nil
		}
	}
	return errors.New("no NIC has an address")
}
