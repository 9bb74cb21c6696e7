package action

import (
	"context"
	"errors"
	"fmt"

	"cambium/jobs"
	"cambium/settings"
)

// JobInstance prepares, applies, starts and stops the machine's jobs and packages.
type JobInstance interface {
	Spec() (jobs.Spec, error)
	Prepare(ctx context.Context, spec jobs.Spec) error
	Apply(ctx context.Context, spec jobs.Spec) error
	Start(ctx context.Context) error
	Stop(ctx context.Context, wait bool) error
	Unmonitor(ctx context.Context) error
	// CheckStart returns an error while jobs are withheld.
	CheckStart() error
	// TakeOver cancels the start of jobs that the boot has begun, because the Director now starts them.
	TakeOver() error
}

// Networks returns the networks of the settings by name, with the addresses that DHCP gave.
type Networks func() map[string]settings.Network

func prepare(i JobInstance) func(context.Context, jobs.Spec) (string, error) {
	return func(ctx context.Context, spec jobs.Spec) (string, error) { return "prepared", i.Prepare(ctx, spec) }
}

func apply(i JobInstance, networks Networks) func(context.Context, jobs.Spec) (string, error) {
	return func(ctx context.Context, spec jobs.Spec) (string, error) {
		if err := resolve(&spec, networks); err != nil {
			return "", err
		}
		return "applied", i.Apply(ctx, spec)
	}
}

// resolve fills in the addresses that DHCP gave the machine. The Director reads them from get_state.
func resolve(spec *jobs.Spec, networks Networks) error {
	if len(spec.Networks) == 0 {
		return nil
	}
	inForce := networks()
	var faults []error
	for name := range spec.Networks {
		network, known := inForce[name]
		switch {
		case !known && name == "local" && spec.NetworkString(name, "ip") == "127.0.0.1":
		case !known:
			faults = append(faults, fmt.Errorf("network %q of the spec is not in the settings", name))
		case network.DHCP():
			spec.SetNetwork(name, network.IP, network.Netmask, network.Gateway)
		}
	}
	return errors.Join(faults...)
}

func start(i JobInstance) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) { return "started", i.Start(ctx) }
}

// stop waits for the processes to end, unless the caller's protocol is older than 3: such callers do not expect the
// wait.
func stop(i JobInstance) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) { return "stopped", i.Stop(ctx, callOf(ctx).Protocol > 2) }
}
