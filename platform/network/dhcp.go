package network

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
)

// DHCPAll gives the machine some network before its settings are known: DHCP on every NIC. It
// returns when one NIC has an address. The files it writes are below /run and do not survive a
// reboot; the settings' own files take their place. A machine that has an address, or files of
// an earlier boot, is left as it is.
func (k *Kernel) DHCPAll(ctx context.Context) error {
	// NICs may be attached late; without any there is nothing to do.
	if err := k.until(ctx, func(have State) error {
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
	if !slices.ContainsFunc(have.Files, func(f File) bool { _, ours := ourFile(f); return ours }) {
		if !have.Networkd.Available {
			return errors.New("no NIC has an address, and systemd-networkd, which would ask for one, is not available")
		}
		if _, err := k.Apply(ctx, minimal(have)); err != nil {
			return err
		}
	}
	if err := k.until(ctx, connected); err != nil {
		return fmt.Errorf("wait for DHCP: %w", err)
	}
	return nil
}

// minimal writes a file for every NIC for which there is none of ours.
func minimal(have State) (changes []Change) {
	for _, nic := range have.NICs() {
		file := File{Path: path.Join(runDir, fileName(nic.Name)), Content: render(WantLink{Name: nic.Name, DHCP: true}, have.Networkd)}
		if !nic.Up {
			changes = append(changes, Change{Op: OpLinkUp, Link: nic.Name})
		}
		if !slices.Contains(have.Files, file) {
			changes = append(changes, Change{Op: OpWriteFile, Path: file.Path, Content: file.Content, Reload: true})
		}
	}
	if slices.ContainsFunc(changes, Change.files) {
		changes = append(changes, Change{Op: OpReload})
	}
	return changes
}

// connected reports a NIC with a usable address.
func connected(have State) error {
	for _, nic := range have.NICs() {
		if slices.ContainsFunc(nic.Addresses, func(a Address) bool { return a.Global() && a.Usable() }) {
			return nil
		}
	}
	return errors.New("no NIC has an address")
}
