package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/infrastructure"
	"cambium/plan"
	"cambium/platform/network"
	"cambium/platform/network/wait"
	"cambium/settings"
	"cambium/settings/store"
)

// fetcher asks the sources, and gives those that need one a network first: sources never
// configure networks themselves.
type fetcher struct {
	sources *infrastructure.Sources
	network *network.Kernel // nil where the machine's network is not ours
	cached  func() bool     // a copy of the settings can serve
	waiting func(string)    // told what is waited for
	log     *logrus.Entry

	turn chan struct{} // semaphore of one: held while a network is being made
	up   atomic.Bool   // we made a network
}

// networkUp tells the sources whether asking over the network makes sense.
func (f *fetcher) networkUp(ctx context.Context) bool {
	if f.network == nil || f.up.Load() {
		return true
	}
	have, err := f.network.Observe(ctx)
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

// fetch is the store's way to the sources.
func (f *fetcher) fetch(ctx context.Context) (store.Fetched, error) {
	var answer infrastructure.Answer
	err := withNetwork(ctx, f.bringUp, f.cached(), func() (err error) {
		answer, _, err = f.sources.Settings(ctx)
		return err
	})
	var failure *infrastructure.Failure
	if errors.As(err, &failure) && failure.Spent() {
		return store.Fetched{}, store.Spent(err)
	}
	if err != nil {
		return store.Fetched{}, err
	}
	return store.Fetched{Raw: answer.Raw, From: answer.From, Settled: answer.Settled}, nil
}

// publicKey asks for the SSH key of the vcap user.
func (f *fetcher) publicKey(ctx context.Context) (key string, err error) {
	err = withNetwork(ctx, f.bringUp, true, func() (err error) {
		key, _, err = f.sources.PublicKey(ctx)
		return err
	})
	return key, err
}

// withNetwork asks, and asks again with a network if a source needs one. A caller that can do without the
// answer waits for that network only as long as for the answer: a link may stay down.
func withNetwork(ctx context.Context, bringUp func(context.Context, json.RawMessage) (bool, error), dispensable bool, ask func() error) error {
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

// bringUp makes the network that the user data names, or else DHCP on every NIC. It reports false if
// there is none to be made: the network is not ours, or ours did not help.
func (f *fetcher) bringUp(ctx context.Context, named json.RawMessage) (made bool, err error) {
	if f.network == nil || f.up.Load() {
		return false, nil
	}
	long := time.AfterFunc(time.Second, func() { f.waiting("a network to ask the sources over") })
	defer func() {
		if !long.Stop() {
			f.waiting("")
		}
	}()
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	if f.up.Load() {
		return true, nil
	}
	f.log.WithField("named", len(named) > 0).Info("making a network for the settings sources")
	if len(named) > 0 {
		if err := f.applyNamed(ctx, named); err != nil {
			return false, err
		}
	} else if err := wait.DHCP(ctx, f.network); err != nil {
		return false, err
	}
	f.up.Store(true)
	return true, nil
}

func (f *fetcher) applyNamed(ctx context.Context, named json.RawMessage) error {
	networks, rep := settings.DecodeNetworks("networks in user data", named)
	if err := rep.Err(); err != nil {
		return err
	}
	have, err := f.network.Observe(ctx)
	if err != nil {
		return err
	}
	want, _, err := plan.Network(networks, have)
	if err != nil {
		return err
	}
	if _, err := f.network.Converge(ctx, want); err != nil {
		return err
	}
	_, err = wait.Ready(ctx, f.network, want)
	return err
}
