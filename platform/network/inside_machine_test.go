//go:build machine

package network_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"cambium/desired"
	"cambium/platform"
	"cambium/platform/network"
	"cambium/platform/network/wait"
	"cambium/platform/resolver"
	"cambium/platform/unit"
	"cambium/settings"
)

// The test binary is also the program that runs inside the machine, as the agent that has the settings.

// inside is the environment variable with an order.
const inside = "CAMBIUM_NETWORK_ORDER"

// order is a request to the process in the machine.
type order struct {
	Do       string // apply, dhcp, dns, echo
	Networks map[string]settings.Network
	Stop     int // apply no more than so many changes, if positive
}

// account is that process's report.
type account struct {
	Changes  []string
	Again    []string // what a second run would change
	Warnings []string
	Error    string
	Took     time.Duration // until everything was ready
	Resolved map[string]network.Resolved
}

func TestMain(m *testing.M) {
	text := os.Getenv(inside)
	if text == "" {
		os.Exit(m.Run())
	}
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	a, err := o.carryOut()
	if err != nil {
		a.Error = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		os.Exit(2)
	}
}

func (o order) carryOut() (a account, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	log := logrus.NewEntry(logrus.StandardLogger())
	k := &network.Kernel{Log: log}
	begin := time.Now()
	switch o.Do {
	case "echo":
		return a, echo()
	case "dhcp":
		err := wait.DHCP(ctx, k)
		a.Took = time.Since(begin)
		return a, err
	case "dns":
		return a, dns(ctx, log, o.Networks, &a)
	}
	have, err := k.Observe(ctx)
	if err != nil {
		return a, err
	}
	want, warnings, err := desired.Network(o.Networks, have)
	if err != nil {
		return a, err
	}
	changes, err := network.Diff(have, want)
	if err != nil {
		return a, err
	}
	if o.Stop > 0 && o.Stop < len(changes) {
		return a, applySome(ctx, k, changes, o.Stop)
	}
	for _, c := range changes {
		a.Changes = append(a.Changes, c.String())
	}
	if _, err := k.Apply(ctx, changes); err != nil {
		return a, err
	}
	more, err := wait.Ready(ctx, k, want)
	a.Took = time.Since(begin)
	if err != nil {
		return a, err
	}
	a.Warnings = append(warnings, more...)
	if a.Resolved, err = wait.Resolve(ctx, k, want.Dynamic); err != nil {
		return a, err
	}
	if have, err = k.Observe(ctx); err != nil {
		return a, err
	}
	second, err := network.Diff(have, want)
	for _, c := range second {
		a.Again = append(a.Again, c.String())
	}
	return a, err
}

func dns(ctx context.Context, log *logrus.Entry, nets map[string]settings.Network, a *account) error {
	units := &unit.Systemd{Root: "/", Log: log}
	defer units.Close()
	k := &resolver.Kernel{PreferResolved: true, Units: units, Log: log}
	servers, _ := desired.DNS(nets)
	for _, list := range []*[]string{&a.Changes, &a.Again} {
		changes, err := platform.Converge(ctx, k, resolver.Diff, resolver.Desired{Servers: servers})
		if err != nil {
			return err
		}
		for _, c := range changes {
			*list = append(*list, c.String())
		}
	}
	return nil
}

// echo serves port 7000 until its input ends.
func echo() error {
	l, err := net.Listen("tcp", ":7000")
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		}()
	}
}
