// Package fetch asks the settings sources during a boot. It first sets up a network for sources that need one, because
// sources never configure networks themselves.
package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/desired"
	"cambium/infrastructure"
	"cambium/platform/network"
	"cambium/platform/network/wait"
	"cambium/settings"
	"cambium/settings/store"
)

// Network is the network for asking sources, before the settings define the machine's own.
type Network struct {
	kernel   *network.Kernel // nil if the agent does not configure the machine's network
	readOnly bool
	waiting  func(ctx context.Context, text string) // called with what is awaited
	log      *logrus.Entry

	turn chan struct{} // holds a token while a network is being set up
	made atomic.Bool

	passedOver atomic.Bool // a source was refused a network
}

// NewNetwork returns the network of a machine. kernel is nil if the agent does not configure the machine's network. If
// readOnly is set, nothing is changed.
func NewNetwork(kernel *network.Kernel, readOnly bool, waiting func(ctx context.Context, text string),
	log *logrus.Entry) *Network {
	return &Network{kernel: kernel, readOnly: readOnly, waiting: waiting, log: log, turn: make(chan struct{}, 1)}
}

// IsUp reports whether network sources can be queried: an interface has an address, or the agent does not configure
// interfaces itself.
func (n *Network) IsUp(context.Context) bool {
	if n.kernel == nil || n.made.Load() {
		return true
	}
	have, err := n.kernel.ObserveLinks()
	if err != nil {
		return false
	}
	for _, l := range have.Links {
		for _, a := range l.Addresses {
			if l.NIC && l.Up && a.Global() && a.Usable() {
				return true
			}
		}
	}
	return false
}

// bringUp sets up the networks in the user data or, without any, DHCP on all NICs. It returns false if it cannot do
// anything: the agent does not configure the network, or has done so before.
func (n *Network) bringUp(ctx context.Context, named json.RawMessage) (made bool, err error) {
	if n.readOnly {
		// The caller asks the sources once more, which then skip those that need a network.
		return n.passedOver.CompareAndSwap(false, true), nil
	}
	if n.kernel == nil || n.made.Load() {
		return false, nil
	}
	announcement := time.AfterFunc(time.Second, func() { n.waiting(ctx, "a network to reach the settings sources") })
	defer func() {
		if !announcement.Stop() {
			n.waiting(ctx, "")
		}
	}()
	select {
	case n.turn <- struct{}{}:
		defer func() { <-n.turn }()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	if n.made.Load() {
		return true, nil
	}
	if len(named) > 0 {
		err = n.applyNamed(ctx, named)
	} else {
		n.log.Info("configuring the network by DHCP to reach the settings sources")
		err = wait.DHCP(ctx, n.kernel)
	}
	if err != nil {
		return false, err
	}
	n.made.Store(true)
	return true, nil
}

func (n *Network) applyNamed(ctx context.Context, named json.RawMessage) error {
	nets, rep := settings.DecodeNetworks("networks in user data", named)
	if err := rep.Err(); err != nil {
		return err
	}
	n.log.WithField("networks", len(nets)).Info("configuring the networks from user data to reach the settings sources")
	have, err := n.kernel.Observe(ctx)
	if err != nil {
		return err
	}
	want, _, err := desired.Network(nets, have)
	if err != nil {
		return err
	}
	changes, failed := network.Diff(have, want)
	if _, err := n.kernel.Apply(ctx, changes); failed != nil || err != nil {
		return errors.Join(failed, err)
	}
	_, err = wait.Ready(ctx, n.kernel, want)
	return err
}

// Fetcher asks the sources.
type Fetcher struct {
	Sources *infrastructure.Sources
	Network *Network
	// HasCache reports whether there is a cached copy of the settings.
	HasCache func() bool
}

// Fetch asks the sources for the settings. The settings store calls it.
func (f *Fetcher) Fetch(ctx context.Context) (store.Fetched, error) {
	var answer infrastructure.Answer
	err := withNetwork(ctx, f.Network.bringUp, f.HasCache(), func() (err error) {
		answer, _, err = f.Sources.Settings(ctx)
		return err
	})
	if err != nil {
		return store.Fetched{}, err
	}
	return store.Fetched{Raw: answer.Raw, From: answer.From, Clear: answer.Clear}, nil
}

// PublicKey asks the sources for the SSH key of the vcap user.
func (f *Fetcher) PublicKey(ctx context.Context) (key string, err error) {
	err = withNetwork(ctx, f.Network.bringUp, true, func() (err error) {
		key, _, err = f.Sources.PublicKey(ctx)
		return err
	})
	return key, err
}

// withNetwork calls ask, and calls it again after bringing up a network if a source needs one. If the answer is
// dispensable, it limits the time for bringing up the network, because a link may be down for good.
func withNetwork(ctx context.Context, bringUp func(context.Context, json.RawMessage) (bool, error),
	dispensable bool, ask func() error) error {
	for {
		err := ask()
		var need *infrastructure.NeedNetwork
		if !errors.As(err, &need) {
			return err
		}
		within, cancel := ctx, func() {}
		if dispensable {
			within, cancel = context.WithTimeout(ctx, infrastructure.DefaultCacheBudget)
		}
		made, upErr := bringUp(within, need.Networks)
		cancel()
		if upErr != nil {
			return fmt.Errorf("%w: minimal network: %w", err, upErr)
		}
		if !made {
			return err
		}
	}
}
