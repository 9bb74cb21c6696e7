package action

import (
	"context"
	"errors"
	"fmt"

	"cambium/jobs"
)

// JobInstance is the machine's jobs and packages.
type JobInstance interface {
	Spec() (jobs.Spec, error)
	Prepare(ctx context.Context, spec jobs.Spec) error
	Apply(ctx context.Context, spec jobs.Spec) error
	Start(ctx context.Context) error
	Stop(ctx context.Context, wait bool) error
	Unmonitor(ctx context.Context) error
	// CheckStart fails with the reason why no job may be started, if there is one.
	CheckStart() error
}

// NetworkInForce is a network of the settings as the machine has it.
type NetworkInForce struct {
	// Dynamic networks have their address from DHCP, so that only the machine knows it.
	Dynamic              bool
	IP, Netmask, Gateway string
}

// Networks returns the networks in force by name.
type Networks func(ctx context.Context) (map[string]NetworkInForce, error)

func prepare(i JobInstance) func(context.Context, jobs.Spec) (string, error) {
	return func(ctx context.Context, spec jobs.Spec) (string, error) { return "prepared", i.Prepare(ctx, spec) }
}

func apply(i JobInstance, networks Networks) func(context.Context, jobs.Spec) (string, error) {
	return func(ctx context.Context, spec jobs.Spec) (string, error) {
		if err := resolve(ctx, &spec, networks); err != nil {
			return "", err
		}
		return "applied", i.Apply(ctx, spec)
	}
}

// resolve gives the networks of a spec the addresses that DHCP gave the machine: the Director
// reads them from get_state.
func resolve(ctx context.Context, spec *jobs.Spec, networks Networks) error {
	if len(spec.Networks) == 0 {
		return nil
	}
	inForce, err := networks(ctx)
	if err != nil {
		return fmt.Errorf("networks of the spec: %w", err)
	}
	var faults []error
	for name := range spec.Networks {
		network, known := inForce[name]
		switch {
		case !known && name == "local" && spec.NetworkString(name, "ip") == "127.0.0.1":
		case !known:
			faults = append(faults, fmt.Errorf("network %q of the spec is not in the settings", name))
		case network.Dynamic:
			spec.SetNetwork(name, network.IP, network.Netmask, network.Gateway)
		}
	}
	return errors.Join(faults...)
}

func start(i JobInstance) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) { return "started", i.Start(ctx) }
}

// stop waits for the processes to end, except for callers before protocol 3, which do not expect
// that.
func stop(i JobInstance) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) { return "stopped", i.Stop(ctx, callOf(ctx).Protocol > 2) }
}
